"""Routes of work that takes long: looking through volumes and models, freeing what volumes do not need."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.limits import OpenStream
from trainmaster.api.rest.quotes import Requested, WaitS, shown, streamed
from trainmaster.api.rest.state import (
    Following,
    Manager,
    Reader,
    Routes,
    ServerState,
    State,
    Submitter,
    Transfer,
)
from trainmaster.service.operations.operations import Operations, kind_of
from trainmaster.service.users.caller import Caller

router = Routes(tags=["operations"])


class VolumeCheck(BaseModel):
    """Which volume is looked through."""

    model_config = ConfigDict(extra="forbid")

    volume: str = Field(description="NAME, or NAME@VERSION; all versions without one")
    deep: bool = Field(False, description="read every chunk, too, and prove it")
    jobs: int = Field(4, ge=1, le=64, description="chunks that are read at the same time")


class VolumeCollection(BaseModel):
    """Of which volume is freed what no version names."""

    model_config = ConfigDict(extra="forbid")

    volume: str = Field(description="its name")
    grace_s: float = Field(
        86400.0,
        ge=0,
        allow_inf_nan=False,
        description="nothing younger is marked, nothing marked later than this ago is freed",
    )
    now: bool = Field(False, description="free at once what is marked; pushes that sleep must begin again")


class ModelsCheck(BaseModel):
    """Whose models are looked through."""

    model_config = ConfigDict(extra="forbid")

    runs: list[str] = Field(default=[], max_length=1000, description="all that the team has without any")
    deep: bool = Field(True, description="read every file, and compare its hash")


@router.post("/operations/volume-fsck", status_code=202)
async def check_volume(
    body: VolumeCheck,
    state: State,
    caller: Submitter,
    transfer: Transfer,
    response: Response,
    wait_s: WaitS = 0.0,
) -> Requested:
    """Look whether all that versions promise is there. The `answer` is that of `volume fsck --json`."""
    asked = await run_in_threadpool(
        Operations(state.service, state.quotes, caller).check_volume,
        body.volume,
        deep=body.deep,
        jobs=body.jobs,
    )
    return await _asked(asked, state, caller, transfer, response, wait_s)


@router.post("/operations/volume-gc", status_code=202)
async def collect_garbage(
    body: VolumeCollection,
    state: State,
    caller: Manager,
    transfer: Transfer,
    response: Response,
    wait_s: WaitS = 0.0,
) -> Requested:
    """Mark what no version names, and free what was marked before, as `volume gc` does."""
    asked = await run_in_threadpool(
        Operations(state.service, state.quotes, caller).collect_garbage,
        body.volume,
        body.grace_s,
        now=body.now,
    )
    return await _asked(asked, state, caller, transfer, response, wait_s)


@router.post("/operations/models-fsck", status_code=202)
async def check_models(
    body: ModelsCheck,
    state: State,
    caller: Submitter,
    transfer: Transfer,
    response: Response,
    wait_s: WaitS = 0.0,
) -> Requested:
    """Look whether models and checkpoints are there. The `answer` is that of `models fsck --json`."""
    asked = await run_in_threadpool(
        Operations(state.service, state.quotes, caller).check_models, body.runs, deep=body.deep
    )
    return await _asked(asked, state, caller, transfer, response, wait_s)


@router.get("/operations/{operation}")
async def show(
    operation: str, state: State, caller: Reader, transfer: Transfer, wait_s: WaitS = 0.0
) -> Requested:
    """How far one is, what was told meanwhile, and its answer."""
    return await shown(kind_of(operation), operation, state, caller, transfer, wait_s)


@router.get("/operations/{operation}/stream", response_class=StreamingResponse)
async def stream(
    operation: str,
    request: Request,
    state: State,
    caller: Reader,
    following: Following,
    after: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """Server-sent events: `told` (a line), at last `done`."""
    return await streamed(kind_of(operation), operation, request, state, caller, following, after)


@router.delete("/operations/{operation}", status_code=204)
def cancel(operation: str, state: State, caller: Submitter) -> None:
    """End one, the next time that it has something to tell."""
    Operations(state.service, state.quotes, caller).cancel(operation)


async def _asked(
    asked: dict[str, Any],
    state: ServerState,
    caller: Caller,
    transfer: OpenStream,
    response: Response,
    wait_s: float,
) -> Requested:
    response.headers["location"] = f"/api/v1/operations/{asked['id']}"
    return await shown(kind_of(asked["id"]), asked["id"], state, caller, transfer, wait_s)
