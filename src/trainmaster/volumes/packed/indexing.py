"""A volume over objects as they are: nothing is copied, ranges of them are its chunks."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import explaining
from trainmaster.objects.names import stays_inside
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.objects.parallel import in_order
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError
from trainmaster.spec.units import counted
from trainmaster.volumes.packed.addresses import VolumeAddress, volume_address
from trainmaster.volumes.packed.hashes import CHUNK_HASH_BYTES
from trainmaster.volumes.packed.head import Head
from trainmaster.volumes.packed.leases import REAL_CLOCKS, Clocks, leased
from trainmaster.volumes.packed.object_source import found_objects, single_object
from trainmaster.volumes.packed.packing import SourceFile
from trainmaster.volumes.packed.pushing import DEFAULT_CHUNK_BYTES, PushReport, push_scratch, told_cache
from trainmaster.volumes.packed.releasing import (
    VersionRelease,
    check_creates,
    check_expected,
)
from trainmaster.volumes.packed.shards import mds_members, mds_shards, tar_members
from trainmaster.volumes.packed.table import VersionWriter


@dataclass(slots=True)
class IndexProgress:
    """How far an index is; read by others while it goes on.

    Attributes:
        found_objects: that were listed so far.
        total_bytes: of all objects; None while they are listed.
        done_bytes: of those in which files were found.
    """

    found_objects: int = 0
    total_bytes: int | None = None
    done_bytes: int = 0

    @property
    def shown(self) -> tuple[int, int | None]:
        """What a bar shows: done, and all of it if that is known."""
        return self.done_bytes, self.total_bytes


SourceKind: TypeAlias = Literal["files", "tar", "mds"]

_JOBS = 8
# Between two members of a tar there is a header; bytes in between are cheaper than another request.
_GAP_BYTES = 64 << 10
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
# What lies beside shards and is none.
_BESIDE = (".json", ".txt", ".md", ".idx", ".index", ".csv", ".yaml", ".yml")


def index(
    source: str,
    uri: str,
    *,
    kind: SourceKind | None = None,
    cache: Path | None = None,
    chunk_limit_bytes: int = DEFAULT_CHUNK_BYTES,
    expect: int | None = None,
    progress: IndexProgress | None = None,
    say: Callable[[str], None] = lambda _: None,
    clocks: Clocks = REAL_CLOCKS,
) -> PushReport:
    """Makes a new version of a volume over objects that are there already.

    Args:
        source: URL of a folder of objects, or of one object.
        uri: ``URL`` or ``NAME`` of the volume, without a version.
        kind: ``files`` (each object is a file), ``tar`` (files in tars, WebDataset too), ``mds``
            (samples of MosaicML Streaming); None to find out.
        cache: by default ``TRAINMASTER_CACHE``.
        chunk_limit_bytes: how much belongs together in a cache.
        expect: as for a push.
        progress: filled in on the way.
        say: told what a user would like to know.
        clocks: tell the time.

    Raises:
        NotFoundError: there are no objects.
        UsageError: an address is none.
        PublishError: an object is none of the kind that is wanted, or a store fails.
    """
    address = volume_address(uri)
    if address.version is not None:
        raise UsageError(f"{uri}: indexing makes a new version.", f"Leave out @{address.version}.")
    store, objects = ObjectStore(address.url), ObjectStore(source)
    if objects.is_local and not store.is_local:
        raise UsageError(
            f"{objects.url}: files of this machine cannot be part of a volume elsewhere.",
            "Push them: trainmaster volume push SRC URL.",
        )
    progress = progress or IndexProgress()
    details = found_objects(objects, lambda count: setattr(progress, "found_objects", count))
    if not details:
        objects, details = single_object(objects)
    if not details:
        raise NotFoundError(f"{objects.url}: there are no objects.", "Look at the URL.")
    progress.found_objects = len(details)
    progress.total_bytes = sum(detail.size_bytes for detail in details)
    kind = kind or _kind_of(details)
    say(f"{counted(len(details), 'object')}, indexed as {kind}")
    if expect is not None:
        check_expected(store, expect)
    check_creates(store)
    place = cache or told_cache(say)
    with (
        explaining("write", str(place)),
        leased(store, "pushes", clocks) as lease,
        push_scratch(place) as scratch,
    ):
        publication = VersionRelease(store, lease, say, clocks)
        writer = _IndexWriter(scratch, objects.url, chunk_limit_bytes)
        for detail, members in _found(objects, details, kind):
            for member in members:
                writer.add(detail, member)
            progress.done_bytes += detail.size_bytes
        head = writer.close(order="path" if kind == "files" else "archive")
        head = publication.release(head, writer.version.paths, scratch, place, expect)
    notes: tuple[str, ...] = ()
    if kind == "files" and (packed := sum(detail.key.endswith(_COMPRESSED) for detail in details)):
        notes = (
            f"{packed:,} of them are compressed archives, indexed as they are; "
            "`trainmaster volume push` takes out what is in one",
        )
    return PushReport(str(VolumeAddress(store.url, head.version)), head, 0, 0, 0, notes)


def _found(
    objects: ObjectStore, details: list[ObjectDetail], kind: SourceKind
) -> Iterator[tuple[ObjectDetail, list[SourceFile]]]:
    """Gives the objects in order, each with the files in it; several are looked at at once."""
    if kind == "files":
        for detail in details:
            mtime_ns = int(detail.modified_s * 1_000_000_000)
            yield detail, [SourceFile(os.fsencode(detail.key), detail.size_bytes, mtime_ns=mtime_ns)]
        return
    tars = [detail for detail in details if detail.key.endswith(".tar")]
    if kind == "tar" and not tars:
        raise PublishError(
            f"{objects.url}: no object is called *.tar.", "Compressed tars must be pushed, not indexed."
        )
    pool = ThreadPoolExecutor(_JOBS, "index")
    try:
        if kind == "tar":
            yield from in_order(pool, partial(tar_members, objects), tars, 2 * _JOBS)
        else:
            shards = mds_shards(objects, {detail.key: detail for detail in details})
            for shard, members in in_order(pool, partial(mds_members, objects), shards, 2 * _JOBS):
                yield shard.detail, members
    finally:
        pool.shutdown(cancel_futures=True)


class _IndexWriter:
    """Writes rows, chunks and parts; neighbours in one object become one part.

    Attributes:
        version: what is written of it.
    """

    def __init__(self, scratch: Path, source_url: str, limit_bytes: int) -> None:
        self.version = VersionWriter(scratch, ("files", "chunks", "parts"), limit_bytes)
        self._source_url = source_url
        self._limit_bytes = limit_bytes
        self._chunk_bytes = 0
        # The part that still grows: object, first byte, length.
        self._detail: ObjectDetail | None = None
        self._start = self._length = 0

    def add(self, detail: ObjectDetail, member: SourceFile) -> None:
        """Adds a file that is a range of an object."""
        if not stays_inside(os.fsdecode(member.path)):
            raise PublishError(
                f"{self._source_url}: {detail.key!r} cannot be a path in a volume.",
                "Rename the object; nothing was indexed.",
            )
        size_bytes = member.size_bytes
        if size_bytes > self._limit_bytes:
            self._end_chunk()
        elif size_bytes:
            self._make_room(detail, member)
        first, offset = self.version.chunk_count, self._chunk_bytes
        left, start = size_bytes, member.start
        while left:
            room = min(left, self._limit_bytes - self._chunk_bytes)
            self._extend(detail, start, room)
            start, left = start + room, left - room
            if left:
                self._end_chunk()
        self.version.add_file(member.path, size_bytes, member.mode, member.mtime_ns, first, offset)

    def close(self, order: str) -> Head:
        """Writes the rest; gives the head, still without a version."""
        self._end_chunk()
        return self.version.head(kind="indexed", order=order, source_url=self._source_url)

    def _make_room(self, detail: ObjectDetail, member: SourceFile) -> None:
        """Ends the chunk if the member does not fit; includes the gap before it if that is small."""
        gap = member.start - (self._start + self._length)
        if self._detail is not detail or not 0 <= gap <= _GAP_BYTES:
            gap = 0
        if self._chunk_bytes + gap + member.size_bytes > self._limit_bytes:
            self._end_chunk()
        else:
            self._length += gap
            self._chunk_bytes += gap

    def _extend(self, detail: ObjectDetail, start: int, length: int) -> None:
        if self._detail is not detail or start != self._start + self._length:
            self._end_part()
            self._detail, self._start = detail, start
        self._length += length
        self._chunk_bytes += length

    def _end_part(self) -> None:
        if self._detail is not None and self._length:
            key, etag = os.fsencode(self._detail.key), self._detail.etag.encode()
            row = (self.version.chunk_count, key, self._start, self._length, etag)
            self.version.tables["parts"].append(*row)
        self._detail, self._length = None, 0

    def _end_chunk(self) -> None:
        self._end_part()
        if self._chunk_bytes:
            self.version.tables["chunks"].append(self._chunk_bytes, bytes(CHUNK_HASH_BYTES))
            self._chunk_bytes = 0


def _kind_of(details: list[ObjectDetail]) -> SourceKind:
    names = [detail.key for detail in details]
    if any(name.endswith(".mds") for name in names):
        return "mds"
    shards = [name for name in names if not name.endswith(_BESIDE)]
    return "tar" if shards and all(name.endswith(".tar") for name in shards) else "files"
