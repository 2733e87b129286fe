"""`stage`: what one node copies from an object store into an HDFS, through WebHDFS."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Final, NamedTuple
from urllib.parse import urlsplit

from trainmaster.hdfs.manifests import Manifests, StagedFile, StoreObject, listed, shard
from trainmaster.hdfs.namesystem import UNIT_BYTES, ask_namenode, block_bytes, fits, lack_of_room
from trainmaster.objects.backend import ObjectDetail
from trainmaster.objects.errors import FullStoreError, ObjectChangedError, StoreTrouble, explained, trouble_of
from trainmaster.objects.object_store import ObjectStore
from trainmaster.objects.parallel import in_order
from trainmaster.objects.webhdfs import WebHdfsBackend
from trainmaster.objects.webhdfs_answers import NoDatanodeError
from trainmaster.spec.errors import TrainmasterError, UsageError

#: Files that a node copies at the same time: of small ones more, as they are mostly waited for. Of each large
#: one so many parts are read ahead: 256 MiB in all.
_FILES: Final = 16
_LARGE_FILES: Final = 4
_AHEAD: Final = 4
#: So many times as many wait, so that others go on while it is written down what is copied.
_QUEUED: Final = 4
#: A NameNode names no more files that it has lost: then there are others, too.
_MOST_NAMED: Final = 100
#: Copies of what all nodes need to begin: it is small.
_LISTING_COPIES: Final = 8
_PART_BYTES: Final = 8 << 20
_CHANGES: Final = 3
#: What is copied is written down that often, and less often where it takes long: no more than a twentieth.
_NOTE_S: Final = 5.0
_PER_NOTE: Final = 20


class StagingReport(NamedTuple):
    """What a node has done.

    Attributes:
        files: of its share. copied: of these, what was not there yet. total_files: of all nodes.
    """

    files: int
    copied: int
    total_files: int


def data_path(url: str) -> str:
    """Where what is below a URL lies in HDFS.

    >>> data_path("s3://bucket/sets/cifar10/")
    '/data/cifar10-2102fdf4'
    """
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]
    return f"/data/{Path(urlsplit(url).path).name or urlsplit(url).netloc}-{digest}"


def stage(
    url: str,
    web: str,
    *,
    index: int,
    count: int,
    copies: int,
    directory: Path,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> StagingReport:
    """Copy this node's share of what is below a URL; what is there as it should be is not copied again.

    Args:
        url: of an object store.
        web: host and port of WebHDFS.
        index: of this node, from 0.
        count: of nodes that do the same.
        copies: of each block.
        directory: where each node keeps its part of the HDFS, for messages.
        progress: told how many bytes are done, and of how many.

    Raises:
        UsageError: there is nothing below the URL.
        FullStoreError: there is no room.
        TrainmasterError: the store or HDFS does not do as it should.
    """
    address, _, port = web.rpartition(":")
    path = data_path(url)
    store, target = ObjectStore(url), _open(web, path)
    notes = _open(web, f"/trainmaster{path}")
    look = partial(ask_namenode, address, int(port))
    total_bytes = in_writing_bytes = UNIT_BYTES  # for the listing
    try:
        with tempfile.TemporaryFile() as listing:
            total_files, total_bytes, largest_bytes = _take_listing(store, notes, listing)
            in_writing_bytes = _in_writing_bytes(largest_bytes) * copies
            found = look()
            wanted_bytes = total_bytes - target.total_bytes()
            if not fits(found.live, wanted_bytes, copies):
                raise _full(lack_of_room(found.live, wanted_bytes, copies, str(directory)))

            def share() -> Iterator[StoreObject]:
                listing.seek(0)
                return shard(map(listed, listing), index, count)

            own_bytes = sum(each.size_bytes for each in share())
            lost = frozenset(each.removeprefix(f"{path}/") for each in found.lost)
            copier = _Copier(store, target, copies, lambda done_bytes: progress(done_bytes, own_bytes))
            with contextlib.closing(Manifests(target, notes)) as manifests:
                files = _copy_all(copier, share(), manifests, lost)
    except OSError as error:
        with contextlib.suppress(OSError):
            rooms, wanted_bytes = look().live, total_bytes - target.total_bytes()
            left = {node: max(room - in_writing_bytes, 0) for node, room in rooms.items()}
            if _may_lack_room(error) and rooms and not fits(left, wanted_bytes, copies):
                lack = lack_of_room(rooms, wanted_bytes, copies, str(directory), in_writing_bytes)
                raise _full(lack) from error
        raise explained(error, "stage into", f"hdfs://{web}{path}") from error
    return StagingReport(files, copier.copied, total_files)


def fetch_output(web: str, path: str, directory: Path) -> int:
    """Copy all files below a path of an HDFS into a directory; how many there are. Safe to repeat.

    Args:
        web: host and port of WebHDFS.
        path: that scripts have written to, or not.
        directory: is made if there is anything.

    Raises:
        TrainmasterError: HDFS does not do as it should.
    """
    source, files = ObjectStore(f"hdfs://{web}{path}"), 0
    for key, _ in source.list():
        target = directory / key
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.writelines(source.blocks(key))
        files += 1
    return files


def forget(url: str, web: str) -> None:
    """Remove what was staged, so that it is staged again."""
    path = data_path(url)
    for each in (path, f"/trainmaster{path}"):
        _open(web, each).delete_all("")


class _Copier:
    """Copies files. Threads share it."""

    def __init__(
        self, store: ObjectStore, target: WebHdfsBackend, copies: int, progress: Callable[[int], None]
    ) -> None:
        self._store = store
        self._target = target
        self._copies = copies
        self._progress = progress
        self._guard = threading.Lock()
        self._large = threading.Semaphore(_LARGE_FILES)
        self._done_bytes = 0
        self._done: deque[StagedFile] = deque()
        self.copied = 0

    def keep(self, each: StoreObject) -> None:
        """One file is there already."""
        self._add(each.size_bytes, 0)

    def copy(self, each: StoreObject) -> None:
        """One file; whether HDFS has all of a small one, and as what, is for `looked_at`."""
        self._done.append(self._copied_as_it_is(each, looks=each.size_bytes > _PART_BYTES))
        self._add(0, 1)

    def take(self) -> list[StagedFile]:
        """What was copied since this was asked last."""
        return [self._done.popleft() for _ in range(len(self._done))]

    def looked_at(self, batch: Sequence[StagedFile]) -> Iterator[StagedFile]:
        """What HDFS has of files that were copied; it is asked once for all of a folder."""
        there: dict[str, ObjectDetail] = {}
        wanted = {each.path for each in batch if not each.version}
        for folder in {path.rpartition("/")[0] for path in wanted}:
            there |= {each.key: each for each in self._target.files(folder) if each.key in wanted}
        for each in batch:
            found = there.get(each.path)
            if found is not None and found.size_bytes == each.size_bytes:
                yield each._replace(version=found.etag)
            elif each.version:
                yield each
            else:
                self._add(-each.size_bytes, 0)
                yield self._copied_as_it_is(StoreObject(each.path, each.size_bytes, each.etag), looks=True)

    def _copied_as_it_is(self, each: StoreObject, *, looks: bool) -> StagedFile:
        """A file, in the version that it has just now."""
        for last in (*[False] * _CHANGES, True):
            try:
                with self._large if each.size_bytes > _PART_BYTES else contextlib.nullcontext():
                    return self._copied(each, looks=looks)
            except ObjectChangedError:
                info = self._store.info(each.key)
                if last or info is None:
                    raise
                each = StoreObject(each.key, info.size_bytes, info.etag)
        raise AssertionError("the last try returns or raises")

    def _copied(self, each: StoreObject, *, looks: bool) -> StagedFile:
        digest = hashlib.sha256()
        sent_bytes = 0

        def source() -> Iterator[memoryview]:
            nonlocal digest, sent_bytes
            digest = hashlib.sha256()  # a DataNode may die in the middle, and then all is sent once more
            self._add(-sent_bytes, 0)
            sent_bytes = 0
            for block in self._parts(each):
                digest.update(block)
                yield block
                sent_bytes += len(block)
                self._add(len(block), 0)

        there = self._target.write(
            each.key,
            source,
            each.size_bytes,
            looks=looks,
            blocksize=str(block_bytes(each.size_bytes)),
            replication=str(self._copies),
        )
        version = "" if there is None else there.etag
        return StagedFile(each.key, each.size_bytes, digest.hexdigest(), each.etag, version)

    def _parts(self, each: StoreObject) -> Iterator[memoryview]:
        starts = range(0, each.size_bytes, _PART_BYTES)

        def part(start: int) -> memoryview:
            length = min(_PART_BYTES, each.size_bytes - start)
            try:
                found = self._store.get_range(each.key, start, length, each.etag)
            except FileNotFoundError as error:
                raise ObjectChangedError(
                    f"{self._store.url_of(each.key)} is gone", "", self._store.url
                ) from error
            if len(found) != length:
                raise ObjectChangedError(f"{self._store.url_of(each.key)} is shorter", "", self._store.url)
            return found

        if len(starts) < 2:
            yield from map(part, starts)
            return
        with ThreadPoolExecutor(_AHEAD) as pool:
            yield from (block for _, block in in_order(pool, part, starts, _AHEAD))

    def _add(self, some_bytes: int, files: int) -> None:
        with self._guard:
            self._done_bytes += some_bytes
            self.copied += files
            self._progress(self._done_bytes)


def _open(web: str, path: str) -> WebHdfsBackend:
    return WebHdfsBackend(f"{web}{path}", user="trainmaster", scratch="/trainmaster/in-the-making")


def _take_listing(store: ObjectStore, notes: WebHdfsBackend, out: IO[bytes]) -> tuple[int, int, int]:
    """Get the listing that all nodes share; the first one makes it.

    Returns:
        How many objects, how many bytes, and of the largest.
    """
    if notes.info("listing.jsonl") is None:
        with tempfile.TemporaryFile() as found:
            for info in store.details():
                found.write(StoreObject(info.key, info.size_bytes, info.etag).line())
            if found.tell() == 0:
                raise UsageError(f"{store.url}: there are no objects below", "Look at the URL.")
            options = {"replication": str(_LISTING_COPIES), "blocksize": str(block_bytes(found.tell()))}
            notes.put_file_if_absent("listing.jsonl", found, **options)
    files = total_bytes = largest_bytes = 0
    for block in notes.blocks("listing.jsonl"):
        out.write(block)
    out.seek(0)
    for line in out:
        size_bytes = listed(line).size_bytes
        files, total_bytes = files + 1, total_bytes + size_bytes
        largest_bytes = max(largest_bytes, size_bytes)
    return files, total_bytes, largest_bytes


def _copy_all(
    copier: _Copier, share: Iterable[StoreObject], manifests: Manifests, lost: Collection[str]
) -> int:
    """Copy what is not there, and write down from time to time what is; how many files are whole then."""
    files = 0

    def missing() -> Iterator[StoreObject]:
        nonlocal files
        for each in share:
            files += 1
            if len(lost) < _MOST_NAMED and each.key not in lost and manifests.name(each):
                copier.keep(each)
            else:
                yield each

    def note() -> None:
        manifests.add(list(copier.looked_at(copier.take())))

    note_at_s = time.monotonic() + _NOTE_S
    with ThreadPoolExecutor(_FILES) as pool:
        try:
            for _ in in_order(pool, copier.copy, missing(), _QUEUED * _FILES):
                if (began_s := time.monotonic()) >= note_at_s:
                    note()
                    ended_s = time.monotonic()
                    note_at_s = ended_s + max(_NOTE_S, _PER_NOTE * (ended_s - began_s))
        except (OSError, TrainmasterError):
            pool.shutdown(cancel_futures=True)  # what is under way is waited for, and counts
            with contextlib.suppress(OSError, TrainmasterError):
                note()
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    note()
    return files


def _in_writing_bytes(largest_bytes: int) -> int:
    """Room that a DataNode keeps free for blocks that are being written: each for a whole one."""
    return block_bytes(largest_bytes) * (_LARGE_FILES if largest_bytes > _PART_BYTES else _FILES)


def _full(lack: str) -> FullStoreError:
    hint = "Free space there, or ask for machines with a larger `hardware.disk`, or for more of them."
    return FullStoreError(lack, hint)


def _may_lack_room(error: OSError) -> bool:
    """Where no DataNode takes a block any more, that is often for want of room."""
    return trouble_of(error) in (StoreTrouble.FULL, StoreTrouble.UNREACHABLE) or isinstance(
        error, NoDatanodeError
    )
