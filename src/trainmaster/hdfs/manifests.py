"""`Manifests`: only what they name is whole in an HDFS; files lie in their places before they are.

Which node copies which objects, and lines of listings and manifests. Pure.
"""

from __future__ import annotations

import heapq
import io
import json
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from trainmaster.hdfs.namesystem import block_bytes
from trainmaster.objects.webhdfs import WebHdfsBackend
from trainmaster.spec.plain_json import parsed_json, typed

#: What an object costs beside its bytes: to create, to rename and to close a file takes as long as so many.
_EACH_BYTES: Final = 1 << 20


class StoreObject(NamedTuple):
    """An object of the store, as all nodes have seen it.

    Attributes:
        key: below the URL. size_bytes: of it. etag: its version.
    """

    key: str
    size_bytes: int
    etag: str

    def line(self) -> bytes:
        """As listings hold it."""
        return json.dumps(list(self), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class StagedFile(NamedTuple):
    """A file in HDFS, as manifests tell of it.

    Attributes:
        path: below the data's directory. size_bytes: of it. sha256: of its content.
        etag: the version of the object that it is a copy of.
        version: of the file itself: one that is written again in its place has another.
    """

    path: str
    size_bytes: int
    sha256: str
    etag: str
    version: str = ""

    def line(self) -> bytes:
        """As manifests hold it."""
        return json.dumps(self._asdict(), ensure_ascii=False).encode() + b"\n"


def listed(line: bytes) -> StoreObject:
    """Reads a line of a listing.

    Raises:
        ValueError: it is none.

    >>> listed(StoreObject("a/b", 3, '"x"').line())
    StoreObject(key='a/b', size_bytes=3, etag='"x"')
    """
    found = parsed_json(line)
    if not isinstance(found, list) or len(found) != len(StoreObject._fields):
        raise ValueError(f"not a line of a listing: {line[:100]!r}")
    return typed(StoreObject, dict(zip(StoreObject._fields, found, strict=True)))


def staged(line: bytes) -> StagedFile:
    """Reads a line of a manifest.

    Raises:
        ValueError: it is none.

    >>> staged(StagedFile("a/b", 3, "ba78", '"x"', "1-2-3").line()).version
    '1-2-3'
    """
    return typed(StagedFile, parsed_json(line))


def shard(listing: Iterable[StoreObject], index: int, count: int) -> Iterator[StoreObject]:
    """What one of several nodes copies: each object goes to the node that has least so far.

    Every node finds the same by itself, in memory that does not grow with the listing; no node gets more than
    another by more than one object.

    Args:
        listing: the same for all nodes.
        index: of the node, from 0.
        count: of nodes.
    """
    loads = [(0, node) for node in range(count)]
    for each in listing:
        load, node = loads[0]
        heapq.heapreplace(loads, (load + each.size_bytes + _EACH_BYTES, node))
        if node == index:
            yield each


_START: Final = "manifest-"
_TABLE: Final = "CREATE TABLE files (path TEXT PRIMARY KEY, version TEXT, etag TEXT) WITHOUT ROWID"


class Manifests:
    """Those of one data set, of all nodes.

    What they name and is there is kept on the disk here: it may be many millions of files.

    Args:
        target: where the files are.
        notes: where the manifests are.
    """

    def __init__(self, target: WebHdfsBackend, notes: WebHdfsBackend) -> None:
        self._notes = notes
        self._files = sqlite3.connect("")  # a file that goes with us
        self._files.execute(_TABLE)
        there = ((each.key, each.etag) for each in target.details(""))
        self._files.executemany("INSERT INTO files VALUES (?, ?, NULL)", there)
        self._files.executemany("UPDATE files SET etag = ? WHERE path = ? AND version = ?", self._named())

    def close(self) -> None:
        """Forget what there is."""
        self._files.close()

    def name(self, each: StoreObject) -> bool:
        """Whether a whole copy of this version is in its place."""
        look = "SELECT 1 FROM files WHERE path = ? AND etag = ?"
        return self._files.execute(look, (each.key, each.etag)).fetchone() is not None

    def add(self, files: Collection[StagedFile]) -> None:
        """Write down files that are whole; all of them or none."""
        if files:
            lines = io.BytesIO(b"".join(each.line() for each in files))
            block = str(block_bytes(lines.getbuffer().nbytes))
            self._notes.put_file_if_absent(f"{_START}{secrets.token_hex(8)}.jsonl", lines, blocksize=block)

    def _named(self) -> Iterator[tuple[str, str, str]]:
        if self._files.execute("SELECT 1 FROM files").fetchone() is None:
            return
        for manifest in self._notes.files(""):
            if manifest.key.startswith(_START):
                for line in _lines(self._notes.blocks(manifest.key)):
                    found = staged(line)
                    yield found.etag, found.path, found.version


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from whole
