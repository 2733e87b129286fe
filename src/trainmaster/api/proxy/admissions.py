"""`Admissions`: what was allowed a moment ago to whom; what is open ends when that does."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from trainmaster.dataclass import dataclass, field
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, StoreError, TrainmasterError

#: Rights are asked again after so long, also of what is open.
CHECK_S: Final = 1.0
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")

log = logging.getLogger(__name__)


class RequestRefusedError(Exception):
    """The request is answered by us.

    Attributes:
        status: of HTTP.
        text: for the caller.
        headers: of the answer.
        kind: of the text.
    """

    def __init__(
        self,
        status: int,
        text: str,
        headers: list[tuple[str, str]] | None = None,
        kind: str = "text/plain; charset=utf-8",
    ) -> None:
        super().__init__(text)
        self.status, self.text, self.headers, self.kind = status, text, headers or [], kind


@dataclass(slots=True)
class Admission(Generic[Found]):
    """What was allowed.

    Attributes:
        target: what may be used.
        at: when it was asked, in monotonic seconds.
        open: what ends when it is allowed no more.
    """

    target: Found
    at: float
    open: set[asyncio.Task[None]] = field(default_factory=set)


class Admissions(ABC, Generic[Key, Found]):
    """What was allowed a moment ago.

    Args:
        clock: monotonic seconds.
        check_s: it is asked again after so long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, check_s: float = CHECK_S) -> None:
        self._clock, self._check_s = clock, check_s
        self._known: dict[Key, Admission[Found]] = {}
        self._asking: dict[Key, asyncio.Task[Found]] = {}

    @abstractmethod
    def ask(self, key: Key) -> Found:
        """What may be used; called in a thread.

        Raises:
            TrainmasterError: nothing.
        """

    @abstractmethod
    def words(self, key: Key) -> str:
        """What is asked for, for the log."""

    def goes_on(self, before: Found, now: Found) -> bool:
        """Whether what is open may stay so when another target is found."""
        return before == now

    async def admitted(self, key: Key, *, again: bool = False) -> Admission[Found]:
        """What a request may use.

        Raises:
            RefusedError: nothing.
        """
        known = self._known.get(key)
        if known is not None and not again and self._clock() - known.at < self._check_s:
            return known
        try:
            target = await self._asked(key)
        except TrainmasterError as error:
            if not isinstance(error, StoreError) or known is None:  # else the database comes back
                self.end(key)
            raise RequestRefusedError(status_of(error), f"{error.args[0]}\n{error.hint}") from None
        known = self._known.get(key)
        if known is None or not self.goes_on(known.target, target):
            self.end(key)
            known = self._known[key] = Admission(target, self._clock())
        known.target, known.at = target, self._clock()
        return known

    async def _asked(self, key: Key) -> Found:
        """Ask, once for all requests that wait for it now."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.create_task(asyncio.to_thread(self.ask, key))

            def done(task: asyncio.Task[Found]) -> None:
                self._asking.pop(key, None)
                if not task.cancelled():
                    task.exception()  # the request that asked may be gone

            asking.add_done_callback(done)
        return await asyncio.shield(asking)

    def end(self, key: Key) -> None:
        """Nothing is allowed any more."""
        known = self._known.pop(key, None)
        for task in known.open if known is not None else ():
            task.cancel()

    async def watch(self) -> None:
        """Ask again, for ever, for what is open."""
        while True:
            await asyncio.sleep(self._check_s)
            for key, known in list(self._known.items()):
                if known.open:
                    try:
                        with suppress(RequestRefusedError):  # what was open is ended
                            await self.admitted(key, again=True)
                    except Exception:  # of one of them: the others are still to be asked for
                        log.exception("rights to %s cannot be asked; what was open is ended", self.words(key))
                        self.end(key)
                elif self._clock() - known.at > self._check_s:
                    del self._known[key]


def status_of(error: TrainmasterError) -> int:
    """HTTP status of what a gate raises; what else may be wrong is over in a moment."""
    known = ((UnknownCallerError, 401), (ForbiddenError, 403), (NotFoundError, 404))
    return next((status for kind, status in known if isinstance(error, kind)), 503)
