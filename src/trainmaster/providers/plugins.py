"""`get_provider`: providers by name, built in first, then installed plug-ins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trainmaster.providers.base import Provider, ProviderPlace
from trainmaster.providers.own_settings import NotSetUpError
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
    with told_of_own_logins(name, place):
        found: Provider = PROVIDERS.make(name, place)
    return found


@contextmanager
def told_of_own_logins(name: str, place: ProviderPlace) -> Iterator[None]:
    """Say to a team, of a provider that the server is not set up for, that it may have a login of its own.

    Raises:
        NotSetUpError: what is raised within, in these words where it may.
    """
    try:
        yield
    except NotSetUpError:
        if not place.asker:
            raise
        raise NotSetUpError(
            f"the server has no settings for {name}, and team {place.asker} no login of its own there",
            "Its managers may send one, as the page /team#logins tells them. The command is "
            f"`trainmaster team login {place.asker} {name}`.",
        ) from None
