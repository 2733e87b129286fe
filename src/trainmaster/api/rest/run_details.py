"""Routes of what is looked up about a run: its graph, attempts, machines, what they used, checkpoints."""

from __future__ import annotations

import tempfile
import threading
from contextlib import ExitStack
from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.responses import StreamingResponse
from starlette.background import BackgroundTask

from trainmaster.api.rest.state import Routes, Runs, State, Transfer
from trainmaster.service.runs.capsule import write_capsule
from trainmaster.service.runs.comparison import MAX_RUNS, compare
from trainmaster.service.runs.run_details import MAX_ATTEMPTS
from trainmaster.service.users.caller import TooOftenError

router = Routes(tags=["runs"])
_PIECE_BYTES: Final = 1 << 20
#: Each takes a core, and room for the code of a run.
_capsules_under_way = threading.BoundedSemaphore(2)


@router.get("/runs/{run}/graph")
def graph(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Its experiments in order, each with those that it waits for."""
    return {"experiments": runs.details(run).graph()}


@router.get("/runs/{run}/attempts")
def attempts(
    run: str, runs: Runs, limit: Annotated[int, Query(ge=1, le=1000)] = MAX_ATTEMPTS
) -> dict[str, list[dict[str, Any]]]:
    """Its attempts, the newest first."""
    return {"attempts": runs.details(run).attempts(limit)}


@router.get("/runs/{run}/machines")
def machines(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Every machine that was rented for it."""
    return {"machines": runs.details(run).machines()}


@router.get("/runs/{run}/usage")
def usage(
    run: str, runs: Runs, points: Annotated[int, Query(ge=2, le=5000, description="of one curve")] = 200
) -> dict[str, Any]:
    """CPU, memory, network and GPUs over time: of members, and of this machine or its nodes."""
    return runs.details(run).usage(points)


@router.get("/runs/{run}/checkpoints")
def checkpoints(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """Complete checkpoints in the object store."""
    return {"checkpoints": runs.details(run).checkpoints()}


@router.get("/runs/{run}/searches")
def searches(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """What its searches have found: importance of parameters, best trials, best value so far."""
    return {"searches": runs.details(run).searches()}


@router.get("/runs/{run}/targets")
def targets(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """When its running tasks come to their targets, by their curves: step, seconds, and a fan to draw."""
    return {"targets": runs.targets(run)}


@router.get("/runs/{run}/picture")
def picture(run: str, runs: Runs) -> dict[str, list[dict[str, Any]]]:
    """What a picture of it shows: its searches with their trials, and the curves of its other experiments."""
    return runs.picture(run).as_json()


@router.get("/runs/{run}/capsule.zip")
def capsule(run: str, runs: Runs, state: State, transfer: Transfer) -> StreamingResponse:
    """Its code, recipe, versions of data, environment and results: `trainmaster run FILE` runs it again."""
    runs.row(run)
    with ExitStack() as unless_sent:
        file = unless_sent.enter_context(tempfile.TemporaryFile())
        if not _capsules_under_way.acquire(blocking=False):
            raise TooOftenError("the server writes other capsules just now", 10.0)
        try:
            write_capsule(state.service, run, file)
        finally:
            _capsules_under_way.release()
        size_bytes = file.tell()
        file.seek(0)
        unless_sent.pop_all()  # it is closed with the answer
    headers = {
        "content-disposition": f'attachment; filename="{run}.zip"',
        "content-length": str(size_bytes),
    }
    pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
    return StreamingResponse(
        transfer.sent(pieces),
        headers=headers,
        media_type="application/zip",
        background=BackgroundTask(file.close),
    )


@router.get("/compare")
def comparison(
    runs: Runs, run: Annotated[list[str], Query(min_length=1, max_length=MAX_RUNS)]
) -> dict[str, Any]:
    """Several runs beside each other: best metrics, parameters, what differs in recipe and code."""
    return compare(runs, run)
