"""What a host's name or address says about where it is: on this machine, or on the public internet. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

from trainmaster.spec.errors import fails_as

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
#: Names networks of the server's own, with commas, to which it may connect for its users.
NETWORKS_VARIABLE: Final = "TRAINMASTER_WEBHOOK_NETWORKS"
#: Where clouds tell a machine its credentials.
METADATA: Final = tuple(
    ip_network(each)
    for each in (
        "169.254.0.0/16",  # almost all clouds have 169.254.169.254; ECS, EKS, Scaleway, Tencent have more
        "fe80::/10",  # OpenStack
        "fd00:ec2::/32",  # EC2, EKS
        "fd20:ce::254/128",  # Google
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "fd00:42::42/128",  # Scaleway
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure: its host, beside 169.254.169.254
    )
)
#: NAT64 (RFC 6052): an IPv4 address in the last 32 bits.
_NAT64: Final = ip_network("64:ff9b::/96")
#: Not private to `ipaddress`, but routed to wherever this network's operator says: tunnels and translators
#: (6to4 and its relays, Teredo, IPv4-compatible, SIIT, NAT64 of a network), and what was site-local.
_OWN: Final = tuple(
    ip_network(each)
    for each in (
        "2002::/16", "192.88.99.0/24", "2001::/32", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "fec0::/10",
    )
)  # fmt: skip
#: An address in brackets or a name, then perhaps a port.
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.IGNORECASE)


def url_parts(url: str, what: str) -> SplitResult:
    """The parts of a URL that somebody has written.

    Args:
        url: it.
        what: names it in messages.

    Raises:
        UsageError: it is none.
    """
    with fails_as(f"{what} is no address", "Write one such as https://example.org:5000.", on=ValueError):
        found = urlsplit(url)
        found.port  # noqa: B018 - it is read only now
    return found


def name_of(host: str) -> str:
    """The name or address of a host, as one is compared with another; empty for what is none.

    Args:
        host: as in URLs, in ``Host`` and in names of images: perhaps with a port.

    >>> name_of("Example.org.:80"), name_of("[::FFFF:10.0.0.5]:80"), name_of("::1"), name_of("a b")
    ('example.org', '10.0.0.5', '::1', '')
    """
    try:
        address = ip_address(host)
    except ValueError:
        found = _HOST.fullmatch(host)
        if found is None:
            return ""
        name = found[1].lower().removesuffix(".")
        try:
            address = ip_address(name.strip("[]"))
        except ValueError:
            return "" if name.startswith("[") else name
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def is_loopback(host: str) -> bool:
    """Whether a host, perhaps with a port, can only mean the machine on which it is used.

    Names below ``localhost`` are none: resolvers that do not know RFC 6761 ask others for them.

    >>> [is_loopback(each) for each in ("localhost:5000", "127.0.0.2", "[::1]:80")]
    [True, True, True]
    >>> [is_loopback(each) for each in ("127.evil.org", "localhost.evil.org", "x.localhost", "")]
    [False, False, False, False]
    """
    name = name_of(host)
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def is_link_local(host: str) -> bool:
    """Whether a host, perhaps with a port, is an address of the wire that a machine is on."""
    try:
        return ip_address(name_of(host)).is_link_local
    except ValueError:
        return False


def address_of(text: str) -> Address:
    """An address as a resolver writes it; what stands for one of IPv4 is that.

    >>> address_of("::ffff:10.0.0.1"), address_of("64:ff9b::808:808"), address_of("fe80::1%eth0")
    (IPv4Address('10.0.0.1'), IPv4Address('8.8.8.8'), IPv6Address('fe80::1'))

    Raises:
        ValueError: it is none.
    """
    found = ip_address(text.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found
    if found in _NAT64:
        return IPv4Address(int(found) & 0xFFFFFFFF)
    return found.ipv4_mapped or found


def is_metadata(address: Address) -> bool:
    """Whether a cloud tells machines their credentials there."""
    return any(address in network for network in METADATA)


def is_own_machine(address: Address) -> bool:
    """Whether an address always means the machine on which it is used.

    >>> [is_own_machine(address_of(each)) for each in ("127.1.2.3", "::1", "0.0.0.0", "::", "10.0.0.1")]
    [True, True, True, True, False]
    """
    return address.is_loopback or address.is_unspecified


def named_networks(environ: Mapping[str, str]) -> tuple[Network, ...]:
    """Those of `NETWORKS_VARIABLE`.

    Raises:
        UsageError: one is no network.
    """
    texts = [text.strip() for text in environ.get(NETWORKS_VARIABLE, "").split(",") if text.strip()]
    with fails_as(NETWORKS_VARIABLE, "Write networks such as 10.1.0.0/16.", on=ValueError):
        return tuple(ip_network(text) for text in texts)


def is_public(address: Address) -> bool:
    """Whether an address of `address_of` is on the public internet: a server may connect to it for its users.

    >>> [is_public(address_of(each)) for each in ("8.8.8.8", "127.0.0.1", "169.254.169.254", "2002:7f00:1::")]
    [True, False, False, False]
    """
    is_own = any(address in network for network in _OWN)
    return address.is_global and not (address.is_multicast or is_own or is_metadata(address))
