"""`LocalApps`, `LocalServices`: of a home without a server; the proxy in front is in this process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from trainmaster.api.proxy.headers import ENTER, SERVICES
from trainmaster.db import apps as rows
from trainmaster.service import Service
from trainmaster.service.apps.app_access import AppAccess
from trainmaster.service.apps.app_host import app_directory
from trainmaster.service.apps.app_hosts import AppHosts, need_part
from trainmaster.service.apps.apps import Apps
from trainmaster.service.endpoints.endpoints import Endpoints
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import home_owner
from trainmaster.spec.errors import fails_as, imports_of
from trainmaster.spec.private_files import make_private
from trainmaster.spec.states import State

#: In an app's directory, shared by the processes that lead to it, if one of them was the first to open it.
_LED: Final = "led"
_LOOK_S: Final = 0.1


class LocalApps:
    """Those of a home, for who has its machine.

    What several processes open is one app: each has a proxy of its own in front of it, and the last one ends
    it. Locks say which is the last: those of processes that are killed are gone with them.

    Args:
        service: of the home.
        environ: of their processes.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        self._service = service
        self._hosts = AppHosts(service, environ)
        self._members = MemberConnections(service, environ)
        self._led: dict[str, int] = {}
        self._apps = Apps(service, home_owner())
        self.listed, self.end = self._apps.listed, self._apps.end

    def tensorboard(self, runs: Sequence[str]) -> dict[str, Any]:
        """Open one."""
        need_part("tensorboard")
        return self._opened(lambda: self._apps.tensorboard(runs))

    def notebook(self, run: str | None) -> dict[str, Any]:
        """Open one; without a run it is for the directory in which one is."""
        need_part("notebook")
        return self._opened(lambda: self._apps.notebook(run, Path.cwd() if run is None else None))

    def port(self, run: str, member: str | None, port: int) -> dict[str, Any]:
        """Open one."""
        return self._opened(lambda: self._apps.port(run, member, port))

    def leave(self, app: str) -> None:
        """This process leads to it no more; it ends with the last one that does."""
        descriptor = self._led.pop(app, None)
        if descriptor is None:
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._apps.end(app)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)

    def _opened(self, opens: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        database = self._service.database
        while True:
            before = {row["id"] for row in rows.open_here(database, self._service.home.identity())}
            found = opens()
            app = found["app"]
            self._lead(app, is_new=app not in before)
            row = rows.find(database, app)
            if row is not None and row["state"] != State.DONE and not row["ends"]:
                self._hosts.look()
                return found
            if (descriptor := self._led.pop(app, None)) is not None:  # the last process has just left it
                os.close(descriptor)
            time.sleep(_LOOK_S)

    def _lead(self, app: str, *, is_new: bool) -> None:
        """It ends with this process at the earliest; what a page has opened ends with none."""
        directory = app_directory(self._service.home.root, app)
        if app in self._led:
            return
        if is_new:
            make_private(directory.parent)
            make_private(directory)
        with contextlib.suppress(FileNotFoundError):
            makes = os.O_CREAT if is_new else 0
            self._led[app] = os.open(directory / _LED, os.O_RDWR | os.O_CLOEXEC | makes, 0o600)
            fcntl.flock(self._led[app], fcntl.LOCK_SH)

    def show(self, app: str) -> dict[str, Any]:
        """One of them."""
        self._hosts.look()  # nothing else notices that a process has died
        return self._apps.show(app)

    def enter(self, app: str) -> str:
        """A URL that lets one browser in, once."""
        return f"http://127.0.0.1:{self._port}{ENTER}{self._apps.ticket(app, None)}"

    @cached_property
    def _port(self) -> int:
        """Of the proxy, which goes on as long as this process does."""
        with imports_of("apps", "an app"):
            from trainmaster.api.proxy.grants import Grants
            from trainmaster.api.proxy.proxy import AppProxy, listen_in_thread
        gate = AppAccess(self._service, Access(self._service.database), self._members)
        return listen_in_thread(AppProxy(Grants(gate)))


class LocalServices:
    """Those of a home, for who has its machine.

    Args:
        service: of the home.
        environ: of this process: credentials of providers.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        self._service, self._environ = service, environ
        self._endpoints = Endpoints(service, home_owner())
        self._port: int | None = None

    def listed(self) -> list[dict[str, Any]]:
        """Those that are not over first."""
        return [_told(each) for each in self._endpoints.listed()]

    def show(self, name: str) -> dict[str, Any]:
        """One of them."""
        return _told(self._endpoints.show(name))

    def url(self, name: str, port: int = 0) -> str:
        """Where it is asked, as long as this process lives."""
        found = self._endpoints.show(name)
        self.listen(port)

        return f"http://127.0.0.1:{self._port}{SERVICES}{found['name']}/"

    def listen(self, port: int) -> None:
        """Take requests, as long as this process lives.

        Raises:
            MissingPartError: what reads requests is not installed.
            UsageError: the port is taken.
        """
        with imports_of("serve", "a service"):
            from trainmaster.api.proxy.proxy import AppProxy, listen_in_thread
            from trainmaster.api.proxy.services import ServiceProxy
            from trainmaster.service.endpoints.endpoint_access import EndpointAccess
        if self._port is None:
            members = MemberConnections(self._service, self._environ)
            proxy = AppProxy(None, ServiceProxy(EndpointAccess(self._service, members, None)))
            with fails_as(f"cannot listen at port {port}", "Give another --port."):
                self._port = listen_in_thread(proxy, port)


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """As a server tells it: here no port is open, unless a process was asked to listen."""
    return {**found, "url": None, "measured": None}
