"""The pages of what takes room, and before a run is removed: what goes, what stays and why."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.api.rest.storage import Stored, outcome_of
from trainmaster.service.storage.removal import KEPT
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


#: Runs on the page, the largest.
_RUNS: Final = 50
#: So long the page waits until all is counted; then it says that it is, and asks again.
_WAIT_S: Final = 1.0


@router.get("/storage")
def usage(request: Request, found: Stored, state: State, caller: Reader) -> Response:
    """What lies where and how much room it takes, as of the last minute; to a team, that of its runs."""
    counted = state.room.counted(_WAIT_S)
    return page(request, "storage.html", usage=counted and found.usage(_RUNS, counted))


@router.get("/storage/prune")
def ask_prune(request: Request, found: Stored, caller: Submitter) -> Response:
    """Shows what nothing needs any more, and asks."""
    return page(request, "prune.html", found=found.prune(dry_run=True))


@router.post("/storage/prune")
def prune(request: Request, found: Stored, caller: Submitter, kind: Annotated[list[str], Form()]) -> Response:
    """Removes what nothing needs any more of the kinds that were shown, and says what could not go."""
    done = found.prune(kind)
    if any("trouble" in each for each in done["kinds"].values()):
        return page(request, "prune.html", found=done)
    return redirect("/storage")


@router.get("/remove")
def ask(request: Request, found: Stored, caller: Submitter, run: Annotated[list[str], Query()]) -> Response:
    """Shows what would go, and asks."""
    plan = found.remove_runs(run, dry_run=True)
    going = [each["run"] for each in plan["runs"] if each["outcome"] != KEPT]
    return page(request, "remove.html", plan=plan, going=going)


@router.post("/remove")
def remove(found: Stored, caller: Submitter, run: Annotated[list[str], Form()]) -> Response:
    """Removes them; back to what is left of the only one, or to the list."""
    if len(run) > 1:
        found.remove_runs(run)
        return redirect("/runs")
    outcome = outcome_of(found, run[0])
    return redirect("/runs" if outcome["outcome"] == "REMOVED" else f"/runs/{quote(run[0])}")
