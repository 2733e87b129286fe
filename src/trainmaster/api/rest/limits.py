"""`Streams`, `Waits` and `SlowCalls`: how much of one process a caller may take, and until when."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import cached_property
from typing import Final, TypeVar
from weakref import WeakSet, WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool

from trainmaster.service.users.caller import Caller, Credential, ForbiddenError, TooOftenError
from trainmaster.spec.errors import TrainmasterError

T = TypeVar("T")

#: Of anonymous requests from one address the audit has so much, and fewer logins are begun: they never
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
#: Calls to machines and places that one user or team has under way at once, and all together.
SLOW_CALLS_OF_ONE: Final = 4
MAX_SLOW_CALLS: Final = 64
#: The rights of those whose requests and answers go on are looked at so often, in seconds.
CHECK_EVERY_S: Final = 1.0
log = logging.getLogger(__name__)


class OpenStream:
    """A request or an answer that goes on.

    Args:
        streams: those of this process.
        who: has asked.
        credential: what it asked with.
    """

    def __init__(self, streams: Streams, who: Caller, credential: Credential) -> None:
        self.user = who.account or who.name
        self.who, self.credential = who, credential
        self.is_allowed = True
        self._streams = streams
        self._ends: asyncio.Future[None] | None = None

    def of(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """The pieces, as long as the caller may what it might at the beginning.

        Raises:
            TooOftenError: the caller follows too many already.
        """
        self._streams.count(self)
        return self._allowed(pieces)

    def sent(self, pieces: Iterable[T]) -> AsyncGenerator[T]:
        """The same of a file whose pieces are read in threads: half of it must not look whole."""

        async def read() -> AsyncGenerator[T]:
            async for piece in iterate_in_threadpool(pieces):
                yield piece

        return self.body(read())

    async def body(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        """The same of what has an end, such as what the caller sends.

        Raises:
            TooOftenError: as above.
            ForbiddenError: the caller may not any more what it might.
        """
        async with aclosing(self.of(pieces)) as allowed:
            async for piece in allowed:
                yield piece
        if not self.is_allowed:
            raise _changed()

    async def answer(self, work: Awaitable[T]) -> T:
        """What was waited for.

        Raises:
            TooOftenError, ForbiddenError: as above.
        """
        self._streams.count(self)
        try:
            return await self._unless_ended(work)
        finally:
            self._streams.forget(self)

    def end(self) -> None:
        """The caller may not any more what it might; whatever is waited for."""
        self.is_allowed = False
        if self._ends is not None and not self._ends.done():
            self._ends.set_result(None)

    async def ended(self) -> None:
        """Wait for that."""
        await asyncio.shield(self._end())

    def _end(self) -> asyncio.Future[None]:
        """Comes when the caller may not any more; in its event loop."""
        if self._ends is None:
            self._ends = asyncio.get_running_loop().create_future()
            if not self.is_allowed:
                self._ends.set_result(None)
            self._streams.watch()
        return self._ends

    async def _allowed(self, pieces: AsyncGenerator[T]) -> AsyncGenerator[T]:
        try:
            async with aclosing(pieces):
                with suppress(ForbiddenError, StopAsyncIteration):
                    while True:  # a caller that may still see some of it comes back, and is asked again
                        yield await self._unless_ended(anext(pieces))
        finally:
            self._streams.forget(self)

    async def _unless_ended(self, work: Awaitable[T]) -> T:
        going, ends = asyncio.ensure_future(work), self._end()
        try:
            await asyncio.wait((going, ends), return_when=asyncio.FIRST_COMPLETED)
            if not self.is_allowed:
                raise _changed()
            return await going
        finally:
            if not going.done():
                going.cancel()
                await asyncio.wait((going,))


def _changed() -> ForbiddenError:
    return ForbiddenError(
        "what you may do here has changed meanwhile", "Ask again: then you are told what you may."
    )


class Streams:
    """The requests and answers of this process that go on: events and logs that are followed, files.

    Args:
        ask: what each of some credentials allows now; those that allow nothing are not in the answer.
        most: of one user or token at a time.
        check_every_s: how often the rights of all of them are looked at, in one look.
        pause: waits for so many seconds.
    """

    def __init__(
        self,
        ask: Callable[[Collection[Credential]], Mapping[Credential, Caller]],
        most: float = MAX_STREAMS,
        check_every_s: float = CHECK_EVERY_S,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask, self._most, self._check_every_s, self._pause = ask, most, check_every_s, pause
        # Weak: an answer whose reader is gone before it began never comes to its end.
        self._open: dict[str, WeakSet[OpenStream]] = {}
        self._lock = threading.Lock()  # routes that are no coroutines count in threads
        self._watching: asyncio.Task[None] | None = None

    def watch(self) -> None:
        """Look at the rights of all from now on, as long as anything is open."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while streams := self._all():
            del streams  # they may end
            await self._pause(self._check_every_s)
            await self.look()

    async def look(self) -> None:
        """End what is not allowed any more."""
        streams = self._all()
        try:
            now = await run_in_threadpool(self._ask, {stream.credential for stream in streams})
        except TrainmasterError:  # the database is away: nothing new comes from there either
            return
        except Exception:  # rights that cannot be looked up are none
            log.exception("the rights of who listens cannot be looked at; all are sent away")
            now = {}
        for stream in streams:
            found, before = now.get(stream.credential), stream.who
            if found is None or (found.team, found.scopes) != (before.team, before.scopes):
                stream.end()

    def _all(self) -> list[OpenStream]:
        with self._lock:
            return [stream for of_user in self._open.values() for stream in of_user]

    def count(self, stream: OpenStream) -> None:
        """One more is open.

        Raises:
            TooOftenError: its user has too many.
        """
        with self._lock:
            others = self._open.setdefault(stream.user, WeakSet())
            if len(others) >= self._most:
                raise TooOftenError(
                    f"{stream.user} follows {self._most} streams already", 5, "Close one of them."
                )
            others.add(stream)

    def forget(self, stream: OpenStream) -> None:
        """It is over."""
        with self._lock:
            others = self._open.get(stream.user, WeakSet())
            others.discard(stream)
            if not others:
                self._open.pop(stream.user, None)


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


class SlowCalls:
    """Calls that others' machines may keep waiting: they have threads of their own, not those of requests.

    Args:
        of_one: so many at once for one user or team; the next ones wait for their turn.
        most: so many of all.
    """

    def __init__(self, of_one: int = SLOW_CALLS_OF_ONE, most: int = MAX_SLOW_CALLS) -> None:
        self._of_one, self._most = of_one, most
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, who: str, call: Callable[[], T]) -> T:
        """What a call gives, when it is the turn of who asks."""
        turn = self._turns.setdefault(who, asyncio.Semaphore(self._of_one))
        async with turn:
            return await to_thread.run_sync(call, limiter=self._threads)

    @cached_property
    def _threads(self) -> CapacityLimiter:
        return CapacityLimiter(self._most)


_LOOK_EVERY_S: Final = 1.0


class LoopLag:
    """How late the loop of all requests is with what it was to do at a time.

    Attributes:
        seconds: of the last look.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def watch(self) -> None:
        """Look at it, until cancelled."""
        while True:
            due_s = time.monotonic() + _LOOK_EVERY_S
            await asyncio.sleep(_LOOK_EVERY_S)
            self.seconds = time.monotonic() - due_s
