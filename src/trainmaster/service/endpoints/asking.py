"""`ask`: one request to a service, from a page or a program of the server itself."""

from __future__ import annotations

import http.client
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.errors import ProviderError, UsageError

if TYPE_CHECKING:
    from trainmaster.service.endpoints.endpoint_access import EndpointAccess
    from trainmaster.service.endpoints.endpoints import Endpoints

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
