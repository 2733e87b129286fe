"""`hosts_provider`: the provider `hosts` as a home has it, from its inventory to the connections."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Final

from trainmaster.providers.hosts import HostsProvider
from trainmaster.providers.inventory import FILE_NAME, read_inventory
from trainmaster.providers.place import ProviderPlace
from trainmaster.remote import host_keys
from trainmaster.remote.connection import Ssh
from trainmaster.remote.shell import SshShell

#: Names another inventory than the home's.
VARIABLE: Final = "TRAINMASTER_HOSTS"


def hosts_provider(place: ProviderPlace) -> HostsProvider:
    """The provider of a home.

    Args:
        place: of the home; ``TRAINMASTER_HOSTS`` in its variables may name another inventory.

    Raises:
        UsageError: there is no inventory, or a mistake in it.
        MissingPartError: asyncssh is not installed.
    """
    named = place.environ.get(VARIABLE)
    inventory = read_inventory(Path(named).expanduser() if named else place.root / FILE_NAME)
    ssh = Ssh(host_keys.HostKeys(place.root / host_keys.FILE_NAME))
    provider = HostsProvider(inventory, SshShell(ssh), place.directory("hosts"), place.identity)
    weakref.finalize(provider, ssh.close)  # also when the process ends
    return provider
