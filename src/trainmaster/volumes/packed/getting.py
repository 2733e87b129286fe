# ruff: noqa: PTH101, PTH103, PTH114, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Bringing a whole version to a directory: verified, whole or not at all, and resumable."""

import errno
import fcntl
import mmap
import os
import queue
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from trainmaster.artifacts.scratch import is_occupied, move_into_place, occupied
from trainmaster.dataclass import dataclass
from trainmaster.objects.errors import error_of, explaining, trouble_of, url_of
from trainmaster.objects.parallel import all_done
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.spec.processes import process_space
from trainmaster.volumes.errors import DamagedChunkError, DamagedVolumeError, SourceChangedError
from trainmaster.volumes.packed.chunk_source import chunk_buffer
from trainmaster.volumes.packed.hashes import file_digest
from trainmaster.volumes.packed.opening import OpenVolume
from trainmaster.volumes.packed.selecting import NEAR_BYTES, FetchPlan, FileExtent, Selection
from trainmaster.volumes.packed.table import Extent, FileTable

DEFAULT_JOBS = 4
# So much of several files is fetched and held at once.
_TOGETHER_BYTES = 8 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(slots=True)
class GetProgress:
    """How far a download is; read by others while it goes on.

    Attributes:
        total_bytes: all that is to be fetched.
        done_bytes: what of it has arrived, or was there already.
        file_count: files that were asked for.
        file_bytes: of them.
    """

    total_bytes: int = 0
    done_bytes: int = 0
    file_count: int = 0
    file_bytes: int = 0

    @property
    def shown(self) -> tuple[int, int]:
        """What a bar shows: done, and all of it."""
        return min(self.done_bytes, self.total_bytes), self.total_bytes


def get(
    volume: OpenVolume,
    directory: Path,
    *,
    only: Sequence[str] = (),
    jobs: int = DEFAULT_JOBS,
    progress: GetProgress | None = None,
) -> None:
    """Writes files of a version below a directory, which appears when it is complete.

    Each chunk, or each file of a chunk of which only a little is wanted, is proved by its hash before
    anything of it is written. A download that was killed, or that the store has failed, goes on where it
    was when it is asked for again.

    Args:
        volume: what to get.
        directory: absent or empty.
        only: paths of files and folders; they keep their places below the directory. Empty: everything.
        jobs: how many chunks are fetched at the same time.
        progress: filled in on the way.

    Raises:
        UsageError: the directory is not empty, or somebody else gets the same volume there.
        NotFoundError: at one of the paths is nothing.
        PublishError: something is missing or damaged, the disk is full, or the store fails.
    """
    target = Path(os.path.abspath(directory))  # noqa: PTH100 - of a link, not of what it points to
    if is_occupied(target):
        raise occupied(target)
    with explaining("write", str(target)):
        selection = Selection(volume, only)
        with _partial(target, volume.head.table_id[:16] + selection.name) as partial:
            _Download(volume, selection, partial, jobs, progress or GetProgress()).run()
            if not move_into_place(partial / "files", target):
                raise occupied(target)


def file_blocks(volume: OpenVolume, row: int) -> Iterator[memoryview]:
    """Gives the bytes of a file, proved: by its own hash if it lies in one chunk, else chunk by chunk.

    Raises:
        PublishError: something is missing or damaged, or the store fails.
    """
    expected = volume.table.file_hash(row)
    extents = volume.table.extents(row)
    if len(extents) == 1 and expected is not None:
        extent = extents[0]
        for is_last in (False, True):
            data = volume.chunks.fetch(*extent)
            if file_digest([data]) == expected:
                yield data
                return
            if is_last:
                raise DamagedChunkError(
                    f"{volume.uri}: {volume.table.path(row)!r} is damaged: its hash is another.",
                    "Use another version, or push again.",
                )
    for chunk, offset, length in extents:
        # Of an indexed volume nothing can be proved but the ETag, which every request does.
        if volume.table.chunk_hash(chunk) is None:
            yield volume.chunks.fetch(chunk, offset, length)
        else:
            yield volume.chunks.fetch_verified(chunk)[offset : offset + length]


def files_blocks(volume: OpenVolume, rows: Iterable[int]) -> Iterator[memoryview]:
    """Gives the bytes of several files, one after another, verified; neighbours in a chunk come together.

    Raises:
        PublishError: something is missing or damaged, or the store fails.
    """
    run: list[tuple[int, Extent]] = []
    for row in rows:
        extents = volume.table.extents(row)
        is_alone = len(extents) != 1 or volume.table.file_hash(row) is None
        if run and (is_alone or not _goes_on(run, extents[0])):
            yield from _run_blocks(volume, run)
            run = []
        if is_alone:
            yield from file_blocks(volume, row)
        else:
            run.append((row, extents[0]))
    yield from _run_blocks(volume, run)


def _goes_on(run: Sequence[tuple[int, Extent]], extent: Extent) -> bool:
    first, last = run[0][1], run[-1][1]
    gap = extent.offset - last.offset - last.length
    is_near = extent.chunk == last.chunk and 0 <= gap <= NEAR_BYTES
    return is_near and extent.offset + extent.length - first.offset <= _TOGETHER_BYTES


def _run_blocks(volume: OpenVolume, run: Sequence[tuple[int, Extent]]) -> Iterator[memoryview]:
    if not run:
        return
    first, last = run[0][1], run[-1][1]
    data = volume.chunks.fetch(first.chunk, first.offset, last.offset + last.length - first.offset)
    for row, extent in run:
        begin = extent.offset - first.offset
        block = data[begin : begin + extent.length]
        if file_digest([block]) == volume.table.file_hash(row):
            yield block
        else:  # it is read once more, and said if that does not help
            yield from file_blocks(volume, row)


@contextmanager
def _partial(target: Path, what: str) -> Iterator[Path]:
    """Gives a directory beside the target that stays when it is worth going on with it."""
    place = target.with_name(f".{target.name[:40]}.getting-{what}")
    (place / "files").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{target} is being written by another process.", "Wait for it.") from None
        except OSError as error:
            # Two that get it at once write the same proved bytes, and one finds the target full.
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        try:
            yield place
        except (DamagedVolumeError, SourceChangedError, UsageError):
            shutil.rmtree(place, ignore_errors=True)
            raise
        except PublishError as error:
            hint = f"{error.hint} What is there already ({place}) is used when you try again."
            raise error_of(trouble_of(error), error.args[0], hint, url_of(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(descriptor)


class _Download:
    def __init__(
        self, volume: OpenVolume, selection: Selection, partial: Path, jobs: int, progress: GetProgress
    ) -> None:
        self._uri = volume.uri
        self._table: FileTable = volume.table
        self._chunks = volume.chunks
        self._selection = selection
        self._root = os.fspath(partial / "files")
        # A machine that was lost may have written the marks of chunks to its disk, and not yet their files.
        self._done_path = partial / f"done-{process_space().partition(' ')[0]}"
        self._jobs = max(1, jobs)
        self._progress = progress
        progress.file_count, progress.file_bytes = selection.file_count, selection.total_bytes
        progress.total_bytes = sum(self._table.chunk_sizes[chunk] for chunk in selection.chunks)
        self._lock = threading.Lock()
        # Used again and again: memory that is touched for the first time costs more than a copy.
        self._buffers: queue.SimpleQueue[mmap.mmap | None] = queue.SimpleQueue()
        for _ in range(self._jobs):
            self._buffers.put(None)

    def run(self) -> None:
        table = self._table
        for row in range(table.root, table.row_count):
            if table.kind(row) == "directory" and self._selection.wanted[row]:
                os.makedirs(self._place(row), exist_ok=True)
        done = os.open(self._done_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._fetch_all(done)
        finally:
            os.close(done)
        self._finish()

    def _fetch_all(self, done: int) -> None:
        largest_bytes = max(self._table.chunk_sizes, default=1)
        # A byte per chunk, written after everything else of it was.
        state = os.pread(done, self._table.chunk_count, 0).ljust(self._table.chunk_count, b"\0")

        def one(chunk: int) -> None:
            plan = self._selection.plan(chunk)
            self._spared(self._chunks.size_bytes(chunk) - plan.size_bytes)
            if state[chunk]:
                self._arrived(plan.size_bytes)
                return
            buffer = self._buffers.get() or chunk_buffer(largest_bytes)
            try:
                data = self._fetched(chunk, plan, buffer)
                for piece in plan.pieces:
                    self._write_piece(piece, data[piece.offset : piece.offset + piece.length])
            finally:
                self._buffers.put(buffer)
            os.pwrite(done, b"\1", chunk)

        with ThreadPoolExecutor(self._jobs, "get") as pool:
            all_done(pool.submit(one, chunk) for chunk in self._selection.chunks)

    def _fetched(self, chunk: int, plan: FetchPlan, buffer: mmap.mmap) -> memoryview:
        """Reads what is wanted of a chunk, where it lies in it, and proves it; what is damaged once more."""
        data = memoryview(buffer)[: self._chunks.size_bytes(chunk)]
        for arrived in (self._arrived, _unheard):
            for start, end in plan.ranges:
                self._chunks.fetch_into(chunk, data[start:end], start, arrived)
            try:
                self._verify(chunk, plan, data)
            except DamagedChunkError:
                if arrived is _unheard:
                    raise
            else:
                break
        return data

    def _verify(self, chunk: int, plan: FetchPlan, data: memoryview) -> None:
        if plan.is_whole:
            self._chunks.verify(chunk, data)
            return
        for piece in plan.pieces:
            expected = self._table.file_hash(piece.row)
            # Of an indexed volume nothing can be proved but the ETag, which every request does.
            if piece.is_all and expected is not None:
                found = file_digest([data[piece.offset : piece.offset + piece.length]])
                if found != expected:
                    raise DamagedChunkError(
                        f"{self._uri}: {self._table.path(piece.row)!r} is damaged: its hash is another.",
                        "Use another version, or push again.",
                    )

    def _spared(self, count: int) -> None:
        with self._lock:
            self._progress.total_bytes -= count

    def _arrived(self, count: int) -> None:
        with self._lock:
            self._progress.done_bytes += count

    def _write_piece(self, piece: FileExtent, data: memoryview) -> None:
        descriptor, at = os.open(self._place(piece.row), _CREATE, 0o600), piece.begun
        try:
            while data:
                count = os.pwrite(descriptor, data, at)
                data, at = data[count:], at + count
            if piece.is_all:
                self._stamp(descriptor, piece.row)
        finally:
            os.close(descriptor)

    def _finish(self) -> None:
        table, wanted = self._table, self._selection.wanted
        for row in range(table.file_count):
            if not wanted[row]:
                continue
            size_bytes = table.sizes[row]
            is_whole = (
                size_bytes and table.offsets[row] + size_bytes <= table.chunk_sizes[table.first_chunks[row]]
            )
            if not is_whole:
                descriptor = os.open(self._place(row), _CREATE, 0o600)
                try:
                    self._stamp(descriptor, row)
                finally:
                    os.close(descriptor)
        # Links last: nothing was written through one. Times of directories after all that changes them.
        for row in range(table.row_count - 1, table.root - 1, -1):
            if not wanted[row]:
                continue
            place = self._place(row)
            times = (table.mtime_ns(row), table.mtime_ns(row))
            if table.kind(row) == "symlink":
                if not os.path.islink(place):
                    os.symlink(table.target_bytes(row), os.fsencode(place))
                os.utime(place, ns=times, follow_symlinks=False)
        for row in range(table.row_count - 1, table.root - 1, -1):
            if table.kind(row) == "directory" and wanted[row]:
                os.chmod(self._place(row), table.mode(row) | 0o700)
                if table.mtime_ns(row):
                    os.utime(self._place(row), ns=(table.mtime_ns(row), table.mtime_ns(row)))

    def _stamp(self, descriptor: int, row: int) -> None:
        # Readable and writable for its owner whatever it was: it is theirs to change or delete.
        os.fchmod(descriptor, self._table.mode(row) | 0o600)
        time_ns = self._table.mtime_ns(row)
        os.utime(descriptor, ns=(time_ns, time_ns))

    def _place(self, row: int) -> str:
        path = self._table.path(row)
        return f"{self._root}/{path}" if path else self._root


def _unheard(_count: int) -> None:
    """A second try was counted with the first."""
