"""`AppAccess`: whom the proxy in front of apps lets in, by tickets, cookies and tokens."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from trainmaster.db import apps
from trainmaster.service.apps.app_host import token_of
from trainmaster.service.apps.apps import NOTEBOOK, PORT, need_entry
from trainmaster.service.users.access import SESSION_S, Access, digest_of
from trainmaster.service.users.caller import Credential, UnknownCallerError
from trainmaster.spec.errors import NotFoundError, StoreError, UsageError
from trainmaster.spec.states import State

if TYPE_CHECKING:
    import socket

    from trainmaster.service.runs.member_connections import MemberConnections
    from trainmaster.service.service import Service

#: The last use of an app is written down so often.
_NOTE_S: Final = 10.0
#: JupyterLab's pages look every ten seconds what there is, and write down how they are laid out.
NOTEBOOK_POLLS: Final = r"(GET|HEAD|OPTIONS) api/|\w+ lab/api/workspaces"


class AppWay(NamedTuple):
    """How the proxy gets to an app.

    Attributes:
        port: on its machine's own address.
        token: what it wants to be told.
        open: leads there; None if it is on this machine.
        is_bare: it knows nothing of its prefix, and gets paths without it.
        polls: a regular expression of what its pages ask for by themselves: how ``METHOD PATH`` begins, with
            paths below the prefix; empty if they do not.
    """

    port: int
    token: str = ""
    open: Callable[[], socket.socket] | None = None
    is_bare: bool = False
    polls: str = ""


class AppAccess:
    """Of the apps on this machine, and of ports of members.

    Args:
        service: of the home.
        access: of the home.
        members: leads to members' machines.
    """

    #: Name of the cookie that a browser has for one app.
    cookie = "trainmaster-app"

    def __init__(self, service: Service, access: Access, members: MemberConnections) -> None:
        self._service, self._access, self._members = service, access, members
        self._noted: dict[str, float] = {}
        self._lock = threading.Lock()

    def enter(self, ticket: str) -> tuple[str, str, float]:
        """Make a cookie of a ticket: the app, the cookie's value, and for how many seconds that is good.

        Raises:
            UnknownCallerError: it is not known, was used, or is over.
        """
        database = self._service.database
        now, cookie = database.clock_s(), secrets.token_urlsafe(32)
        row = apps.take_ticket(database, digest_of(ticket), digest_of(cookie), now + SESSION_S, now)
        if row is None:
            raise UnknownCallerError("this link was used already, or is too old", "Open the app again.")
        return row["app_id"], cookie, SESSION_S

    def admit(self, app: str, cookies: list[str], bearer: str) -> AppWay:
        """The way to an app, for who has one of these cookies or a token.

        Raises:
            UnknownCallerError: the caller is unknown, or not known any more.
            ForbiddenError: who may not.
            NotFoundError: there is no such app, or it is another team's.
            UsageError: it does not answer yet, or is on another machine.
        """
        database = self._service.database
        row = apps.find(database, app)
        credential = self._credential(app, cookies, bearer)
        if credential is not None:
            caller = self._access.callers([credential]).get(credential)
            if caller is None:
                raise UnknownCallerError("who has opened this may not any more", "Log in, and open it again.")
            if row is None or not caller.sees(row["team"]):
                raise NotFoundError("there is no such app", "It may be over: open it again.")
            need_entry(row, caller)
        if row is None or row["state"] == State.DONE:
            raise NotFoundError("the app is over", "Open it again.")
        if row["home_id"] != self._service.home.identity():
            raise UsageError("the app is on the machine of another server", "Open it there, or anew here.")
        if row["state"] != State.RUNNING or row["port"] is None:
            raise UsageError("the app does not answer yet", "Try again in a moment.")
        if row["kind"] == PORT:
            lead = partial(self._members.open, row["run_id"], row["member"], row["port"])
            return AppWay(row["port"], open=lead, is_bare=True)
        try:
            token = token_of(self._service.home.root, app)
        except OSError:
            raise NotFoundError("the app is over", "Open it again.") from None
        return AppWay(row["port"], token, polls=NOTEBOOK_POLLS if row["kind"] == NOTEBOOK else "")

    def used(self, app: str) -> None:
        """Note that it was used, now and then; in the background."""
        now = time.time()
        if now - self._noted.get(app, 0.0) >= _NOTE_S:
            self._noted[app] = now
            threading.Thread(target=self._note, args=(app, now), daemon=True).start()

    def _note(self, app: str, now: float) -> None:
        with suppress(StoreError), self._lock:
            apps.note_use(self._service.database, app, now)

    def _credential(self, app: str, cookies: list[str], bearer: str) -> Credential | None:
        """What is behind a request; None for who has the machine.

        Raises:
            UnknownCallerError: nothing that we know.
        """
        if bearer:
            return Credential(digest_of(bearer), False, None)
        database = self._service.database
        found = apps.passes(database, [digest_of(each) for each in cookies], database.clock_s())
        for row in found.values():
            if row["app_id"] == app:
                if row["credential"] is None:
                    return None
                return Credential(row["credential"], row["is_session"], row["team"])
        raise UnknownCallerError("you are not known here", "Open the app from its run's page.")
