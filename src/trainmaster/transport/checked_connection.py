"""Connections to where a user of a server says: the address that is connected to is one that was checked."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final

from trainmaster.spec.addresses import Address, address_of, is_metadata, is_own_machine, named_networks

#: Whether an address may be connected to.
MayReach = Callable[[Address], bool]
Resolve = Callable[..., list[tuple[Any, ...]]]
#: Says that the variables are those of a team's own login to a place, and whose.
TEAM_VARIABLE: Final = "TRAINMASTER_LOGIN_TEAM"
_TIMEOUT_S: Final = 60.0


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

    Raises:
        UnreachedAddressError: no address of it may be, or can be reached.
    """
    trouble = f"{host} has no address"
    for family, kind, protocol, _, place in resolve(host, port, type=socket.SOCK_STREAM):
        if not may_reach(address_of(place[0])):
            trouble = f"{host} is {place[0]}, which this server does not connect to for its users"
            continue
        found = socket.socket(family, kind, protocol)
        found.settimeout(timeout_s)
        try:
            found.connect(place)
            peer = found.getpeername()[0]
            if may_reach(address_of(peer)):
                return found
            trouble = f"{host} is {peer}, which this server does not connect to for its users"
        except OSError as error:
            trouble = f"{host} cannot be reached: {error}"
        found.close()
    raise UnreachedAddressError(trouble)


def checked_handler(may_reach: MayReach, context: ssl.SSLContext | None = None) -> urllib.request.BaseHandler:
    """What opens requests of urllib over such connections; a proxy that the server has is trusted.

    Args:
        may_reach: see `checked_connection`.
        context: of encrypted connections; None for the system's authorities.
    """

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            timeout_s = self.timeout if isinstance(self.timeout, int | float) else _TIMEOUT_S
            self.sock = checked_connection(self.host, self.port, may_reach, timeout_s)

    class Encrypted(http.client.HTTPSConnection, Plain):
        """What encrypts calls `Plain.connect` first."""

    class Handler(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return super().http_open(req) if req.has_proxy() else self.do_open(Plain, req)

        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            if getattr(req, "_tunnel_host", None):
                return super().https_open(req)
            return self.do_open(Encrypted, req, context=context)

    return Handler(context=context)
