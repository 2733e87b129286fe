"""`hosts_provider`: the provider `hosts` as a home has it, from its inventory to the connections."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainmaster.providers.base import Node, ProviderPlace
from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import Result, Target, Transport, jump_target
from trainmaster.transport.pool import ConnectionPool

if TYPE_CHECKING:
    from trainmaster.providers.hosts import HostsProvider
    from trainmaster.providers.inventory import InventoryHost
    from trainmaster.transport.ssh import Ssh


def target_of(machine: InventoryHost | Node) -> Target:
    """Where a host of an inventory, or a node of any provider, is reached."""
    node = machine if isinstance(machine, Node) else None
    rented, jump_key = node if node is not None and node.is_rented else None, machine.key
    if rented is not None:
        jump_key = Path(rented.jump_key) if rented.jump_key else None
    return Target(
        name=machine.id if isinstance(machine, Node) else machine.name,
        address=machine.address,
        port=machine.port,
        user=machine.user,
        key=machine.key,
        host_key=machine.host_key,
        pin_as=rented.id if rented is not None else "",
        private_address=machine.private_address or machine.address,
        jump=jump_target(machine.jump, jump_key),
        way=node.way if node is not None else "",
        python=machine.python,
        directory=machine.directory,
    )


_AT_ONCE: Final = 16
_TIMEOUT_S: Final = 30.0


class SshShell:
    """Runs scripts on hosts, many at a time; scripts may be repeated. Connections are kept until `close`.

    Args:
        ssh: connects.
    """

    def __init__(self, ssh: Transport) -> None:
        self._connections = ConnectionPool(ssh)

    def run_all(self, hosts: Sequence[InventoryHost], script: str) -> list[Result | TrainmasterError]:
        """Run a script on each host; see `HostShell`."""
        if not hosts:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(hosts)), "claims") as pool:
            return list(pool.map(lambda host: self._run(host, script), hosts))

    def close(self) -> None:
        """Hang up everywhere."""
        self._connections.close()

    def _run(self, host: InventoryHost, script: str) -> Result | TrainmasterError:
        try:
            return self._connections.use(target_of(host), lambda it: it.shell(script, timeout_s=_TIMEOUT_S))
        except TrainmasterError as error:
            return error


def transport_of(place: ProviderPlace) -> Ssh:
    """What machines with an SSH server are reached by; what `TRANSPORTS` names."""
    from trainmaster.transport.checked_connection import team_may_reach
    from trainmaster.transport.ssh import ssh_transport

    return ssh_transport(place.root, team_may_reach(place.environ))


def hosts_provider(place: ProviderPlace) -> HostsProvider:
    """The provider of a home.

    Args:
        place: of the home; ``TRAINMASTER_HOSTS`` in its variables may name another inventory.

    Raises:
        UsageError: there is no inventory, or a mistake in it.
        MissingPartError: asyncssh is not installed.
    """
    # Here: all machines are reached as `target_of` says.
    from trainmaster.providers.hosts import HostsProvider
    from trainmaster.providers.inventory import inventory_file, read_inventory
    from trainmaster.transport.ssh import ssh_transport

    inventory = read_inventory(inventory_file(place.root, place.environ))
    ssh = ssh_transport(place.root)
    provider = HostsProvider(inventory, SshShell(ssh), place.directory("hosts"), place.identity)
    weakref.finalize(provider, ssh.close)  # also when the process ends
    return provider
