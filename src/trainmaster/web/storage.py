"""The pages of what takes room, and before a run is removed: what goes, what stays and why."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, Submitter
from trainmaster.api.rest.storage import Stored, outcome_of
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


#: Runs on the page, the largest.
_RUNS: Final = 50


@router.get("/storage")
def usage(request: Request, found: Stored, caller: Reader) -> Response:
    """What lies where and how much room it takes; to a team, that of its runs."""
    return page(request, "storage.html", usage=found.usage(_RUNS))


@router.get("/runs/{run}/remove")
def ask(request: Request, run: str, found: Stored, caller: Submitter) -> Response:
    """Shows what would go, and asks."""
    plan = found.remove_runs([run], dry_run=True)
    return page(request, "remove.html", run=run, plan=plan, outcome=plan["runs"][0])


@router.post("/runs/{run}/remove")
def remove(run: str, found: Stored, caller: Submitter) -> Response:
    """Removes it; back to what is left of it, or to the list."""
    outcome = outcome_of(found, run)
    return redirect("/" if outcome["outcome"] == "REMOVED" else f"/runs/{quote(run)}")
