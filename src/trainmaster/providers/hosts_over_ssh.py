"""`hosts_provider`: the provider `hosts` as a home has it, from its inventory to the connections."""

from __future__ import annotations

import weakref

from trainmaster.providers.hosts import HostsProvider
from trainmaster.providers.inventory import inventory_file, read_inventory
from trainmaster.providers.place import ProviderPlace
from trainmaster.providers.ssh_shell import SshShell
from trainmaster.transport import host_keys
from trainmaster.transport.ssh import Ssh


def hosts_provider(place: ProviderPlace) -> HostsProvider:
    """The provider of a home.

    Args:
        place: of the home; ``TRAINMASTER_HOSTS`` in its variables may name another inventory.

    Raises:
        UsageError: there is no inventory, or a mistake in it.
        MissingPartError: asyncssh is not installed.
    """
    inventory = read_inventory(inventory_file(place.root, place.environ))
    ssh = Ssh(host_keys.HostKeys(place.root / host_keys.FILE_NAME))
    provider = HostsProvider(inventory, SshShell(ssh), place.directory("hosts"), place.identity)
    weakref.finalize(provider, ssh.close)  # also when the process ends
    return provider
