"""`LocalServices`: services of a home without a server: the proxy in front of them is in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.service.endpoints.endpoints import Endpoints
from trainmaster.service.users.caller import SCOPES, caller
from trainmaster.spec.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from trainmaster.service import Service


class LocalServices:
    """Those of a home, for who has its machine.

    Args:
        service: of the home.
        environ: of this process: credentials of providers.
    """

    def __init__(self, service: Service, environ: Mapping[str, str]) -> None:
        self._service, self._environ = service, environ
        self._endpoints = Endpoints(service, caller("owner", None, SCOPES))
        self._port: int | None = None

    def services(self) -> list[dict[str, Any]]:
        """Those that are not over first."""
        return [_told(each) for each in self._endpoints.listed()]

    def service(self, name: str) -> dict[str, Any]:
        """One of them."""
        return _told(self._endpoints.show(name))

    def url(self, name: str, port: int) -> str:
        """Where it is asked, as long as this process lives."""
        found = self._endpoints.show(name)
        self.listen(port)
        from trainmaster.api.proxy.headers import SERVICES

        return f"http://127.0.0.1:{self._port}{SERVICES}{found['name']}/"

    def listen(self, port: int) -> None:
        """Take requests, as long as this process lives.

        Raises:
            MissingPartError: what reads requests is not installed.
            UsageError: the port is taken.
        """
        try:
            from trainmaster.api.proxy.proxy import AppProxy, listen_in_thread
            from trainmaster.api.proxy.services import ServiceProxy
            from trainmaster.service.endpoints.endpoint_access import EndpointAccess
            from trainmaster.service.runs.member_connections import MemberConnections
        except ModuleNotFoundError as error:
            raise MissingPartError(
                f"{error.name} is not installed", "Run: pip install 'trainmaster[serve]'"
            ) from error
        if self._port is None:
            members = MemberConnections(self._service, self._environ)
            proxy = AppProxy(None, ServiceProxy(EndpointAccess(self._service, members, None)))
            try:
                self._port = listen_in_thread(proxy, port)
            except OSError as error:
                raise UsageError(f"cannot listen at port {port}: {error}", "Give another --port.") from None


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """As a server tells it: here no port is open, unless a process was asked to listen."""
    return {**found, "url": None, "measured": None}
