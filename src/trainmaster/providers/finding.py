"""`get_provider`: providers by name, built in first, then installed plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from trainmaster.providers.base import Provider
from trainmaster.providers.place import ProviderPlace
from trainmaster.spec.errors import MissingPartError, TrainmasterError, UsageError
from trainmaster.spec.node import nearest

#: What makes a provider: ``name -> module:function``, called with a `ProviderPlace`. The module is loaded
#: when somebody wants it, so that nobody waits for libraries of clouds that are not used.
BUILT_IN: Final = {
    "aws": "trainmaster.providers.aws.provider:aws_provider",
    "hosts": "trainmaster.providers.hosts_over_ssh:hosts_provider",
    "lab": "trainmaster.providers.aws.provider:lab_provider",
}
#: Plug-ins name a callable like those above in this group of entry points.
GROUP: Final = "trainmaster.providers"


def get_provider(name: str, place: ProviderPlace) -> Provider:
    """The provider of a name.

    Args:
        name: as in recipes.
        place: of the home.

    Raises:
        UsageError: nobody knows the name, or its settings or credentials are wrong.
        MissingPartError: it is there, but what it needs is not installed.
    """
    return _maker(name)(place)


def _maker(name: str) -> Callable[[ProviderPlace], Provider]:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        return cast("Callable[[ProviderPlace], Provider]", getattr(import_module(module), attribute))
    from importlib.metadata import entry_points  # reads every installed package: only if needed

    plugins = {point.name: point for point in entry_points(group=GROUP)}
    if name in plugins:
        try:
            return cast("Callable[[ProviderPlace], Provider]", plugins[name].load())
        except TrainmasterError:
            raise
        except Exception as error:  # a plug-in may raise anything while it loads
            raise MissingPartError(
                f"the provider {name!r} ({plugins[name].value}) is installed but cannot be loaded: {error}",
                "Install what it needs, or remove it.",
            ) from error
    known = sorted({"local", *BUILT_IN, *plugins})
    near = nearest(name, known)
    hint = f"Did you mean {near!r}? " if near else ""
    raise UsageError(f"there is no provider {name!r}", f"{hint}Known are {', '.join(known)}.")
