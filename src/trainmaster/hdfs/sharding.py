"""Which node copies which objects, and lines of listings and manifests. Pure."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from trainmaster.spec.plain_json import parsed_json, typed

#: What an object costs beside its bytes: to create, to rename and to close a file takes as long as so many.
_EACH_BYTES: Final = 1 << 20


class Listed(NamedTuple):
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


class Staged(NamedTuple):
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


def listed(line: bytes) -> Listed:
    """Reads a line of a listing.

    Raises:
        ValueError: it is none.

    >>> listed(Listed("a/b", 3, '"x"').line())
    Listed(key='a/b', size_bytes=3, etag='"x"')
    """
    found = parsed_json(line)
    if not isinstance(found, list) or len(found) != len(Listed._fields):
        raise ValueError(f"not a line of a listing: {line[:100]!r}")
    return typed(Listed, dict(zip(Listed._fields, found, strict=True)))


def staged(line: bytes) -> Staged:
    """Reads a line of a manifest.

    Raises:
        ValueError: it is none.

    >>> staged(Staged("a/b", 3, "ba78", '"x"', "1-2-3").line()).version
    '1-2-3'
    """
    return typed(Staged, parsed_json(line))


def shard(listing: Iterable[Listed], index: int, count: int) -> Iterator[Listed]:
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
