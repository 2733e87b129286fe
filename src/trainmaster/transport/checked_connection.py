"""Connections to where a user of a server says: the address that is connected to is one that was checked."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from trainmaster.spec.addresses import Address, address_of, is_metadata, is_own_machine, named_networks

#: Whether an address may be connected to.
MayReach = Callable[[Address], bool]
Resolve = Callable[..., list[tuple[Any, ...]]]
#: Says that the variables are those of a team's own login to a place, and whose.
TEAM_VARIABLE: Final = "TRAINMASTER_LOGIN_TEAM"


class UnreachedAddressError(OSError):
    """There is no connection; the text says to what, and why."""


def team_may_reach(environ: Mapping[str, str]) -> MayReach | None:
    """Where a server may connect to with the login that these variables are of; None for anywhere.

    A team's own login may lead to private addresses, but not to the server's own machine, unless its
    administrator names the network, and never to where clouds tell machines their credentials.

    Raises:
        UsageError: the administrator's variable names something that is no network.
    """
    if TEAM_VARIABLE not in environ:
        return None
    named = named_networks(environ)

    def may_reach(address: Address) -> bool:
        is_named = any(address in network for network in named)
        return not is_metadata(address) and (is_named or not is_own_machine(address))

    return may_reach


def checked_connection(
    host: str, port: int, may_reach: MayReach, timeout_s: float, resolve: Resolve = socket.getaddrinfo
) -> socket.socket:
    """A connection to an address of a host that may be reached.

    The name is resolved once, and what is connected to is what was checked: a name that means something
    else a moment later changes nothing.

    Args:
        host: a name or an address.
        port: of it.
        may_reach: says of each address whether it may be.
        timeout_s: for all addresses together, then for each answer.
        resolve: gives them.

    Raises:
        UnreachedAddressError: no address of it may be, or can be reached.
    """
    trouble, end_s = f"{host} has no address", time.monotonic() + timeout_s
    for family, kind, protocol, _, place in resolve(host, port, type=socket.SOCK_STREAM):
        if not may_reach(address_of(place[0])):
            trouble = f"{host} is {place[0]}, which this server does not connect to for its users"
            continue
        found = socket.socket(family, kind, protocol)
        found.settimeout(max(end_s - time.monotonic(), 0.001))
        try:
            found.connect(place)
            peer = found.getpeername()[0]
            if may_reach(address_of(peer)):
                found.settimeout(timeout_s)
                return found
            trouble = f"{host} is {peer}, which this server does not connect to for its users"
        except OSError as error:
            trouble = f"{host} cannot be reached: {error}"
        found.close()
    raise UnreachedAddressError(trouble)


def has_proxy(url: str) -> bool:
    """Whether a proxy that this machine's administrator has named carries requests to a URL."""
    at = urlsplit(url)
    return at.scheme in getproxies() and not proxy_bypass(at.hostname or "")


def checked_request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    may_reach: MayReach,
    timeout_s: float,
    *,
    context: ssl.SSLContext | None = None,
    resolve: Resolve = socket.getaddrinfo,
    most_bytes: int = 0,
) -> tuple[int, dict[str, str], bytes]:
    """One request over a `checked_connection`; redirects are not followed.

    Args:
        method: of HTTP.
        url: ``http:`` or ``https:``.
        headers: beside ``host``, ``connection`` and the length.
        body: None for none.
        may_reach: see `checked_connection`.
        timeout_s: for the whole of it: what sends a byte a second is cut off, too.
        context: of encrypted connections; None for the system's authorities.
        resolve: see `checked_connection`.
        most_bytes: so much of the answer is read.

    Returns:
        The status, the headers by names in small letters, and what was read of the answer.

    Raises:
        OSError, http.client.HTTPException: there is no answer.
    """
    parts = urlsplit(url)
    is_tls, host = parts.scheme == "https", parts.hostname or ""
    if parts.scheme not in ("http", "https"):
        raise UnreachedAddressError(f"unknown url type: {parts.scheme}")
    is_late = threading.Event()
    with contextlib.ExitStack() as opened:
        began_s = time.monotonic()
        plain = checked_connection(host, parts.port or (443 if is_tls else 80), may_reach, timeout_s, resolve)
        used = opened.enter_context(plain)
        own = opened.enter_context(plain.dup())  # encrypted, a socket is another object
        watchdog = threading.Timer(began_s + timeout_s - time.monotonic(), _cut, (own, is_late))
        watchdog.daemon = True
        watchdog.start()
        opened.callback(watchdog.cancel)
        try:
            if is_tls:
                encrypted = (context or ssl.create_default_context()).wrap_socket(plain, server_hostname=host)
                used = opened.enter_context(encrypted)
            connection = http.client.HTTPConnection(parts.netloc.rpartition("@")[2])
            connection.sock = used
            path = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request(method, path, body, {**headers, "connection": "close"})
            answer = connection.getresponse()
            said = answer.read(most_bytes) if most_bytes else b""
            if answer.length and len(said) < most_bytes:  # Python lets an end that comes too early pass
                raise http.client.IncompleteRead(said, answer.length)
        except TimeoutError:  # the socket has noticed it first
            is_late.set()
        except (OSError, http.client.HTTPException):
            if not is_late.is_set():
                raise
        if is_late.is_set():
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}, said


def _cut(connected: socket.socket, is_late: threading.Event) -> None:
    is_late.set()
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
