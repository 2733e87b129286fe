"""From a gang to each member's environment: `get_launcher` finds the `Launcher` of a framework.

Pure and cheap: nothing here starts a process, opens a file or imports a framework.
"""

from __future__ import annotations

from trainmaster.launchers.base import Gang, Launcher, Member
from trainmaster.launchers.plain import PlainLauncher
from trainmaster.launchers.torchrun import TorchrunLauncher
from trainmaster.spec.errors import MissingPartError, UsageError

__all__ = ["Gang", "Launcher", "Member", "PlainLauncher", "TorchrunLauncher", "get_launcher"]

_BUILT_IN: dict[str, type[Launcher]] = {
    "plain": PlainLauncher,
    "torchrun": TorchrunLauncher,
    "pytorch": TorchrunLauncher,  # the name that recipes use
}
_LATER = ("jax", "mpi", "mxnet", "spark", "tensorflow")
_ENTRY_POINTS = "trainmaster.launchers"


def get_launcher(name: str) -> Launcher:
    """The launcher of a framework: built in first, then installed plug-ins.

    Args:
        name: as in the recipe's ``framework``; ``pytorch`` is another name of ``torchrun``.

    Raises:
        MissingPartError: Trainmaster will have it, or it is installed but cannot be loaded.
        UsageError: nobody knows this name.

    >>> get_launcher("pytorch").name
    'torchrun'
    """
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    from importlib.metadata import entry_points  # reads every installed package: only if needed

    plugins = {point.name: point for point in entry_points(group=_ENTRY_POINTS)}
    if name in plugins:
        try:
            found: Launcher = plugins[name].load()()
        except Exception as error:  # a plug-in may raise anything while it loads
            raise MissingPartError(
                f"the launcher {name!r} ({plugins[name].value}) is installed but cannot be loaded: {error}",
                "Install what it needs, or remove it.",
            ) from error
        return found
    known = ", ".join(sorted({*_BUILT_IN, *plugins}))
    if name in _LATER:
        raise MissingPartError(
            f"this version of Trainmaster has no launcher for {name!r} yet",
            f"Use one of {known}; `plain` starts any program.",
        )
    raise UsageError(f"there is no launcher {name!r}", f"Known are {known}.")
