"""Routes of what takes room: removing runs, and what nothing needs any more."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, Submitter, caller_of, finds_caller, state_of
from trainmaster.db.registry_rows import ModelInUseError
from trainmaster.service.storage.pruning import KINDS, UNUSED_S
from trainmaster.service.storage.removal import KEPT
from trainmaster.service.storage.storage import Storage
from trainmaster.service.teams.team_runs import MAX_PAGE

router = Routes(tags=["storage"])


@finds_caller("read")
def _storage(request: Request) -> Storage:
    state = state_of(request)
    return Storage(state.service, caller_of(request), state.environ, state.room)


Stored = Annotated[Storage, Depends(_storage)]


class RemoveRuns(Body):
    """Which runs go."""

    runs: list[str] = Field(default_factory=list, max_length=MAX_PAGE, description="their ids")
    older_than_s: Annotated[
        float | None, Field(ge=0, allow_inf_nan=False, description="instead: that ended so long ago")
    ] = None
    where: str = Field("", description="instead: those that are over and are so, as of `GET /runs`")
    dry_run: bool = Field(False, description="only say what would go")


class RunOutcome(BaseModel):
    """What became, or would become, of a run."""

    run: str
    outcome: str = Field(description="REMOVED, TRIMMED (its record stays with what is needed) or KEPT")
    bytes: int
    parts: dict[str, int]
    kept: list[dict[str, str]] = Field(description="`why` something stays, and as `hint` what to do about it")


class RemovedRuns(BaseModel):
    """What became of runs, and how many bytes that frees."""

    dry_run: bool
    bytes: int
    runs: list[RunOutcome]
    shared: dict[str, int] = Field(description="bytes of what no other run needs: code, environments")


@router.post("/storage/remove-runs")
def remove_runs(body: RemoveRuns, found: Stored, caller: Submitter) -> RemovedRuns:
    """Remove runs that are over, or say what would go."""
    return RemovedRuns(**found.remove_runs(**body.model_dump()))


class Prune(Body):
    """What goes that nothing needs any more."""

    kinds: list[str] = Field(default_factory=list, description=f"of {', '.join(KINDS)}; without, all")
    unused_s: Annotated[
        float, Field(ge=0, allow_inf_nan=False, description="caches that were not used for so long")
    ] = UNUSED_S
    dry_run: bool = Field(False, description="only say what would go")


@router.post("/storage/prune")
def prune(body: Prune, found: Stored, caller: Submitter) -> dict[str, Any]:
    """Remove what nothing needs any more; what all teams share, for admins only."""
    return found.prune(**body.model_dump())


@router.get("/storage")
def usage(
    found: Stored,
    caller: Reader,
    limit: Annotated[int | None, Query(ge=1, description="of runs, the largest so many")] = None,
) -> dict[str, Any]:
    """What lies where, whose it is, and how much room it takes; to a team, that of its runs."""
    return found.usage(limit)


@router.delete("/runs/{run}")
def remove_run(
    run: str,
    found: Stored,
    caller: Submitter,
    dry_run: Annotated[bool, Query(description="only say what would go")] = False,
) -> dict[str, Any]:
    """Remove a run that is over; 409 while all of it is needed."""
    return outcome_of(found, run, dry_run=dry_run)


def outcome_of(found: Storage, run: str, *, dry_run: bool = False) -> dict[str, Any]:
    """What became of a run that is to be removed.

    Raises:
        ModelInUseError: all of it stays.
    """
    [outcome] = found.remove_runs([run], dry_run=dry_run)["runs"]
    if outcome["outcome"] == KEPT and not dry_run:
        first = outcome["kept"][0]
        raise ModelInUseError(f"{run} stays: {first['why']}", first["hint"])
    return dict(outcome)
