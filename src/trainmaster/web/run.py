"""The page of one run."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs, State, Submitter
from trainmaster.web.rendering import duration, is_part, page, redirect, usd

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run}")
def show(request: Request, run: str, found: Runs) -> Response:
    """One run: how far it is, its curves and logs, live."""
    status = found.status(run)
    values = {
        "run": run,
        "status": status,
        "quote": _band(status),
        "highlights": found.highlights(run),
        "events": found.events(run)[-100:],
        "recipe": found.recipe(run),
        "models": found.models(run, 50)["models"],
        "is_over": status["state"] == "DONE",
    }
    return page(request, "run_part.html" if is_part(request) else "run.html", **values)


@router.post("/runs/{run}/cancel")
def cancel(run: str, found: Runs, state: State, caller: Submitter) -> Response:
    """Ends it."""
    found.cancel(run, state.environ)
    return redirect(f"/runs/{quote(run)}")


@router.post("/runs/{run}/resume")
def resume(run: str, found: Runs, state: State, caller: Submitter) -> Response:
    """Goes on with it."""
    found.resume(run, state.environ)
    return redirect(f"/runs/{quote(run)}")


def _band(status: dict[str, Any]) -> list[dict[str, Any]]:
    """Quote against truth: the interval of each and where the run is, as percentages of a common scale."""
    promised = status.get("quote")
    if promised is None:
        return []
    found = []
    for what, key, value, show_as in (
        ("Time", "time_s", status["seconds"], duration),
        ("Cost", "cost_usd", status["cost_usd"], usd),
    ):
        interval = promised[key]
        if interval["p95"] is None or not max(interval["p95"], value) > 0:
            continue
        scale = 100 / (1.1 * max(interval["p95"], value))
        found.append(
            {
                "what": what,
                "now": show_as(value),
                "low": show_as(interval["p5"]),
                "high": show_as(interval["p95"]),
                "left": round(interval["p5"] * scale, 2),
                "width": round((interval["p95"] - interval["p5"]) * scale, 2),
                "at": round(value * scale, 2),
                "is_beyond": value > interval["p95"],
            }
        )
    return found
