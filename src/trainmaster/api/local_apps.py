"""`LocalApps`: apps of a home without a server: the proxy in front of them is in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.service.apps.app_access import AppAccess
from trainmaster.service.apps.app_hosts import AppHosts, need_part
from trainmaster.service.apps.apps import Apps
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.users.access import Access
from trainmaster.service.users.caller import SCOPES, caller
from trainmaster.spec.errors import MissingPartError

if TYPE_CHECKING:
    from trainmaster.service import Service


class LocalApps:
    """Those of a home, for who has its machine.

    Args:
        service: of the home.
        environ: of their processes.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        self._service = service
        self._hosts = AppHosts(service, environ)
        self._members = MemberConnections(service, environ)
        self.apps = Apps(service, caller("owner", None, SCOPES))

    def tensorboard(self, runs: Sequence[str]) -> dict[str, Any]:
        """Open one."""
        need_part("tensorboard")
        found = self.apps.tensorboard(runs)
        self._hosts.look()
        return found

    def notebook(self, run: str | None) -> dict[str, Any]:
        """Open one; without a run it is for the directory in which one is."""
        need_part("notebook")
        found = self.apps.notebook(run, Path.cwd() if run is None else None)
        self._hosts.look()
        return found

    def port(self, run: str, member: str | None, port: int) -> dict[str, Any]:
        """Open one."""
        return self.apps.port(run, member, port)

    def show(self, app: str) -> dict[str, Any]:
        """One of them."""
        self._hosts.look()  # nobody else sees that a process has died
        return self.apps.show(app)

    def enter(self, app: str) -> str:
        """A URL that lets one browser in, once."""
        from trainmaster.api.proxy.headers import ENTER

        return f"http://127.0.0.1:{self._port}{ENTER}{self.apps.ticket(app, None)}"

    @cached_property
    def _port(self) -> int:
        """Of the proxy, which goes on as long as this process does."""
        try:
            from trainmaster.api.proxy.grants import Grants
            from trainmaster.api.proxy.proxy import AppProxy, listen_in_thread
        except ModuleNotFoundError as error:
            raise MissingPartError(
                f"{error.name} is not installed", "Run: pip install 'trainmaster[apps]'"
            ) from error
        gate = AppAccess(self._service, Access(self._service.database), self._members)
        return listen_in_thread(AppProxy(Grants(gate)))
