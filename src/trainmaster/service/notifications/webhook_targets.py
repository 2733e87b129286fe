"""Where webhooks may go, and one request there: nothing of the server's own network, unless it is named."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.addresses import Network, address_of, is_metadata, is_public
from trainmaster.spec.errors import UsageError, fails_as

#: Names networks, with commas, to which webhooks may go although they are private, and also without TLS.
PRIVATE_VARIABLE: Final = "TRAINMASTER_WEBHOOK_NETWORKS"
TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReceiverResponse:
    """Of a receiver.

    Attributes:
        status: of HTTP; 0 if there was none.
        trouble: what went wrong, for people; empty if it took the message.
        retry_after_s: what it asks for; 0 if nothing.
        body: what it says, as far as that was asked for.
    """

    status: int
    trouble: str = ""
    retry_after_s: float = 0.0
    body: bytes = b""


def networks(environ: Mapping[str, str]) -> tuple[Network, ...]:
    """Those of `PRIVATE_VARIABLE`.

    Raises:
        UsageError: one is no network.
    """
    texts = [text.strip() for text in environ.get(PRIVATE_VARIABLE, "").split(",") if text.strip()]
    with fails_as(PRIVATE_VARIABLE, "Write networks such as 10.1.0.0/16.", on=ValueError):
        return tuple(ipaddress.ip_network(text) for text in texts)


def may_reach(address: str, allowed: Sequence[Network], *, is_tls: bool) -> bool:
    """Whether a message may be sent to an address.

    >>> may_reach("8.8.8.8", (), is_tls=True), may_reach("::ffff:10.0.0.1", (), is_tls=True)
    (True, False)
    """
    found = address_of(address)
    if is_metadata(found):
        return False
    return any(found in network for network in allowed) or (is_tls and is_public(found))


def check_url(url: str, allowed: Sequence[Network]) -> None:
    """Refuse what can be no target.

    Raises:
        UsageError: it is none.
    """
    try:
        found = urllib.parse.urlsplit(url)
        is_good = bool(found.hostname) and found.username is None and found.port != 0
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or any(letter <= " " for letter in url):
        raise UsageError(f"{url[:200]!r} is no URL to send to", "Write https://HOST[:PORT]/PATH.")
    if found.scheme != "https" and not (found.scheme == "http" and allowed):
        raise UsageError(
            f"{found.scheme}: URLs are not sent to",
            f"Use https, or have {PRIVATE_VARIABLE} name the network.",
        )


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    allowed: Sequence[Network],
    resolve: Callable[..., list[tuple]] = socket.getaddrinfo,  # type: ignore[type-arg]
    timeout_s: float = TIMEOUT_S,
    *,
    most_bytes: int = 0,
) -> ReceiverResponse:
    """Send one message; redirects are not followed, and only 2xx is taken for an answer.

    The name is resolved once, and what is connected to is what was checked: a name that means something
    else a moment later changes nothing. Of what is answered ``most_bytes`` are read.
    """
    parts = urllib.parse.urlsplit(url)
    is_tls, host = parts.scheme == "https", parts.hostname or ""
    path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    watchdog, is_late = None, threading.Event()
    try:
        connected = _connect(host, parts.port or (443 if is_tls else 80), allowed, resolve, is_tls=is_tls)
        if isinstance(connected, str):
            return ReceiverResponse(0, connected)
        used = connected
        if is_tls:
            context = ssl.create_default_context()
            used = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        watchdog = threading.Timer(
            timeout_s, _cut, (used, is_late)
        )  # a server that sends a byte a second is cut off, too
        watchdog.daemon = True
        watchdog.start()
        with contextlib.closing(used):
            if isinstance(used, ssl.SSLSocket):
                used.do_handshake()
            connection = http.client.HTTPConnection(parts.netloc)
            connection.sock = used
            connection.request("POST", path, body, {**headers, "connection": "close"})
            answer = connection.getresponse()
            status, wait = answer.status, answer.headers.get("retry-after", "")
            said = answer.read(most_bytes) if most_bytes else b""
    except (OSError, http.client.HTTPException) as error:
        late = f"no answer within {timeout_s:g} s" if is_late.is_set() else ""
        return ReceiverResponse(0, late or f"{type(error).__name__} {str(error)[:200]}".rstrip())
    finally:
        if watchdog is not None:
            watchdog.cancel()
    if is_late.is_set():
        return ReceiverResponse(0, f"no answer within {timeout_s:g} s")
    if 200 <= status < 300:
        return ReceiverResponse(status, body=said)
    trouble = f"HTTP {status}" + (": redirects are not followed" if 300 <= status < 400 else "")
    return ReceiverResponse(status, trouble, float(wait) if wait.isdecimal() and len(wait) < 7 else 0.0, said)


def _connect(
    host: str,
    port: int,
    allowed: Sequence[Network],
    resolve: Callable[..., list[tuple]],  # type: ignore[type-arg]
    *,
    is_tls: bool,
) -> socket.socket | str:
    """A connection to an address that may be reached, or why there is none."""
    trouble = f"{host} has no address"
    for family, kind, protocol, _, place in resolve(host, port, type=socket.SOCK_STREAM):
        if not may_reach(place[0], allowed, is_tls=is_tls):
            trouble = f"{host} is {place[0]}, which messages are not sent to"
            continue
        found = socket.socket(family, kind, protocol)
        found.settimeout(TIMEOUT_S)
        try:
            found.connect(place)
            peer = found.getpeername()[0]
            if may_reach(peer, allowed, is_tls=is_tls):
                return found
            trouble = f"{host} is {peer}, which messages are not sent to"
        except OSError as error:
            trouble = f"{host} cannot be reached: {error}"
        found.close()
    return trouble


def _cut(connected: socket.socket, is_late: threading.Event) -> None:
    is_late.set()
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
