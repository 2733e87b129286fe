"""`Rates` and `Streams`: how much of one process a caller may take, and until when a stream goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

from starlette.concurrency import run_in_threadpool

from trainmaster.service.users.caller import ForbiddenError, TooOftenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.users.caller import Caller

T = TypeVar("T")

REQUESTS_PER_S: Final = 100.0
#: After a pause so many requests may come at once.
BURST: Final = 1000.0
#: Of what nobody known asks from one address the audit has so much, and fewer logins are begun: they never
#: take all the places of those that wait.
STRANGERS_PER_S: Final = 0.1
STRANGERS_BURST: Final = 300.0
LOGINS_BURST: Final = 60.0
#: Messages that a team has sent to see whether they arrive: to any address, in the server's name.
TESTS_PER_S: Final = 1 / 60
TESTS_BURST: Final = 10.0
MAX_STREAMS: Final = 8
#: While a stream has news, its caller's rights are looked at so often, in seconds.
CHECK_EVERY_S: Final = 5.0
_MOST_BUCKETS: Final = 10_000


class Rates:
    """A token bucket for each token, address or team: it fills steadily, and each request takes one out.

    Args:
        per_s: requests a second that go on and on.
        burst: what fits in.
        clock: monotonic seconds.
    """

    def __init__(
        self, per_s: float = REQUESTS_PER_S, burst: float = BURST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Count one request.

        Raises:
            TooOftenError: the bucket is empty.
        """
        with self._lock:
            now = self._clock()
            level = self._level(self._buckets.get(key, (self._burst, now)), now)
            if level < 1:
                raise TooOftenError(f"more than {self._rate()}", (1 - level) / self._per_s)
            self._buckets[key] = (level - 1, now)
            if len(self._buckets) > _MOST_BUCKETS:  # those that are full again say nothing
                kept = {k: b for k, b in self._buckets.items() if self._level(b, now) < self._burst}
                self._buckets = kept

    def _rate(self) -> str:
        if self._per_s < 1:
            return f"one request in {1 / self._per_s:g} seconds"
        return f"{self._per_s:g} requests a second"

    def _level(self, bucket: tuple[float, float], now: float) -> float:
        return min(self._burst, bucket[0] + (now - bucket[1]) * self._per_s)


class Stream:
    """An answer that goes on.

    Args:
        streams: those of this process.
        who: listens.
        again: works out anew who that is and what is allowed.
    """

    def __init__(self, streams: Streams, who: Caller, again: Callable[[], Caller]) -> None:
        self.user = who.account or who.name
        self._streams, self._who, self._again = streams, who, again
        self._looked_at = streams.clock()

    def of(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """The pieces, as long as the caller may see what it might at the beginning.

        Raises:
            TooOftenError: the caller follows too many already.
        """
        self._streams.count(self)
        return self._allowed(pieces)

    async def _allowed(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if not await self._is_allowed():
                        return  # who may still see some of it comes back, and is asked anew
                    yield piece
        finally:
            self._streams.forget(self)

    async def _is_allowed(self) -> bool:
        if self._streams.clock() - self._looked_at < self._streams.check_every_s:
            return True
        self._looked_at = self._streams.clock()
        try:
            now = await run_in_threadpool(self._again)
        except (UnknownCallerError, ForbiddenError, NotFoundError):
            return False
        except TrainmasterError:  # the database is away: nothing new comes from there either
            return True
        return (now.team, now.scopes) == (self._who.team, self._who.scopes)


class Streams:
    """The answers of this process that go on: server-sent events, and logs that are followed.

    Args:
        most: of one user or token at a time.
        check_every_s: how often the rights of who listens are looked at.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        most: int = MAX_STREAMS,
        check_every_s: float = CHECK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self.check_every_s, self.clock = most, check_every_s, clock
        # Weak: an answer whose reader is gone before it began never comes to its end.
        self._open: dict[str, WeakSet[Stream]] = {}

    def count(self, stream: Stream) -> None:
        """One more is open.

        Raises:
            TooOftenError: its user has too many.
        """
        others = self._open.setdefault(stream.user, WeakSet())
        if len(others) >= self._most:
            raise TooOftenError(
                f"{stream.user} follows {self._most} streams already", 5, "Close one of them."
            )
        others.add(stream)

    def forget(self, stream: Stream) -> None:
        """It is over."""
        others = self._open[stream.user]
        others.discard(stream)
        if not others:
            del self._open[stream.user]
