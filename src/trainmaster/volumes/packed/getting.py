# ruff: noqa: PTH101, PTH103, PTH114, PTH211
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Bringing a whole version to a directory: verified, whole or not at all, and resumable."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.volumes.objects import explained
from trainmaster.volumes.packed.faults import DamagedChunkError, DamagedVolumeError, SourceChangedError
from trainmaster.volumes.packed.hashes import file_digest
from trainmaster.volumes.packed.opening import OpenVolume
from trainmaster.volumes.packed.table import FileTable
from trainmaster.volumes.scratch import move_into_place

DEFAULT_JOBS = 4
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(slots=True)
class GetProgress:
    """How far a download is; read by others while it goes on.

    Attributes:
        total_bytes: of all chunks.
        done_bytes: of those that are on the disk.
    """

    total_bytes: int = 0
    done_bytes: int = 0


def get(
    volume: OpenVolume, directory: Path, *, jobs: int = DEFAULT_JOBS, progress: GetProgress | None = None
) -> None:
    """Writes all files of a version below a directory, which appears when it is complete.

    Each chunk is proved by its hash before anything of it is written. A download that was
    killed, or that the store has failed, goes on where it was when it is asked for again.

    Args:
        volume: what to get.
        directory: absent or empty.
        jobs: how many chunks are fetched at the same time.
        progress: filled in on the way.

    Raises:
        UsageError: the directory is not empty, or somebody else gets the same volume there.
        PublishError: something is missing or damaged, the disk is full, or the store fails.
    """
    target = Path(os.path.abspath(directory))  # noqa: PTH100 - of a link, not of what it points to
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{target} is not empty.", "Give another directory; nothing was changed.")
    try:
        with _partial(target, volume.head.table_id) as partial:
            _Download(volume, partial, jobs, progress or GetProgress()).run()
            if not move_into_place(partial / "files", target):
                raise UsageError(f"{target} is not empty.", "Give another directory; nothing was changed.")
    except OSError as error:
        raise explained(error, "write", str(target)) from error


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


@contextmanager
def _partial(target: Path, table_id: str) -> Iterator[Path]:
    """Gives a directory beside the target that stays when it is worth going on with it."""
    place = target.with_name(f".{target.name[:40]}.getting-{table_id[:16]}")
    (place / "files").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{target} is being written by another process.", "Wait for it.") from None
        try:
            yield place
        except (DamagedVolumeError, SourceChangedError, UsageError):
            shutil.rmtree(place, ignore_errors=True)
            raise
        except PublishError as error:
            hint = f"{error.hint} What is there already ({place}) is used when you try again."
            raise PublishError(error.args[0], hint) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                shutil.rmtree(place, ignore_errors=True)
            raise
        shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(descriptor)


class _Download:
    def __init__(self, volume: OpenVolume, partial: Path, jobs: int, progress: GetProgress) -> None:
        self._table: FileTable = volume.table
        self._chunks = volume.chunks
        self._root = os.fspath(partial / "files")
        self._done_path = partial / "done"
        self._jobs = max(1, jobs)
        self._progress = progress
        progress.total_bytes = sum(self._table.chunk_sizes)

    def run(self) -> None:
        table = self._table
        for row in range(table.root, table.row_count):
            if table.kind(row) == "directory":
                os.makedirs(self._place(row), exist_ok=True)
        done = os.open(self._done_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._fetch_all(done)
        finally:
            os.close(done)
        self._finish()

    def _fetch_all(self, done: int) -> None:
        # A byte per chunk, written after everything else of it was.
        state = os.pread(done, self._table.chunk_count, 0).ljust(self._table.chunk_count, b"\0")

        def one(chunk: int) -> None:
            if state[chunk] == 0:
                self._write(chunk, self._chunks.fetch_verified(chunk))
                os.pwrite(done, b"\1", chunk)
            self._progress.done_bytes += self._chunks.size_bytes(chunk)

        with ThreadPoolExecutor(self._jobs, "get") as pool:
            futures = [pool.submit(one, chunk) for chunk in range(self._table.chunk_count)]
            try:
                for future in futures:
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _write(self, chunk: int, data: memoryview) -> None:
        table = self._table
        rows = table.rows_of_chunk(chunk)
        # What began in an earlier chunk may go on in this one; only the last file with bytes can.
        first = rows.start - 1
        while first >= 0 and table.sizes[first] == 0:
            first -= 1
        for row in (*((first,) if first >= 0 else ()), *rows):
            begun = 0
            extents = table.extents(row)
            for number, offset, length in extents:
                if number == chunk:
                    piece = data[offset : offset + length]
                    self._write_piece(row, begun, piece, is_whole=len(extents) == 1)
                begun += length

    def _write_piece(self, row: int, at: int, piece: memoryview, *, is_whole: bool) -> None:
        descriptor = os.open(self._place(row), _CREATE, 0o600)
        try:
            while piece:
                count = os.pwrite(descriptor, piece, at)
                piece, at = piece[count:], at + count
            if is_whole:
                self._stamp(descriptor, row)
        finally:
            os.close(descriptor)

    def _finish(self) -> None:
        table = self._table
        for row in range(table.file_count):
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
            place = self._place(row)
            times = (table.mtime_ns(row), table.mtime_ns(row))
            if table.kind(row) == "symlink":
                if not os.path.islink(place):
                    os.symlink(table.target_bytes(row), os.fsencode(place))
                os.utime(place, ns=times, follow_symlinks=False)
        for row in range(table.row_count - 1, table.root - 1, -1):
            if table.kind(row) == "directory":
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
