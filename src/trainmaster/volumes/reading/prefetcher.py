"""Fetches chunks before they are needed, in the order in which a reader will use them."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from trainmaster.spec.errors import TrainmasterError
from trainmaster.volumes.errors import NoRoomError
from trainmaster.volumes.reading.download import DOWNLOADER
from trainmaster.volumes.reading.orders import AnnouncedOrder
from trainmaster.volumes.reading.prefetch import PrefetchPlan, depth_chunks, soonest

if TYPE_CHECKING:
    from trainmaster.volumes.reading.volume import Volume

_MOST_AT_ONCE = 32
_LOOK_AGAIN_S = 0.1
_USES_PER_SLOT = 8
# Small samples are reported now and then, as many bytes apart.
_TELL_BYTES, _TELL_SAMPLES = 8 << 20, 16
# How much the newest step counts in the mean of seconds per sample.
_NEWEST = 0.2


class Prefetcher:
    """One reader's way through a plan: announced to the cache, and fetched ahead.

    It keeps the chunks that will be used next in half of the slots. The other half keeps what
    will be used again, by Belady's rule: all slots ahead would mean to fetch everything anew in
    each epoch. Never does a chunk go that another reader will use sooner. What fails here
    is met, and told, by what reads it.

    Args:
        volume: whose chunks.
        plan: which, and when.
        turn: which of the readers of the same plan this is, and how many there are; each
            fetches its part.

    Attributes:
        every: of so many samples the reader should tell of one.
    """

    def __init__(self, volume: "Volume", plan: PrefetchPlan, turn: tuple[int, int] = (0, 1)) -> None:
        self._volume = volume
        self._cache = volume.cache
        self._prefixes = volume.chunk_prefixes()
        self._order = AnnouncedOrder(self._cache.orders, self._prefixes[plan.chunks], plan.positions)
        self._plan, self._turn = plan, turn
        mean_bytes = volume.table.total_bytes // max(len(volume), 1)
        self.every = max(1, min(_TELL_SAMPLES, _TELL_BYTES // max(mean_bytes, 1)))
        if plan.begins is not None:  # one of the next may be a large one
            self.every = 1
        self._position = self._sample_end = 0
        # Uses in the present sample, not all before which have been seen: its end is often looked at first.
        self._seen: set[int] = set()
        self._seconds_per_position = 1e-3
        self._moved_s = time.monotonic()
        self._in_flight: set[int] = set()
        self._failed: set[int] = set()
        self._slots = self._cache.limit_bytes // self._cache.slots.slot_bytes
        self._chunk_bytes = int(np.max(volume.table.chunk_sizes, initial=1))
        self._full_at, self._full_until_s = -1, 0.0
        self._stopped = False
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="trainmaster-prefetch")
        self._thread = threading.Thread(target=self._run, name="trainmaster-prefetcher", daemon=True)
        self._thread.start()

    def advance(self, sample: int) -> None:
        """Says which sample the reader has come to; call it every few samples."""
        if not self.is_here:
            return
        with self._changed:
            begin, self._sample_end = self._plan.span(sample)
            self._seen.clear()
            self._move(begin)

    def saw(self, chunk: int) -> None:
        """Says which chunk of its sample the reader has come to."""
        if self._plan.begins is None or not self.is_here:
            return
        with self._changed:
            self._seen.add(self._plan.reached(chunk, self._position, self._sample_end))
            position = self._position
            while position + 1 in self._seen:
                position += 1
            self._move(position)

    @property
    def is_here(self) -> bool:
        """False in a forked child: threads and locks are the parent's."""
        return self._pid == os.getpid()

    def _move(self, position: int) -> None:
        now_s, moved = time.monotonic(), position - self._position
        if moved <= 0:
            return
        each_s = (now_s - self._moved_s) / moved
        self._seconds_per_position += _NEWEST * (each_s - self._seconds_per_position)
        self._moved_s, self._position = now_s, position
        self._order.advance(position, self._seconds_per_position)
        self._changed.notify()

    def close(self) -> None:
        """Stops fetching and takes the order back."""
        if not self.is_here:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()
        # What is under way is on its way to the cache, where the next epoch will find it.
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._order.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                if not self._step():
                    # The reader moving on, or a chunk coming in, wakes us.
                    self._changed.wait(_LOOK_AGAIN_S)

    def _step(self) -> bool:
        """Starts the next fetch; says whether there may be another to start."""
        if len(self._in_flight) >= self._depth():
            return False
        if self._position == self._full_at and time.monotonic() < self._full_until_s:
            return False
        # Always from the reader on: what was there before may have been evicted.
        start = int(np.searchsorted(self._plan.positions, self._position))
        uses = self._plan.chunks[start : start + _USES_PER_SLOT * self._slots]
        upcoming = soonest(uses, self._slots // 2)
        missing = ~self._cache.resident(self._prefixes[upcoming])
        end = int(np.searchsorted(self._plan.positions, self._sample_end))
        present = set(self._plan.chunks[start:end].tolist())  # these have no other waiters
        for chunk in upcoming[missing].tolist():
            if (
                chunk not in self._in_flight
                and chunk not in self._failed
                and (chunk % self._turn[1] == self._turn[0] or chunk in present)
            ):
                self._in_flight.add(chunk)
                self._pool.submit(self._fetch, chunk)
                return True
        return False

    def _depth(self) -> int:
        depth = depth_chunks(DOWNLOADER.limiter.ranges, self._chunk_bytes, self._slots, self._turn[1])
        return min(depth, _MOST_AT_ONCE)

    def _fetch(self, chunk: int) -> None:
        no_room = failed = False
        try:
            self._cache.obtain(self._volume.chunk(chunk), ahead=True)
        except NoRoomError:
            no_room = True
        except TrainmasterError:
            failed = True
        with self._changed:
            self._in_flight.discard(chunk)
            if failed:
                self._failed.add(chunk)
            if no_room:  # until the reader moves, or others that share the cache do
                self._full_at, self._full_until_s = self._position, time.monotonic() + _LOOK_AGAIN_S
            self._changed.notify()
