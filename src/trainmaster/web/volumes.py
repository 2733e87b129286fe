"""Pages of volumes: the list with an upload, and one volume with its files, tables and versions."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, File, Form, Request, UploadFile
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.state import State, Submitter
from trainmaster.api.rest.uploads import finished
from trainmaster.api.rest.volumes import Volumes
from trainmaster.service.uploads.uploads import PART_BYTES
from trainmaster.spec.errors import UsageError
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/volumes")
def volumes(request: Request, found: Volumes, state: State) -> Response:
    """What the team has, and what is on its way."""
    caller = request.state.caller
    may_send = "run" in caller.scopes
    uploads = (
        [each for each in state.uploads.open_ones(caller) if each["kind"] == "volume"] if may_send else []
    )
    return page(request, "volumes.html", volumes=found.all(), uploads=uploads, may_send=may_send)


@router.post("/volumes")
async def send(
    state: State,
    caller: Submitter,
    volume: Annotated[str, Form()],
    file: Annotated[list[UploadFile], File()],
) -> Response:
    """Small files, from a browser without JavaScript."""
    sent = [await _sent(state, caller, each) for each in file if each.filename]
    if not sent:
        raise UsageError("no file was chosen", "Go back, and choose one.")
    found = await finished(state, caller, sent[0], volume, sent[1:])
    return redirect(f"/volumes/{quote(volume)}" if found["state"] == "DONE" else "/volumes")


async def _sent(state: State, caller: Submitter, file: UploadFile) -> str:
    size_bytes = file.size or 0
    begun = await run_in_threadpool(state.uploads.begin, caller, file.filename or "", size_bytes, "volume")
    offset = 0
    while piece := await file.read(PART_BYTES):
        offset = await run_in_threadpool(state.uploads.add, begun["upload"], offset, piece)
    return str(begun["upload"])


@router.post("/uploads/{upload}/delete")
def give_up(upload: str, state: State, caller: Submitter) -> Response:
    """Takes an upload away that is not whole."""
    state.uploads.remove(caller, upload)
    return redirect("/volumes")


@router.get("/volumes/{name:path}")
def volume(request: Request, name: str, found: Volumes, version: int | None = None) -> Response:
    """One of them."""
    may_send = "run" in request.state.caller.scopes
    return page(request, "volume.html", volume=found.show(name, version), may_send=may_send)


@router.post("/volumes/{name:path}")
def remove(name: str, found: Volumes, caller: Submitter, version: Annotated[int, Form()]) -> Response:
    """Removes a version."""
    found.remove(name, version)
    left = any(each["volume"] == name for each in found.all())
    return redirect(f"/volumes/{quote(name)}" if left else "/volumes")
