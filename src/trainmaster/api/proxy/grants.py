"""`Grants`: which browser may use which app just now; what is open ends when that does.

`Openings`: connections to other machines that are being made; a machine may let us wait for long.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from trainmaster.api.proxy.admissions import CHECK_S, Admissions, RequestRefusedError, status_of
from trainmaster.api.proxy.headers import APPS, CONNECT_S, ENTER, UpstreamTarget
from trainmaster.api.proxy.upstream import PIECE_BYTES
from trainmaster.spec.addresses import name_of
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from trainmaster.service.apps.app_access import AppAccess

#: At once to one place: all but the first wait for its login, and none needs a thread for that.
_OF_EACH: Final = 4
_MOST: Final = 64


class Openings:
    """Has threads of its own: who asks whether somebody may get in never waits for a machine."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    async def open(
        self, place: Hashable, work: Callable[[], socket.socket]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a place, when it is its turn.

        Raises:
            ConnectionError: there is none, with what `work` said.
        """
        turn = self._turns.setdefault(place, asyncio.Semaphore(_OF_EACH))
        async with turn:
            try:
                stream = await asyncio.get_running_loop().run_in_executor(self._threads, work)
            except TrainmasterError as error:
                raise ConnectionError(str(error)) from None
        return await asyncio.open_connection(sock=stream, limit=PIECE_BYTES)

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_MOST, "openings")


#: Of a machine elsewhere, which has to be asked for first.
_MACHINE_S: Final = 60.0
#: The app, the cookies that may be for it, and a token.
Key = tuple[str, tuple[str, ...], str]


class Grants(Admissions[Key, UpstreamTarget]):
    """What was allowed a moment ago.

    Args:
        gate: lets in.
        is_secure: browsers come by https.
        clock: monotonic seconds.
        check_s: it is asked again after so long.
        refused: is told who was not let in, in a thread: address, method and path, HTTP status.
        domain: each app has a host below it, named by its id; empty if all have one host.

    Attributes:
        cookie: name of the cookie that a browser has for one app.
    """

    def __init__(
        self,
        gate: AppAccess,
        *,
        is_secure: bool = False,
        clock: Callable[[], float] = time.monotonic,
        check_s: float = CHECK_S,
        refused: Callable[[str, str, int], None] | None = None,
        domain: str = "",
    ) -> None:
        super().__init__(clock, check_s)
        self.gate, self.is_secure, self.domain = gate, is_secure, domain
        # Browsers take a cookie of such a name from this one host only, not from another app's page.
        self._is_of_host = bool(domain) and is_secure
        self.cookie = f"__Host-{gate.cookie}" if self._is_of_host else gate.cookie
        self._refused = refused
        self._openings = Openings()

    def ask(self, key: Key) -> UpstreamTarget:
        """The app, for a caller that may use it."""
        app, kept, bearer = key
        way = self.gate.admit(app, list(kept), bearer)
        return UpstreamTarget(
            app,
            way.port,
            f"token {way.token}" if way.token else "",
            connect=None if way.open is None else partial(self._openings.open, app, way.open),
            connect_s=CONNECT_S if way.open is None else _MACHINE_S,
            is_bare=way.is_bare,
            polls=way.polls,
        )

    def words(self, key: Key) -> str:
        """Its name."""
        return f"the app {key[0]}"

    def label(self, host: str) -> str:
        """The app whose host that is; empty if it is none's."""
        label, dot, rest = name_of(host).partition(".")
        return label if dot and rest == self.domain else ""

    async def enter(self, ticket: str, host: str) -> RequestRefusedError:
        """The answer to a ticket: a cookie that is good for one app, and where that is."""
        try:
            app, cookie, lasts_s = await asyncio.to_thread(self.gate.enter, ticket)
        except TrainmasterError as error:
            return RequestRefusedError(status_of(error), f"{error.args[0]}\n{error.hint}")
        if self.domain and self.label(host) != app:  # its cookie would be another app's
            return RequestRefusedError(404, "The app has another host.\nOpen it again.")
        path, secure = f"{APPS}{app}/", "; Secure" if self.is_secure else ""
        of = "/" if self._is_of_host else path
        kept = f"{self.cookie}={cookie}; Path={of}; Max-Age={lasts_s:.0f}; HttpOnly; SameSite=Lax{secure}"
        return RequestRefusedError(303, "", [("location", path), ("set-cookie", kept)])

    async def note(self, refused: RequestRefusedError, address: str, method: bytes, target: bytes) -> None:
        """Tell of a request that was refused because of who asked."""
        if self._refused is not None and refused.status in (401, 403):
            path = target.decode("latin-1").partition("?")[0]
            what = f"{method.decode()} {ENTER if path.startswith(ENTER) else path}"  # no ticket, no token
            await asyncio.to_thread(self._refused, address, what, refused.status)
