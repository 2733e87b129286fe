"""`target_of`: where a machine of a provider is reached over SSH."""

from __future__ import annotations

from pathlib import Path

from trainmaster.providers.base import Node
from trainmaster.providers.inventory import InventoryHost
from trainmaster.transport.base import Target


def target_of(machine: InventoryHost | Node) -> Target:
    """Where a host of an inventory, or a node of any provider, is reached."""
    return Target(
        name=machine.id if isinstance(machine, Node) else machine.name,
        address=machine.address,
        port=machine.port,
        user=machine.user,
        key=machine.key,
        host_key=machine.host_key,
        pin_as=machine.id if isinstance(machine, Node) and machine.is_rented else "",
        private_address=machine.private_address or machine.address,
        jump=_jump(machine.jump, machine.key),
        python=machine.python,
        directory=machine.directory,
    )


def _jump(written: str, key: Path | None) -> Target | None:
    if not written:
        return None
    user, _, place = written.rpartition("@")
    address, _, port = place.partition(":")
    return Target(name=address, address=address, port=int(port or 22), user=user, key=key)
