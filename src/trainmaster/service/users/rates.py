"""`Rates`: how often something may be asked, or how much of it, by whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from trainmaster.service.users.caller import TooOftenError

REQUESTS_PER_S: Final = 100.0
#: After a pause so many requests may come at once.
BURST: Final = 1000.0
_MOST_BUCKETS: Final = 10_000


class Rates:
    """A token bucket for each token, address or team: it fills steadily, and each request takes one out.

    Args:
        per_s: requests a second that go on and on.
        burst: what fits in.
        clock: monotonic seconds.
        told: what the limit is called; without, it is one of requests.
    """

    def __init__(
        self,
        per_s: float = REQUESTS_PER_S,
        burst: float = BURST,
        clock: Callable[[], float] = time.monotonic,
        told: str = "",
    ) -> None:
        self._per_s, self._burst, self._clock, self._told = per_s, burst, clock, told
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, key: str, amount: float = 1.0) -> None:
        """Count one request, or what it takes; 0 asks whether what was charged has come in again.

        Raises:
            TooOftenError: the bucket is empty.
        """
        with self._lock:
            now = self._clock()
            level = self._level(self._buckets.get(key, (self._burst, now)), now)
            if level < amount:
                raise TooOftenError(f"more than {self._rate()}", (amount - level) / self._per_s)
            self._put(key, level - amount, now)

    def charge(self, key: str, amount: float) -> None:
        """Count what is known afterwards only: who took more than there was waits longer the next time."""
        with self._lock:
            now = self._clock()
            self._put(key, self._level(self._buckets.get(key, (self._burst, now)), now) - amount, now)

    def _put(self, key: str, level: float, now: float) -> None:
        self._buckets[key] = (level, now)
        if len(self._buckets) > _MOST_BUCKETS:  # those that are full again say nothing
            kept = {k: b for k, b in self._buckets.items() if self._level(b, now) < self._burst}
            self._buckets = kept

    def _rate(self) -> str:
        if self._told:
            return self._told
        if self._per_s < 1:
            return f"one request in {1 / self._per_s:g} seconds"
        return f"{self._per_s:g} requests a second"

    def _level(self, bucket: tuple[float, float], now: float) -> float:
        return min(self._burst, bucket[0] + (now - bucket[1]) * self._per_s)
