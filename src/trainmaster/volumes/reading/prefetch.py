"""How much to fetch ahead. Pure but for a lock around what was measured."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RANGE_BYTES = 8 << 20
_LEAST_RANGES, _MOST_RANGES = 8, 64
# A store that needs 40 ms for its first answer gets 18 requests at once from the start, a far one 32:
# until trying has found as many, an epoch of a gigabyte is over.
_FIRST_RANGES, _RANGES_PER_S = 32, 250
_WIDE = 4
# A round is so many times what is let through at once; twice of that must bring so much more.
_ROUND = 2
_WORTH_IT = 1.2
_REST_S = 5.0


class Line:
    """Latency and bandwidth of the way to the store, from requests as they are made.

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
        self._fewer = threading.Condition(self._mutex)
        self._waiting = 0
        self._most = self._proven = _LEAST_RANGES
        self._proven_bytes_per_s = 0.0
        self._is_known = False
        self._round: tuple[float, int, int] | None = None
        self._rest_until_s = 0.0
        self._small_s: list[float] = []
        self._in_flight = 0
        self._since = 0.0
        self._busy_s = 0.0
        self._bytes = 0.0

    def begin(self) -> None:
        """A request is on its way, as soon as there is room for it in the line.

        More at once would not bring more, only all of them later, the first one too.
        """
        with self._mutex:
            self._waiting += 1
            while self._in_flight >= self._most:
                self._fewer.wait()
            self._waiting -= 1
            if self._in_flight == 0:
                self._since = self._clock()
            self._in_flight += 1

    def end(self) -> None:
        """It came back, or failed."""
        with self._mutex:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._busy_s += self._clock() - self._since
            self._fewer.notify()

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
            self._round = None
            self._fewer.notify_all()

    def heard(self, ranges: int) -> None:
        """Notes how many requests at once another process has found right, which fetches for this one."""
        with self._mutex:
            self._most = ranges

    def saw(self, size_bytes: int, seconds: float) -> None:
        """Notes what a request brought, and how long it took."""
        with self._mutex:
            self._bytes += size_bytes
            self._judge(size_bytes)
            if size_bytes < _RANGE_BYTES // 8:
                self._small_s = [*self._small_s[-7:], seconds]
            if self._busy_s > 60:
                self._busy_s /= 2
                self._bytes /= 2

    def _judge(self, size_bytes: int) -> None:
        """Compares this many requests at once with fewer, while there are always enough of them."""
        now_s = self._clock()
        if self._waiting == 0 or now_s < self._rest_until_s:
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
        self._fewer.notify_all()

    @property
    def ranges(self) -> int:
        """How many requests are let through at once."""
        return self._most

    @property
    def latency_s(self) -> float:
        """Seconds to the first byte; 0 while nothing is known."""
        with self._mutex:
            return min(self._small_s, default=0.0)

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes per second while fetching; 0 while nothing is known."""
        with self._mutex:
            busy_s = self._busy_s
            if self._in_flight:
                busy_s += self._clock() - self._since
            return self._bytes / busy_s if busy_s > 0 else 0.0


def depth_chunks(ranges: int, chunk_bytes: int, slots: int, readers: int = 1) -> int:
    """Says how many chunks to have under way at once.

    As many as the ranges of 8 MiB that the line takes lie in; one chunk more, so that the line
    stays full while another is verified; never more than half of the cache's share of one reader.

    >>> depth_chunks(16, 64 << 20, slots=100), depth_chunks(16, 8 << 20, slots=100)
    (3, 17)
    >>> depth_chunks(16, 1 << 20, slots=4)
    2
    """
    most = max(1, slots // (2 * max(readers, 1)))
    return max(1, min(math.ceil(ranges * _RANGE_BYTES / max(chunk_bytes, 1)) + 1, most))


def soonest(uses: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Gives the chunks that are used next, each once, by first use: as many as fit the cache.

    >>> soonest(np.array([4, 4, 1, 4, 2, 1, 9]), 3)
    array([4, 1, 2])
    """
    _, index = np.unique(uses, return_index=True)
    return uses[np.sort(index)[: max(count, 1)]]


@dataclass(frozen=True, slots=True)
class Plan:
    """The chunks that an order of samples uses.

    Attributes:
        chunks: one for each use, by position.
        positions: which sample uses it.
    """

    chunks: NDArray[np.int64]
    positions: NDArray[np.int64]


def planned(
    first_chunks: NDArray[np.int64], counts: NDArray[np.int64] | None = None, *, gap: int = 64
) -> Plan:
    """Makes a plan, in which of uses of a chunk that follow closely only the first and last remain.

    Between them nobody would evict it, and a plan becomes far smaller than the order.

    Args:
        first_chunks: the first chunk of each sample, in the order in which they are read.
        counts: in how many chunks each lies; None: in one.
        gap: how many samples apart uses may be that count as close.

    >>> plan = planned(np.array([4, 4, 4, 1, 4, 2, 1]), gap=2)
    >>> plan.chunks.tolist(), plan.positions.tolist()
    ([4, 1, 4, 2, 1], [0, 3, 4, 5, 6])
    """
    chunks, positions = first_chunks, np.arange(len(first_chunks), dtype=np.int64)
    if counts is not None and len(counts) and int(counts.max()) > 1:
        positions = np.repeat(positions, counts)
        begins = np.cumsum(counts) - counts
        chunks = np.repeat(first_chunks - begins, counts) + np.arange(len(positions))
    if not len(chunks):
        return Plan(chunks, positions)
    order = np.lexsort((positions, chunks))
    cuts = (np.diff(chunks[order]) != 0) | (np.diff(positions[order]) > gap)
    kept = np.concatenate(([True], cuts)) | np.concatenate((cuts, [True]))
    uses = np.sort(order[kept])
    return Plan(chunks[uses], positions[uses])
