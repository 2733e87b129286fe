"""`EndpointAccess`: whom the proxy in front of services lets ask, and how it gets to replicas.

`ask`: one request to a service, from a page or a program of the server itself.
"""

from __future__ import annotations

import http.client
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.endpoints.endpoints import Endpoints, ReadyReplica
from trainmaster.service.users.caller import TooOftenError, home_owner
from trainmaster.spec.errors import ProviderError, UsageError

if TYPE_CHECKING:
    from trainmaster.service.runs.member_connections import MemberConnections
    from trainmaster.service.service import Service
    from trainmaster.service.users.access import Access

#: Who waits for a page waits no longer.
_ANSWER_S: Final = 30.0
MOST_SHOWN_BYTES: Final = 64 << 10
#: So many threads of this server wait for replicas, which may be slow; others are for those who ask it.
_AT_ONCE: Final = 8
_places = threading.BoundedSemaphore(_AT_ONCE)


@dataclass(frozen=True, slots=True)
class ReplicaResponse:
    """What a replica has said.

    Attributes:
        status: of HTTP.
        text: the beginning of its body.
        version: of the model that has answered; None without a model.
    """

    status: int
    text: str
    version: str | None


def ask(endpoints: Endpoints, access: EndpointAccess, name: str, path: str, body: str) -> ReplicaResponse:
    """Send a JSON body to the least busy replica (or ask without one), and wait for the answer.

    Raises:
        NotFoundError: there is no such service, or it is not the caller's to see.
        UsageError: no replica is ready, or that is no path.
        TooOftenError: so many are asked from here just now.
        ProviderError: the replica does not answer.
    """
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or " " in path:
        raise UsageError(f"{path!r} is no path", "Write such as /v2/models/digits/infer.")
    ready = endpoints.targets(name)
    if not ready:
        endpoints.note_asked(name)
        raise UsageError(f"no replica of {name} is ready", "Try again in a moment.")
    if not _places.acquire(blocking=False):
        raise TooOftenError(
            "services are asked from too many pages just now", 1.0, f"Ask {name} itself, at its URL."
        )
    connection = http.client.HTTPConnection("127.0.0.1", ready[0].port, timeout=_ANSWER_S)
    try:
        connection.sock = _stream(access.connect(ready[0]))
        kind = {"content-type": "application/json"} if body else {}
        connection.request("POST" if body else "GET", path, body.encode() if body else None, kind)
        answer = connection.getresponse()
        text = answer.read(MOST_SHOWN_BYTES).decode("utf-8", "replace")
        return ReplicaResponse(answer.status, text, ready[0].version)
    except (OSError, http.client.HTTPException) as error:
        raise ProviderError(f"a replica of {name} does not answer: {error}", "Its log may say why.") from None
    finally:
        _places.release()
        connection.close()


def _stream(stream: socket.socket) -> socket.socket:
    stream.settimeout(_ANSWER_S)
    return stream


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
        endpoints = Endpoints(self._service, home_owner())
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
        who = home_owner() if self._access is None else self._access.by_token(bearer, team or None)
        return Endpoints(self._service, who)
