"""Routes of volumes: those of the caller's team. New versions are made of uploads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Query, Request
from fastapi.responses import StreamingResponse

from trainmaster.api.rest.limits import OpenStream
from trainmaster.api.rest.models import saved
from trainmaster.api.rest.state import Routes, Submitter, Transfer, caller_of, finds_caller, state_of
from trainmaster.service.teams.team_volumes import TeamVolumes

if TYPE_CHECKING:
    from trainmaster.service.volumes import Entry, OpenVolume

router = Routes(tags=["volumes"])

_PIECE_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 128 << 10


@finds_caller("read")
def volumes_of(request: Request) -> TeamVolumes:
    """The volumes that a caller sees."""
    service = state_of(request).service
    return TeamVolumes(service.home, service.database, caller_of(request))


Volumes = Annotated[TeamVolumes, Depends(volumes_of)]
Version = Annotated[int | None, Query(ge=1, description="the newest without one")]
InIt = Annotated[str, Query(description="of a file or directory in it")]


@router.get("/volumes")
def volumes(found: Volumes) -> dict[str, Any]:
    """All of them, with their newest versions."""
    return {"volumes": found.all()}


@router.get("/volumes/{name:path}")
def volume(name: str, found: Volumes, version: Version = None) -> dict[str, Any]:
    """One: its versions, and of one of them (the newest without `version`) files, columns and rows."""
    return found.show(name, version)


@router.delete("/volumes/{name:path}", status_code=204)
def remove(
    name: str,
    found: Volumes,
    _: Submitter,
    version: Annotated[int | None, Query(ge=1, description="which one; needed without `whole`")] = None,
    whole: bool = False,
) -> None:
    """Remove a version, or with `whole` all of them."""
    found.remove(name, version, whole=whole)


# Names of volumes may have slashes, as paths of files have: in one URL's path they could not be told apart.


@router.get("/volume-files/{name:path}", response_class=StreamingResponse)
def files(
    name: str,
    found: Volumes,
    transfer: Transfer,
    version: Version = None,
    path: InIt = "",
    recursive: bool = False,
) -> StreamingResponse:
    """What is in a directory of a version, a line of JSON each; or the file itself.

    A line has `path`, `kind`, `bytes`, `mode`, `mtime_ns`, `target` of links, and `hash` of files: the first
    half of its BLAKE3, or where there are `parts` (bytes of each) that of their digests one after another.
    """
    from trainmaster.service.volumes.stored import entries

    opened = found.opened(name, version)
    rows = entries(opened, path, recursive=recursive)
    lines = (f"{json.dumps(_line(opened, entry))}\n".encode() for entry in rows)
    return StreamingResponse(transfer.sent(_pieces(lines)), media_type="application/x-ndjson")


@router.get("/volume-content/{name:path}", response_class=StreamingResponse)
def content(
    name: str, found: Volumes, transfer: Transfer, path: InIt = "", version: Version = None
) -> StreamingResponse:
    """The bytes of a file of a version, proved by their hash. Browsers save it."""
    from trainmaster.service.volumes.stored import content as blocks_of

    opened = found.opened(name, version)
    blocks = blocks_of(opened, path)
    return _streamed(transfer, blocks, path.rpartition("/")[2])


@router.get("/volume-contents/{name:path}", response_class=StreamingResponse)
def contents(
    name: str,
    found: Volumes,
    transfer: Transfer,
    path: InIt = "",
    version: Version = None,
    begin: Annotated[int, Query(ge=0, description="the first of all these bytes that is wanted")] = 0,
    end: Annotated[int | None, Query(ge=0, description="the first that is not wanted any more")] = None,
) -> StreamingResponse:
    """The bytes of all files in a directory of a version, proved, one after another.

    They are in the order of `GET /volume-files` with `recursive`, which says how long each one is.
    """
    from trainmaster.service.volumes.stored import contents as blocks_of

    blocks = blocks_of(found.opened(name, version), path, begin, end)
    return _streamed(transfer, blocks, "contents")


@router.get("/volume-objects/{name:path}", response_class=StreamingResponse)
def objects(
    name: str,
    found: Volumes,
    transfer: Transfer,
    key: Annotated[str, Query(description="in the volume: `heads/`, `manifests/` or `chunks/`")],
    begin: Annotated[int, Query(ge=0, description="the first byte that is wanted")] = 0,
    end: Annotated[int | None, Query(ge=0, description="the first that is not wanted any more")] = None,
) -> StreamingResponse:
    """The bytes of an object that versions are made of, as it is stored: for who reads and proves volumes."""
    blocks = found.object_blocks(name, key, begin, end)
    return _streamed(transfer, blocks, "object")


def _streamed(transfer: OpenStream, blocks: Iterator[bytes | memoryview], name: str) -> StreamingResponse:
    """Bytes that browsers save by a name; what is damaged first is said before the answer begins."""
    pieces = transfer.sent(_pieces(chain([next(blocks, b"")], blocks)))
    return StreamingResponse(pieces, headers=saved(name), media_type="application/octet-stream")


def _line(opened: OpenVolume, entry: Entry) -> dict[str, Any]:
    from trainmaster.service.volumes.stored import entry_document

    parts = [length for _, _, length in opened.table.extents(entry.row)] if entry.kind == "file" else []
    return {**entry_document(entry), **({"parts": parts} if len(parts) > 1 else {})}


def _pieces(blocks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Chunks may have a gigabyte, files and lines a few bytes: each piece is a turn of the loop."""
    held = bytearray()
    for block in blocks:
        for first in range(0, len(block), _PIECE_BYTES):
            held += block[first : first + _PIECE_BYTES]
            if len(held) >= _LEAST_BYTES:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
