"""`Grants`: which browser may use which app just now; what is open ends when that does."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from trainmaster.api.proxy.headers import APPS, ENTER, Target
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, StoreError, TrainmasterError

#: Rights are asked again after so long, also of what is open.
CHECK_S: Final = 2.0
#: The app, the cookies that may be for it, and a token.
Key = tuple[str, tuple[str, ...], str]

log = logging.getLogger(__name__)


class Gate(Protocol):
    """Who is let in to which app; asked in a thread."""

    #: Name of the cookie that a browser has for one app.
    cookie: str

    def enter(self, ticket: str) -> tuple[str, str, float]:
        """Take a ticket in: the app that it is for, a cookie's value, and for how many seconds that is good.

        Raises:
            TrainmasterError: it is not good, or not any more.
        """

    def admit(self, app: str, cookies: list[str], bearer: str) -> tuple[int, str]:
        """The port of an app, and what it wants to be told, for who has a cookie for it, or a token.

        Raises:
            TrainmasterError: who asks may not, or the app is not there.
        """

    def used(self, app: str) -> None:
        """Somebody has just used it; quick."""


@dataclass(slots=True)
class Grant:
    """What was allowed.

    Attributes:
        target: the app.
        at: when it was asked, in monotonic seconds.
        open: what ends when it is allowed no more.
    """

    target: Target
    at: float
    open: set[asyncio.Task[None]] = field(default_factory=set)


class RefusedError(Exception):
    """The request is answered by us.

    Attributes:
        status: of HTTP.
        text: for who asks.
        headers: of the answer.
    """

    def __init__(self, status: int, text: str, headers: list[tuple[str, str]] | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.headers = status, text, headers or []


class Grants:
    """What was allowed a moment ago.

    Args:
        gate: lets in.
        is_secure: browsers come by https.
        clock: monotonic seconds.
        check_s: it is asked again after so long.
        refused: is told who was not let in, in a thread: address, method and path, HTTP status.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        is_secure: bool = False,
        clock: Callable[[], float] = time.monotonic,
        check_s: float = CHECK_S,
        refused: Callable[[str, str, int], None] | None = None,
    ) -> None:
        self.gate, self.is_secure = gate, is_secure
        self._refused = refused
        self._clock, self._check_s = clock, check_s
        self._grants: dict[Key, Grant] = {}

    async def admitted(self, key: Key, *, again: bool = False) -> Grant:
        """What a request may use.

        Raises:
            RefusedError: nothing.
        """
        known = self._grants.get(key)
        if known is not None and not again and self._clock() - known.at < self._check_s:
            return known
        app, kept, bearer = key
        try:
            port, token = await asyncio.to_thread(self.gate.admit, app, list(kept), bearer)
        except TrainmasterError as error:
            if not isinstance(error, StoreError) or known is None:  # else the database comes back
                self._end(key)
            raise RefusedError(status_of(error), f"{error.args[0]}\n{error.hint}") from None
        target = Target(app, port, f"token {token}" if token else "")
        known = self._grants.get(key)
        if known is None or known.target != target:
            self._end(key)
            known = self._grants[key] = Grant(target, self._clock())
        known.at = self._clock()
        return known

    async def enter(self, ticket: str) -> RefusedError:
        """The answer to a ticket: a cookie that is good for one app, and where that is."""
        try:
            app, cookie, lasts_s = await asyncio.to_thread(self.gate.enter, ticket)
        except TrainmasterError as error:
            return RefusedError(status_of(error), f"{error.args[0]}\n{error.hint}")
        path, secure = f"{APPS}{app}/", "; Secure" if self.is_secure else ""
        kept = (
            f"{self.gate.cookie}={cookie}; Path={path}; Max-Age={lasts_s:.0f}; HttpOnly; SameSite=Lax{secure}"
        )
        return RefusedError(303, "", [("location", path), ("set-cookie", kept + secure)])

    async def note(self, refused: RefusedError, address: str, method: bytes, target: bytes) -> None:
        """Tell of a request that was refused because of who asked."""
        if self._refused is not None and refused.status in (401, 403):
            path = target.decode("latin-1").partition("?")[0]
            what = f"{method.decode()} {ENTER if path.startswith(ENTER) else path}"  # no ticket, no token
            await asyncio.to_thread(self._refused, address, what, refused.status)

    def _end(self, key: Key) -> None:
        grant = self._grants.pop(key, None)
        for task in grant.open if grant is not None else ():
            task.cancel()

    async def watch(self) -> None:
        """Ask again, for ever, for what is open."""
        while True:
            await asyncio.sleep(self._check_s)
            for key, grant in list(self._grants.items()):
                if grant.open:
                    try:
                        await self.admitted(key, again=True)
                    except RefusedError:
                        pass  # what was open is ended
                    except Exception:  # of one app: the others are still to be asked for
                        log.exception("rights to the app %s cannot be asked; what was open is ended", key[0])
                        self._end(key)
                elif self._clock() - grant.at > self._check_s:
                    del self._grants[key]


def status_of(error: TrainmasterError) -> int:
    """HTTP status of what a gate raises; what else may be wrong with an app is over in a moment."""
    known = ((UnknownCallerError, 401), (ForbiddenError, 403), (NotFoundError, 404))
    return next((status for kind, status in known if isinstance(error, kind)), 503)
