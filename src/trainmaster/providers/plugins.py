"""`get_provider`: providers by name, built in first, then installed plug-ins."""

from __future__ import annotations

from typing import Final

from trainmaster.providers.base import Provider, ProviderPlace
from trainmaster.spec.plugins import PluginRegistry

#: Each is called with a `ProviderPlace`.
PROVIDERS: Final = PluginRegistry(
    "provider",
    {
        "aws": "trainmaster.providers.aws.provider:aws_provider",
        "hosts": "trainmaster.providers.hosts_over_ssh:hosts_provider",
        "im": "trainmaster.providers.im.provider:im_provider",
        "kubernetes": "trainmaster.providers.kubernetes.provider:kubernetes_provider",
        "lab": "trainmaster.providers.aws.provider:lab_provider",
        "openstack": "trainmaster.providers.openstack.provider:openstack_provider",
        "ray": "trainmaster.providers.ray.provider:ray_provider",
        "slurm": "trainmaster.providers.slurm.provider:slurm_provider",
    },
    also=("local",),
)


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
