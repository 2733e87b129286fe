"""Fetching what a reader without a known order will probably want next."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.reading.download import DOWNLOADER
from trainmaster.volumes.reading.prefetch import depth_chunks

if TYPE_CHECKING:
    from trainmaster.volumes.reading.volume import Volume

_MOST_CHUNKS = 8


class ReadAhead:
    """Two chunks in a row that follow each other mean that the next chunks are wanted too."""

    def __init__(self, volume: "Volume") -> None:
        self._volume = volume
        self._mutex = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._last = -2
        self._until = -1

    def saw(self, chunk: int) -> None:
        """A reader has come to a chunk that it did not read just before."""
        with self._mutex:
            if self._pid != os.getpid():  # the threads stayed with the parent
                self._pool, self._pid = None, os.getpid()
            follows = chunk in (self._last, self._last + 1)
            self._last = chunk
            if not follows:
                self._until = chunk
                return
            slots = self._volume.cache.limit_bytes // self._volume.cache.slots.slot_bytes
            depth = depth_chunks(DOWNLOADER.line.ranges, self._volume.cache.slots.slot_bytes, slots)
            end = min(chunk + min(depth, _MOST_CHUNKS), self._volume.table.chunk_count - 1)
            wanted = range(max(self._until, chunk) + 1, end + 1)
            self._until = max(self._until, end)
            if wanted and self._pool is None:
                self._pool = ThreadPoolExecutor(_MOST_CHUNKS, thread_name_prefix="trainmaster-ahead")
            pool = self._pool
        for number in wanted:
            if pool is not None:
                pool.submit(self._fetch, number)

    def _fetch(self, chunk: int) -> None:
        # Whoever reads the chunk meets the same fault and hears of it.
        try:
            self._volume.cache.obtain(self._volume.chunk(chunk))
        except TrainmasterError:
            return

    def close(self) -> None:
        """Ends its threads, after what they are fetching."""
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=True, cancel_futures=True)
