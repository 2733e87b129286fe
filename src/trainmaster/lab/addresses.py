"""Addresses of a lab: a block that is unused on this machine, and public addresses from it."""

from __future__ import annotations

import ipaddress
import json
import threading
from collections.abc import Iterable
from typing import Final

from trainmaster.lab.errors import LabError
from trainmaster.lab.shell import call

#: Set aside for benchmarks of networks (RFC 2544): no network that anybody is connected to uses it.
SPACE: Final = ipaddress.IPv4Network("198.18.0.0/15")
#: A lab's share: 4,094 private and as many public addresses.
LAB_PREFIX: Final = 19


def free_block(used: Iterable[ipaddress.IPv4Network], identity: str) -> ipaddress.IPv4Network:
    """A block that overlaps nothing in use; labs try different ones first.

    Raises:
        LabError: all are in use.

    >>> free_block([], "00000001")
    IPv4Network('198.18.32.0/19')
    >>> free_block([ipaddress.IPv4Network("198.18.32.0/24")], "00000001")
    IPv4Network('198.18.64.0/19')
    """
    blocks = list(SPACE.subnets(new_prefix=LAB_PREFIX))
    first = int(identity, 16) % len(blocks)
    taken = list(used)
    for block in blocks[first:] + blocks[:first]:
        if not any(block.overlaps(other) for other in taken):
            return block
    raise LabError(
        f"all of {SPACE} is in use on this machine",
        "Take down a lab that is not needed (`trainmaster lab down` in its home).",
    )


def used_networks() -> list[ipaddress.IPv4Network]:
    """What this machine's interfaces and routes use, the default route aside."""
    found = []
    for address in json.loads(call(["ip", "-4", "-json", "address"]) or "[]"):
        texts = [f"{info['local']}/{info['prefixlen']}" for info in address.get("addr_info", [])]
        found += [ipaddress.IPv4Network(text, strict=False) for text in texts]
    for route in json.loads(call(["ip", "-4", "-json", "route", "show", "table", "all"]) or "[]"):
        target = route.get("dst", "default")
        if target != "default":
            found.append(ipaddress.IPv4Network(target, strict=False))
    return found


def zone_blocks(private: ipaddress.IPv4Network, zones: Iterable[str]) -> dict[str, str]:
    """The subnet of each zone: a quarter of the private addresses.

    >>> zone_blocks(ipaddress.IPv4Network("198.18.32.0/20"), ["a", "b"])
    {'a': '198.18.32.0/22', 'b': '198.18.36.0/22'}
    """
    return {
        zone: str(block)
        for zone, block in zip(zones, private.subnets(prefixlen_diff=2), strict=False)  # four at most
    }


class PublicAddresses:
    """Hands out public addresses one after the other; safe for threads.

    >>> PublicAddresses(ipaddress.IPv4Network("198.18.48.0/30")).take()
    '198.18.48.1'
    """

    def __init__(self, block: ipaddress.IPv4Network) -> None:
        self._block = block
        self._next = 0
        self._lock = threading.Lock()

    def take(self) -> str:
        """An address that was not handed out for long."""
        with self._lock:
            self._next = self._next % (self._block.num_addresses - 2) + 1
            return str(self._block.network_address + self._next)


def mac_of(address: str) -> str:
    """Follows from the address: neighbours that remember the last host with it are right about the next one.

    >>> mac_of("198.18.0.255")
    '0a:00:c6:12:00:ff'
    """
    return "0a:00:" + ":".join(f"{int(number):02x}" for number in address.split("."))


def port_of(instance: str) -> str:
    """The bridge's end of a host's cable; an interface's name has 15 characters at most.

    >>> port_of("i-0123456789abcdef0")
    'p0123456789abc'
    """
    return "p" + instance.removeprefix("i-")[:13]
