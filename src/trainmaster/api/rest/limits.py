"""`Rates`, `Streams`, `Waits` and `Openings`: how much of one process a caller may take, and until when."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import run_in_threadpool

from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.users.caller import Caller, Credential

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
#: Each of them looks into the database twice a second.
MAX_WAITS: Final = 32
#: A page of an app opens many connections at once.
MAX_TUNNELS: Final = 100
#: Ways to members that one user has opened at once, and all users together.
OPENINGS_OF_USER: Final = 4
MAX_OPENINGS: Final = 64
#: While streams have news, the rights of listeners are looked at so often, in seconds.
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
        credential: what it asked with.
    """

    def __init__(self, streams: Streams, who: Caller, credential: Credential) -> None:
        self.user = who.account or who.name
        self.who, self.credential = who, credential
        self.is_allowed = True
        self._streams = streams

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
                    await self._streams.look()
                    if not self.is_allowed:
                        return  # a caller that may still see some of it comes back, and is asked anew
                    yield piece
        finally:
            self._streams.forget(self)


class Streams:
    """The answers of this process that go on: server-sent events, and logs that are followed.

    Args:
        ask: what each of some credentials allows now; those that allow nothing are not in the answer.
        most: of one user or token at a time.
        check_every_s: how often the rights of listeners are looked at, of all in one look.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        ask: Callable[[Collection[Credential]], Mapping[Credential, Caller]],
        most: int = MAX_STREAMS,
        check_every_s: float = CHECK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._most, self._check_every_s, self._clock = ask, most, check_every_s, clock
        # Weak: an answer whose reader is gone before it began never comes to its end.
        self._open: dict[str, WeakSet[Stream]] = {}
        self._looked_at = -math.inf
        self._looking: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Look at the rights of all listeners, or wait until that is done, unless it was a moment ago."""
        if self._clock() - self._looked_at < self._check_every_s:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)  # it is for all, whichever of them goes

    async def _look(self) -> None:
        began, streams = self._clock(), [stream for of_user in self._open.values() for stream in of_user]
        with suppress(TrainmasterError):  # the database is away: nothing new comes from there either
            now = await run_in_threadpool(self._ask, {stream.credential for stream in streams})
            for stream in streams:
                found, before = now.get(stream.credential), stream.who
                stream.is_allowed = found is not None and (found.team, found.scopes) == (
                    before.team,
                    before.scopes,
                )
        self._looked_at = began

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


class Waits:
    """Requests that are answered when there is news (`wait_s`).

    Args:
        most: of one user or token at a time; the next ones are answered at once.
    """

    def __init__(self, most: int = MAX_WAITS) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    @contextmanager
    def waiting(self, who: Caller) -> Iterator[bool]:
        """Whether one more may wait; for as long as it does."""
        user = who.account or who.name
        if self._open[user] >= self._most:
            yield False
            return
        self._open[user] += 1
        try:
            yield True
        finally:
            self._open[user] -= 1
            self._open += Counter()  # without those that are 0


class Openings:
    """Ways to members that are being opened: machines may let us wait, so threads of requests are not for it.

    Args:
        of_user: so many at once of one user; the next ones wait for their turn.
        most: so many of all.
    """

    def __init__(self, of_user: int = OPENINGS_OF_USER, most: int = MAX_OPENINGS) -> None:
        self._of_user, self._most = of_user, most
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def open(self, user: str, work: Callable[[], T]) -> T:
        """What the work gives, when it is the user's turn."""
        turn = self._turns.setdefault(user, asyncio.Semaphore(self._of_user))
        async with turn:
            return await to_thread.run_sync(work, limiter=self._threads)

    @cached_property
    def _threads(self) -> CapacityLimiter:
        return CapacityLimiter(self._most)
