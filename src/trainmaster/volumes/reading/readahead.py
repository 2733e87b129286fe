"""Fetching what a reader without a known order will probably want next."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.download import DOWNLOADER, Chunk
from trainmaster.volumes.reading.prefetch import depth_chunks
from trainmaster.volumes.reading.renewal import renew_after_fork

_MOST_CHUNKS = 8
# A run that was not continued, while others often were, is over.
_PATIENCE = 16


@dataclass(slots=True)
class _ChunkRun:
    """Chunks that are read in a row.

    Attributes:
        until: the last chunk that was asked for ahead.
        seen: when the reader came to its last chunk, in chunks that all readers came to.
        steps: from one chunk to the next.
    """

    until: int
    seen: int
    steps: int = 0


class ReadAhead:
    """Two chunks that are read in a row mean that the next ones are wanted too.

    Several files may be read at the same time: each is a run of its own, and all share what the line takes.

    Args:
        cache: where chunks go.
        chunk: describes one of the volume's by its number.
        count: how many it has.
    """

    def __init__(self, cache: ChunkCache, chunk: Callable[[int], Chunk], count: int) -> None:
        self._cache, self._chunk, self._count = cache, chunk, count
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._runs: dict[int, _ChunkRun] = {}  # by their last chunk
        self._seen = 0
        renew_after_fork(self)

    def saw(self, chunk: int, *, is_start: bool = False) -> None:
        """A reader has come to a chunk that it did not read just before; perhaps to its first bytes."""
        with self._mutex:
            run = self._followed(chunk, is_start)
            if run is None:
                return
            end = min(chunk + self._depth(), self._count - 1)
            wanted = range(max(run.until, chunk) + 1, end + 1)
            run.until = max(run.until, end)
            if wanted and self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_CHUNKS, thread_name_prefix="trainmaster-ahead")
            pool = self._pool
        for number in wanted:
            if pool is not None:
                pool.submit(self._fetch, number)

    def _followed(self, chunk: int, is_start: bool) -> _ChunkRun | None:
        """Notes where a reader is; gives the run that it goes on with, None if it may have begun one.

        Of those that read here and there some come to a chunk behind one that was read lately, too. They do
        not begin with its first bytes, nor go on with the next one.
        """
        self._seen += 1
        oldest = self._seen - _PATIENCE
        self._runs = {last: run for last, run in self._runs.items() if run.seen >= oldest}
        same = self._runs.pop(chunk, None)
        run = same or self._runs.pop(chunk - 1, None)
        if run is None:
            self._runs[chunk] = _ChunkRun(chunk, self._seen)
            return None
        is_last = run.seen == self._seen - 1
        run.seen, run.steps = self._seen, run.steps + (same is None)
        self._runs[chunk] = run
        return run if is_start or is_last or run.steps > 1 else None

    def _depth(self) -> int:
        slot_bytes = self._cache.slots.slot_bytes
        slots = self._cache.limit_bytes // slot_bytes
        readers = sum(run.until > last for last, run in self._runs.items()) or 1
        depth = min(depth_chunks(DOWNLOADER.limiter.ranges, slot_bytes, slots), _MOST_CHUNKS)
        return depth // readers  # none for so many, whose chunks would push each other out

    def _fetch(self, chunk: int) -> None:
        # What reads the chunk meets the same fault and hears of it.
        try:
            self._cache.obtain(self._chunk(chunk))
        except TrainmasterError:
            return

    def close(self) -> None:
        """Ends its threads, after what they are fetching."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def after_fork(self) -> None:
        """In a forked child: the threads stayed with the parent."""
        self._mutex, self._pool = threading.Lock(), None
