"""Delay and loss by the kernel's ``netem``, where it is there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from trainmaster.lab.errors import LabError
from trainmaster.lab.links import Link
from trainmaster.lab.shell import call, inside

_BURST_BYTES: Final = 128 * 1024
#: Packets on their way; 10 Gbit/s at a second needs about that many whole ones.
_PACKETS: Final = 20_000


def is_there(namespace: Path) -> bool:
    """Whether this kernel has it; tried on the loopback of a namespace."""
    try:
        call(inside(namespace, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"))
    except LabError:
        return False
    call(inside(namespace, "tc", "qdisc", "del", "dev", "lo", "root"))
    return True


def commands(port: str, nic_mbps: float, table: Mapping[str, Link]) -> list[str]:
    """What ``tc -batch`` does to a host's port of the bridge, in the direction to the host.

    All classes share the rate of the card; each kind of link has a class of its own behind a ``netem``.

    Args:
        port: of the bridge.
        nic_mbps: rate of the host's card.
        table: address of a sender -> link.
    """
    kbit = f"{int(nic_mbps * 1000)}kbit"
    rate = f"rate {kbit} ceil {kbit} burst {_BURST_BYTES} cburst {_BURST_BYTES}"
    lines = [
        f"qdisc replace dev {port} root handle 1: htb default 10",
        f"class add dev {port} parent 1: classid 1:1 htb {rate}",
        f"class add dev {port} parent 1:1 classid 1:10 htb {rate}",
    ]
    for number, link in enumerate(dict.fromkeys(table.values()), start=11):
        words = f"delay {link.delay_s * 1e6:.0f}us" if link.delay_s else ""
        words += f" loss {link.loss * 100:g}%" if link.loss else ""
        lines.append(f"class add dev {port} parent 1:1 classid 1:{number:x} htb {rate}")
        lines.append(f"qdisc add dev {port} parent 1:{number:x} netem {words.strip()} limit {_PACKETS}")
        lines += [
            f"filter add dev {port} parent 1: protocol ip u32 match ip src {address}/32 flowid 1:{number:x}"
            for address, other in table.items()
            if other == link
        ]
    return lines
