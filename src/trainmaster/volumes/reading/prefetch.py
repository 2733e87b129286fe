"""How much to fetch ahead. Pure but for a lock around what was measured."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.ma  # `np.unique` would import it in the middle of an epoch
from numpy.typing import NDArray

from trainmaster.dataclass import dataclass

RANGE_BYTES = 8 << 20
# A new connection is slow: it sends some KB in its first round trip, and twice as many in each that follows.
# So what is wanted first comes in small ranges, over many connections at once.
_SMALL_BYTES, _SMALL_TOTAL_BYTES = 2 << 20, 256 << 20
# A near store that has just been asked for what a volume is has answered sooner.
_FAR_S = 0.03
_LEAST_RANGES, _MOST_RANGES = 8, 64
# A store that needs 40 ms for its first answer gets 18 requests at once from the start, a far one 32:
# until trying has found as many, an epoch of a gigabyte is over.
_FIRST_RANGES, _RANGES_PER_S = 32, 250
_WIDE = 4
# A round is so many times what is let through at once; twice of that must bring so much more.
_ROUND = 2
_WORTH_IT = 1.2
_REST_S, _FIRST_REST_S = 5.0, 2.0


class ConcurrencyLimiter:
    """Limits how many requests to the store run at once, from the latency and bandwidth that they have.

    Latency is the least time that a small request took lately; bandwidth is what came in while
    at least one request was under way. Both forget: half of what they know within a minute.

    How many requests are let through at once is guessed from the first answer, then found by
    trying. Some stores give each connection a share of its own, and twice as many bring twice as
    much; on a line that is full they only bring it later. So from time to time twice as many are
    let through, which stays so if they have brought more.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        #: What waits, in its order: how many bytes each wants, and what is released when it may go.
        self._queue: deque[tuple[int, threading.Lock]] = deque()
        self._most = self._proven = _LEAST_RANGES
        self._proven_bytes_per_s = 0.0
        self._is_known = False
        self._round: tuple[float, int, int] | None = None
        self._rest_until_s = 0.0
        self._in_flight = self._in_flight_bytes = 0
        self._small_bytes = 0
        self._expected_s = 0.0

    def expect(self, answer_s: float) -> None:
        """Notes how long somebody else's first questions to the store took, in a few round trips."""
        with self._mutex:
            self._expected_s = max(self._expected_s, answer_s)

    def cut(self, size_bytes: int) -> int:
        """Says in ranges of which size to ask for so many bytes."""
        with self._mutex:
            is_near = self._expected_s < _FAR_S
            if is_near or self._is_known or self._small_bytes >= _SMALL_TOTAL_BYTES:
                return RANGE_BYTES
            self._small_bytes += size_bytes
            return _SMALL_BYTES

    def begin(self, size_bytes: int = RANGE_BYTES) -> None:
        """A request is on its way, as soon as there is room for it in the line.

        More at once would not bring more, only all of them later, the first one too.
        """
        turn = threading.Lock()
        turn.acquire()
        with self._mutex:
            self._queue.append((size_bytes, turn))
            self._admit()
        turn.acquire()

    def end(self, size_bytes: int = RANGE_BYTES) -> None:
        """It came back, or failed."""
        with self._mutex:
            self._in_flight -= 1
            self._in_flight_bytes -= size_bytes
            self._admit()

    def _admit(self) -> None:
        """Lets go what has waited longest: what is used first was asked for first."""
        while self._queue and self._has_room(self._queue[0][0]):
            size_bytes, turn = self._queue.popleft()
            self._in_flight += 1
            self._in_flight_bytes += size_bytes
            turn.release()

    def _is_short(self) -> bool:
        return bool(self._queue)

    def _has_room(self, size_bytes: int) -> bool:
        if self._in_flight_bytes + size_bytes > self._most * RANGE_BYTES and self._in_flight:
            return False
        return self._in_flight < max(self._most, _FIRST_RANGES)

    def answered(self, answer_s: float, early_s: float) -> None:
        """Notes how an answer came; the first one tells how far the store is.

        Args:
            answer_s: seconds until it began.
            early_s: seconds from then until its first MiB was there. Even on a wide line that takes
                some round trips; more of them mean a narrow one, where more requests only wait longer.
        """
        with self._mutex:
            if self._is_known:
                return
            self._is_known = True
            if early_s > _WIDE * answer_s:
                return
            self._most = min(_LEAST_RANGES + int(answer_s * _RANGES_PER_S), _FIRST_RANGES)
            if self._most == _FIRST_RANGES:  # new connections would be slow just when these have become quick
                self._rest_until_s = self._clock() + _FIRST_REST_S
            self._round = None
            self._admit()

    def heard(self, ranges: int) -> None:
        """Notes how many requests at once another process has found right, which fetches for this one."""
        with self._mutex:
            self._most = ranges
            self._admit()

    def saw(self, size_bytes: int) -> None:
        """Notes what a request brought."""
        with self._mutex:
            self._judge(size_bytes)

    def _judge(self, size_bytes: int) -> None:
        """Compares this many requests at once with fewer, while there are always enough of them."""
        now_s = self._clock()
        if not self._is_short() or now_s < self._rest_until_s:
            self._round = None
            return
        if self._round is None:
            self._round = (now_s, 0, 0)
            return
        began_s, seen_bytes, requests = self._round
        self._round = (began_s, seen_bytes + size_bytes, requests + 1)
        if requests + 1 < _ROUND * self._most:
            return
        bytes_per_s = (seen_bytes + size_bytes) / max(now_s - began_s, 1e-9)
        self._round = None
        if self._most > self._proven and bytes_per_s < _WORTH_IT * self._proven_bytes_per_s:
            self._most = self._proven
            self._rest_until_s = now_s + _REST_S
            return
        self._proven, self._proven_bytes_per_s = self._most, bytes_per_s
        self._most = min(2 * self._most, _MOST_RANGES)
        self._admit()

    @property
    def ranges(self) -> int:
        """How many requests are let through at once."""
        return self._most


def depth_chunks(ranges: int, chunk_bytes: int, slots: int, readers: int = 1) -> int:
    """Says how many chunks to have under way at once.

    As many as the ranges of 8 MiB that the line takes lie in, on a far one up to twice as many, for
    the last ranges of a chunk come when others wait already; one chunk more, so that the line stays
    full while another is verified; never more than half of the cache's share of one reader.

    >>> [depth_chunks(ranges, 64 << 20, slots=100) for ranges in (8, 16, 32)]
    [2, 4, 8]
    >>> depth_chunks(16, 1 << 20, slots=4)
    2
    """
    most = max(1, slots // (2 * max(readers, 1)))
    return max(1, min(math.ceil((2 * ranges - _LEAST_RANGES) * RANGE_BYTES / max(chunk_bytes, 1)) + 1, most))


def soonest(uses: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Gives the chunks that are used next, each once, by first use: as many as fit the cache.

    >>> soonest(np.array([4, 4, 1, 4, 2, 1, 9]), 3)
    array([4, 1, 2])
    """
    _, index = np.unique(uses, return_index=True)
    return uses[np.sort(index)[: max(count, 1)]]


@dataclass(frozen=True, slots=True)
class PrefetchPlan:
    """The chunks that an order of samples uses.

    Attributes:
        chunks: one for each use, by position.
        positions: when it is used. Where each sample lies in one chunk they count samples; else they
            count uses, for a large sample is in use for long, and most of its chunks only at the end.
        begins: position at which each sample begins; None: its number.
    """

    chunks: NDArray[np.int64]
    positions: NDArray[np.int64]
    begins: NDArray[np.int64] | None = None

    def span(self, sample: int) -> tuple[int, int]:
        """Gives the positions of a sample: its first, and the first behind it.

        >>> planned(np.array([4, 7]), np.array([3, 1])).span(1)
        (3, 4)
        """
        if self.begins is None:
            return sample, sample + 1
        return int(self.begins[sample]), int(self.begins[sample + 1])

    def reached(self, chunk: int, begin: int, end: int) -> int:
        """Gives the position of a chunk's first use between two positions; -1 if it is not used there.

        >>> planned(np.array([4, 7]), np.array([3, 1])).reached(6, 0, 3)
        2
        """
        first, last = np.searchsorted(self.positions, (begin, end))
        found = np.flatnonzero(self.chunks[first:last] == chunk)
        return int(self.positions[first + found[0]]) if len(found) else -1


def planned(
    first_chunks: NDArray[np.int64], counts: NDArray[np.int64] | None = None, *, gap: int = 64
) -> PrefetchPlan:
    """Makes a plan, in which of uses of a chunk that follow closely only the first and last remain.

    Between them it would not be evicted, and a plan becomes far smaller than the order.

    Args:
        first_chunks: the first chunk of each sample, in the order in which they are read.
        counts: in how many chunks each lies; None: in one.
        gap: how many positions apart uses may be that count as close.

    >>> plan = planned(np.array([4, 4, 4, 1, 4, 2, 1]), gap=2)
    >>> plan.chunks.tolist(), plan.positions.tolist()
    ([4, 1, 4, 2, 1], [0, 3, 4, 5, 6])
    """
    chunks, positions, begins = first_chunks, np.arange(len(first_chunks), dtype=np.int64), None
    if counts is not None and len(counts) and int(counts.max()) > 1:
        begins = np.concatenate(([0], np.cumsum(counts)))
        positions = np.arange(begins[-1], dtype=np.int64)
        chunks = np.repeat(first_chunks - begins[:-1], counts) + positions
    if not len(chunks):
        return PrefetchPlan(chunks, positions, begins)
    order = np.lexsort((positions, chunks))
    cuts = (np.diff(chunks[order]) != 0) | (np.diff(positions[order]) > gap)
    kept = np.concatenate(([True], cuts)) | np.concatenate((cuts, [True]))
    uses = np.sort(order[kept])
    return PrefetchPlan(chunks[uses], positions[uses], begins)
