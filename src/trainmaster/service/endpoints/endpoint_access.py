"""`EndpointAccess`: whom the proxy in front of services lets ask, and how it gets to replicas."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.service.endpoints.endpoints import Endpoints, ReadyReplica
from trainmaster.service.users.caller import SCOPES, Caller, caller

if TYPE_CHECKING:
    from trainmaster.service.runs.member_connections import MemberConnections
    from trainmaster.service.service import Service
    from trainmaster.service.users.access import Access

#: A machine that is on its way is not waited for: another replica answers.
_PATIENCE_S: Final = 2.0


class EndpointAccess:
    """Of the services of a home.

    Args:
        service: of the home.
        members: connections to other machines.
        access: of the home; None: whoever gets here has the machine.
    """

    def __init__(self, service: Service, members: MemberConnections, access: Access | None) -> None:
        self._service, self._members, self._access = service, members, access
        self.is_open = access is None
        self._server = f"{service.home.identity()}-{secrets.token_hex(4)}"

    def targets(self, name: str, bearer: str, team: str) -> Sequence[ReadyReplica]:
        """The replicas of a service that take requests.

        Raises:
            UnknownCallerError: the token is unknown, or not valid any more.
            ForbiddenError: it may not `infer`.
            NotFoundError: there is no such service, or it is another team's.
        """
        return self._endpoints(bearer, team).targets(name)

    def turned_away(self, name: str, bearer: str, team: str) -> None:
        """Somebody asked, and no replica was ready."""
        self._endpoints(bearer, team).note_asked(name)

    def report(self, in_flight: Mapping[str, int]) -> None:
        """Requests that are in flight in this process, by replica."""
        endpoints = Endpoints(self._service, _owner())
        for replica, count in in_flight.items():
            endpoints.report(replica, count, self._server)

    def connect(self, replica: ReadyReplica) -> socket.socket:
        """A stream to a replica; the caller's to close.

        Raises:
            TrainmasterError: it cannot be reached.
        """
        if replica.is_here:
            return socket.create_connection(("127.0.0.1", replica.port), _PATIENCE_S)
        return self._members.open(replica.run, replica.node, replica.port, patience_s=_PATIENCE_S)

    def _endpoints(self, bearer: str, team: str) -> Endpoints:
        who = _owner() if self._access is None else self._access.by_token(bearer, team or None)
        return Endpoints(self._service, who)


def _owner() -> Caller:
    return caller("owner", None, SCOPES)
