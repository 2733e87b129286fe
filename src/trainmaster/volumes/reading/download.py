"""Chunks from the store into slots: ranges in parallel, with the line measured on the way."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from trainmaster.dataclass import dataclass
from trainmaster.objects.parallel import all_done
from trainmaster.volumes.reading.forked import SharedSource, helper, write_all
from trainmaster.volumes.reading.prefetch import ConcurrencyLimiter
from trainmaster.volumes.reading.renewal import renew_after_fork


class RangeSource(Protocol):
    """What gives the bytes of chunks; safe to use from several threads."""

    def blocks(self, chunk: int, start: int, length: int) -> Iterator[memoryview]:
        """Reads exactly these bytes of a chunk from the store.

        Where the way to the store can be timed, an empty block comes first, when it answers, and the next
        one when the first MiB is there.
        """
        ...

    def verify(self, chunk: int, data: memoryview) -> None:
        """Raises a PublishError if these are not the bytes of the chunk."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a volume.

    Attributes:
        source: where its bytes come from.
        number: which chunk of the source it is.
        key: 32 bytes that are equal for equal content: its hash.
        size_bytes: of the whole chunk.
    """

    source: RangeSource
    number: int
    key: bytes
    size_bytes: int

    @property
    def prefix(self) -> int:
        """The number by which announced orders name it."""
        return int.from_bytes(self.key[:8], "little")


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a chunk lies in the cache.

    Attributes:
        slot: number of the slot.
        stamp: the slot's stamp while this is true; a slot with another one holds something else.
    """

    slot: int
    stamp: int


Write = Callable[[int, memoryview], None]

# More than a line lets through, so that somebody is always waiting where it is full.
_THREADS = 72
# A small request now and then tells the latency apart from the bandwidth.
_PROBE_BYTES = 64 << 10
_PROBE_EVERY = 8
# How the first MiB of a range comes tells how wide the line is; a shorter one tells nothing.
_TIMED_BYTES = 1 << 20


class Downloader:
    """Fetches ranges for all chunk caches of a process.

    Attributes:
        line: what was measured of the way to the store.
    """

    def __init__(self) -> None:
        self.limiter = ConcurrencyLimiter()
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._chunks = 0
        renew_after_fork(self)

    def fill_slot(self, chunk: Chunk, path: str, offset: int, write: Write) -> None:
        """Fetches a chunk into a file: from here, or through a helper where this process cannot.

        Args:
            chunk: which.
            path: of the file.
            offset: of the chunk's first byte in it.
            write: writes there, from here.
        """
        if isinstance(chunk.source, SharedSource) and chunk.source.needs_help:
            seen = helper().ask(_fill, chunk.source, chunk.number, chunk.size_bytes, path, offset)
            self.limiter.heard(seen)
        else:
            self.fill(chunk, write)

    def fill(self, chunk: Chunk, write: Write) -> None:
        """Fetches a chunk and hands over its parts, in any order, from several threads.

        Args:
            chunk: which.
            write: takes an offset and the bytes that belong there.
        """
        pool = self._started()
        with self._mutex:
            probe = self._chunks % _PROBE_EVERY == 0 and chunk.size_bytes > 4 * _PROBE_BYTES
            self._chunks += 1
        starts = list(range(0, chunk.size_bytes, self.limiter.cut(chunk.size_bytes)))
        ends = [*starts[1:], chunk.size_bytes]
        if probe and ends[-1] - starts[-1] > _PROBE_BYTES:
            # First, while the line is free; from the end, so that whole pages are written from the start.
            tail = chunk.size_bytes - _PROBE_BYTES
            starts, ends = [tail, *starts], [chunk.size_bytes, *ends[:-1], tail]

        def part(start: int, end: int) -> None:
            self.limiter.begin(end - start)
            place, asked_s, answered_s = start, time.perf_counter(), 0.0
            try:
                # Written while it is in the processor's cache; the store is as fast as that or slower.
                for block in chunk.source.blocks(chunk.number, start, end - start):
                    now_s = time.perf_counter()
                    if not len(block):
                        answered_s = now_s
                        continue
                    if answered_s and place == start and len(block) >= _TIMED_BYTES:
                        self.limiter.answered(answered_s - asked_s, now_s - answered_s)
                    write(place, block)
                    place += len(block)
            finally:
                self.limiter.end(end - start)
            self.limiter.saw(end - start)

        # All of them: a slot must not be written once it was given up.
        all_done(pool.submit(part, start, end) for start, end in zip(starts, ends, strict=True))

    def _started(self) -> ThreadPoolExecutor:
        with self._mutex:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="trainmaster-download")
            return self._pool

    def after_fork(self) -> None:
        """In a forked child: the threads stayed with the parent."""
        self._mutex = threading.Lock()
        self._pool = None
        self.limiter = ConcurrencyLimiter()


DOWNLOADER = Downloader()


def _fill(source: SharedSource, chunk: int, size_bytes: int, path: str, offset: int) -> int:
    """In a helper: writes a chunk into a file; gives how many requests are let through at once by now."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        DOWNLOADER.fill(
            Chunk(source, chunk, b"", size_bytes),
            lambda start, data: write_all(descriptor, data, offset + start),
        )
        return DOWNLOADER.limiter.ranges
    finally:
        os.close(descriptor)
