"""Routes of work that takes long: looking through volumes and models, freeing what volumes do not need."""

from __future__ import annotations

from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.quotes import Followed, Requested, Waiting
from trainmaster.api.rest.state import Manager, Reader, Routes, ServerState, State, Submitter
from trainmaster.service.teams.team_operations import Operations, kind_of
from trainmaster.service.users.caller import Caller
from trainmaster.service.volumes import DEFAULT_GRACE_S

router = Routes(tags=["operations"])


class VolumeCheck(Body):
    """Which volume is looked through."""

    volume: str = Field(description="NAME, or NAME@VERSION; all versions without one")
    deep: bool = Field(False, description="read every chunk, too, and prove it")
    jobs: int = Field(4, ge=1, le=64, description="chunks that are read at the same time")


class VolumeCollection(Body):
    """Of which volume is freed what no version names."""

    volume: str = Field(description="its name")
    grace_s: float = Field(
        DEFAULT_GRACE_S,
        ge=0,
        allow_inf_nan=False,
        description="nothing younger is marked, nothing marked later than this ago is freed",
    )
    now: bool = Field(False, description="free at once what is marked; pushes that sleep must begin again")


class ModelsCheck(Body):
    """Whose models are looked through."""

    runs: list[str] = Field(default=[], max_length=1000, description="all that the team has without any")
    deep: bool = Field(True, description="read every file, and compare its hash")


@router.post("/operations/volume-fsck", status_code=202)
async def check_volume(body: VolumeCheck, caller: Submitter, waiting: Waiting) -> Requested:
    """Look whether all that versions promise is there. The `answer` is that of `volume fsck --json`."""
    begin = _operations(waiting.state, caller).check_volume
    asked = await run_in_threadpool(begin, body.volume, deep=body.deep, jobs=body.jobs)
    return await waiting.begun(caller, kind_of(asked["id"]), asked, "operations")


@router.post("/operations/volume-gc", status_code=202)
async def collect_garbage(body: VolumeCollection, caller: Manager, waiting: Waiting) -> Requested:
    """Mark what no version names, and free what was marked before, as `volume gc` does."""
    begin = _operations(waiting.state, caller).collect_garbage
    asked = await run_in_threadpool(begin, body.volume, body.grace_s, now=body.now)
    return await waiting.begun(caller, kind_of(asked["id"]), asked, "operations")


@router.post("/operations/models-fsck", status_code=202)
async def check_models(body: ModelsCheck, caller: Submitter, waiting: Waiting) -> Requested:
    """Look whether models and checkpoints are there. The `answer` is that of `models fsck --json`."""
    begin = _operations(waiting.state, caller).check_models
    asked = await run_in_threadpool(begin, body.runs, deep=body.deep)
    return await waiting.begun(caller, kind_of(asked["id"]), asked, "operations")


@router.get("/operations/{operation}")
async def show(operation: str, caller: Reader, waiting: Waiting) -> Requested:
    """How far one is, what was told meanwhile, and its answer."""
    return await waiting.shown(caller, kind_of(operation), operation)


@router.get("/operations/{operation}/stream", response_class=StreamingResponse)
async def stream(operation: str, caller: Reader, followed: Followed) -> StreamingResponse:
    """Server-sent events: `told` (a line), at last `done`."""
    return await followed.events(caller, kind_of(operation), operation)


@router.delete("/operations/{operation}", status_code=204)
def cancel(operation: str, state: State, caller: Submitter) -> None:
    """End one, the next time that it has something to tell."""
    _operations(state, caller).cancel(operation)


def _operations(state: ServerState, caller: Caller) -> Operations:
    return Operations(state.service, state.quotes, caller)
