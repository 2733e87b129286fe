"""Routes of uploads: the core of tus 1.0 (https://tus.io), and what an upload becomes."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import Header, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Routes, ServerState, State, Submitter, Transfer
from trainmaster.service.uploads.uploads import KINDS, PART_BYTES, too_much
from trainmaster.spec.errors import UsageError

router = Routes(tags=["uploads"])
_TUS: Final = "1.0.0"
_PIECE: Final = "application/offset+octet-stream"
#: A request that finishes an upload waits for so long, in seconds, before it is told to ask again.
_PATIENCE_S: Final = 20.0


class NewUpload(Body):
    """A file that is to be sent."""

    name: str
    size_bytes: int = Field(ge=0)
    kind: str = Field(description=f"of {', '.join(KINDS)}")


class Finish(Body):
    """What an upload becomes."""

    volume: str = Field(default="", description="the volume that gets a new version; empty for code")
    uploads: list[str] = Field(
        default=[], description="others whose files are in the same version", max_length=1000
    )
    made_by: str = Field(default="", description="the run whose task made the files", max_length=200)


@router.post("/uploads", status_code=201)
def begin(
    response: Response,
    state: State,
    caller: Submitter,
    body: NewUpload | None = None,
    upload_length: Annotated[int | None, Header(ge=0)] = None,
    upload_metadata: Annotated[str, Header()] = "",
) -> dict[str, Any]:
    """Begin one: by a body, or by the headers of tus, with `name` and `kind` in `Upload-Metadata`."""
    if body is None:
        if upload_length is None:
            raise UsageError(
                "how many bytes?", "Send name, size_bytes and kind, or the header Upload-Length."
            )
        told = _metadata(upload_metadata)
        name = told.get("name") or told.get("filename") or "file"
        body = NewUpload(name=name, size_bytes=upload_length, kind=told.get("kind", "volume"))
    found = state.uploads.begin(caller, body.name, body.size_bytes, body.kind)
    response.headers["Location"] = f"/api/v1/uploads/{found['upload']}"
    _tell(response, found)
    return found


@router.get("/uploads")
def uploads(
    state: State,
    caller: Submitter,
    name: Annotated[
        str | None, Query(description="only those of the caller's team that are called so")
    ] = None,
) -> dict[str, Any]:
    """Those that nothing was made of yet."""
    return {"uploads": state.uploads.open_ones(caller, name)}


@router.get("/uploads/{upload}")
def show(upload: str, state: State, caller: Submitter) -> dict[str, Any]:
    """How far it is (`offset`), its `state`, and in `result` what it became or what was wrong."""
    return state.uploads.get(caller, upload)


@router.head("/uploads/{upload}")
def head(upload: str, state: State, caller: Submitter) -> Response:
    """Where to go on: the header `Upload-Offset`."""
    response = Response()
    _tell(response, state.uploads.get(caller, upload))
    return response


@router.patch("/uploads/{upload}", status_code=204)
async def send(
    upload: str,
    request: Request,
    state: State,
    caller: Submitter,
    transfer: Transfer,
    upload_offset: Annotated[int, Header(ge=0)],
) -> Response:
    """Send bytes from `Upload-Offset` on; what came before a connection broke is kept."""
    if request.headers.get("content-type") != _PIECE:
        raise HTTPException(415, f"Content-Type: {_PIECE}")
    length = request.headers.get("content-length", "")
    said = int(length) if length.isdecimal() else None
    left = await run_in_threadpool(state.uploads.check_next, caller, upload, upload_offset, said)
    offset = upload_offset
    piece = bytearray()
    try:
        async for block in transfer.body(request.stream()):
            left -= len(block)
            if left < 0:
                raise too_much(left + len(block))
            piece += block
            if len(piece) >= PART_BYTES:
                offset, piece = await run_in_threadpool(state.uploads.add, upload, offset, piece), bytearray()
    except ClientDisconnect:
        pass
    if piece:
        offset = await run_in_threadpool(state.uploads.add, upload, offset, piece)
    return Response(status_code=204, headers={"Upload-Offset": str(offset), "Tus-Resumable": _TUS})


@router.delete("/uploads/{upload}", status_code=204)
def remove(upload: str, state: State, caller: Submitter) -> None:
    """Give it up."""
    state.uploads.remove(caller, upload)


@router.post("/uploads/{upload}/finish", status_code=201)
async def finish(
    upload: str, response: Response, state: State, caller: Submitter, body: Finish | None = None
) -> dict[str, Any]:
    """Make code of it, or a version of a volume; 202 while that goes on: send it once more."""
    wish = body or Finish()
    found = await finished(state, caller, upload, wish.volume, wish.uploads, wish.made_by)
    if found["state"] != "DONE":
        response.status_code = 202
    return found


async def finished(
    state: ServerState,
    caller: Submitter,
    upload: str,
    volume: str,
    others: Sequence[str],
    made_by: str = "",
) -> dict[str, Any]:
    """What became of an upload, or how far it is after a while."""
    future = await run_in_threadpool(state.finishing.finish, caller, upload, volume, others, made_by)
    if future is not None:
        made = asyncio.wrap_future(future)
        # What goes wrong after our patience is in the upload's row: no request waits for it any more.
        made.add_done_callback(lambda over: over.cancelled() or over.exception())
        await asyncio.wait([made], timeout=_PATIENCE_S)
        if made.done():
            state.finishing.told(upload)
            made.result()
    return await run_in_threadpool(state.uploads.get, caller, upload)


def _metadata(text: str) -> dict[str, str]:
    """``Upload-Metadata``: keys, each with its value in base64.

    >>> _metadata("name YS5jc3Y=, kind dm9sdW1l, empty")
    {'name': 'a.csv', 'kind': 'volume', 'empty': ''}
    """
    try:
        pairs = [pair.strip().partition(" ") for pair in text.split(",") if pair.strip()]
        return {key: base64.b64decode(value, validate=True).decode() for key, _, value in pairs}
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UsageError(f"Upload-Metadata: {error}", "Write `key base64, key base64`.") from None


def _tell(response: Response, found: dict[str, Any]) -> None:
    response.headers["Tus-Resumable"] = _TUS
    response.headers["Upload-Offset"] = str(found["offset"])
    response.headers["Upload-Length"] = str(found["size_bytes"])
    response.headers["Cache-Control"] = "no-store"
