"""`get_provider`: providers by name, built in first, then plug-ins; `get_transport`: how they are reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainmaster.providers.base import Provider, ProviderPlace
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.plugins import PluginRegistry

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.transport.base import Transport

#: Each is called with a `ProviderPlace`.
PROVIDERS: Final = PluginRegistry(
    "provider",
    {
        "aws": "trainmaster.providers.aws.provider:aws_provider",
        "hosts": "trainmaster.providers.hosts_over_ssh:hosts_provider",
        "im": "trainmaster.providers.im.provider:im_provider",
        "lab": "trainmaster.providers.aws.provider:lab_provider",
        "slurm": "trainmaster.providers.slurm.provider:slurm_provider",
    },
    also=("local",),
)
#: How machines are reached, by `Capabilities.reach`. Each is called with the directory of the home.
TRANSPORTS: Final = PluginRegistry("transport", {"ssh": "trainmaster.transport.ssh:ssh_transport"})


def get_provider(name: str, place: ProviderPlace) -> Provider:
    """The provider of a name.

    Args:
        name: as in recipes.
        place: of the home.

    Raises:
        UsageError: the name is unknown, or its settings or credentials are wrong.
        MissingPartError: it is there, but what it needs is not installed.
    """
    found: Provider = PROVIDERS.make(name, place)
    return found


def get_transport(provider: str, root: Path) -> Transport:
    """What the machines of a provider are reached by; close it.

    Args:
        provider: its name.
        root: of the home.

    Raises:
        UsageError: there is no such provider or transport.
        MissingPartError: it is there, but what it needs is not installed.
    """
    found: Transport = TRANSPORTS.make(capabilities_of(provider).reach, root)
    return found
