"""Which addresses are on the public internet: all that a server may connect to for those who use it."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from trainmaster.service import cloud_metadata

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
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
    return any(address in network for network in cloud_metadata.NETWORKS)


def is_public(address: Address) -> bool:
    """Whether an address of `address_of` is on the public internet.

    >>> [is_public(address_of(each)) for each in ("8.8.8.8", "127.0.0.1", "169.254.169.254", "2002:7f00:1::")]
    [True, False, False, False]
    """
    is_own = any(address in network for network in _OWN)
    return address.is_global and not (address.is_multicast or is_own or is_metadata(address))
