"""From a gang to each member's environment: `get_launcher` finds the `Launcher` of a framework.

Pure and cheap: nothing here starts a process, opens a file or imports a framework.
"""

from __future__ import annotations

from trainmaster.launchers.base import Gang, Launcher, Member
from trainmaster.launchers.jax import JaxLauncher
from trainmaster.launchers.mpi import MpiLauncher
from trainmaster.launchers.mxnet import MxnetLauncher
from trainmaster.launchers.plain import PlainLauncher
from trainmaster.launchers.spark import SparkLauncher
from trainmaster.launchers.tensorflow import TensorFlowLauncher
from trainmaster.launchers.torchrun import TorchrunLauncher
from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.spec.launcher_names import LAUNCHERS

__all__ = [
    "Gang",
    "JaxLauncher",
    "Launcher",
    "Member",
    "MpiLauncher",
    "MxnetLauncher",
    "PlainLauncher",
    "SparkLauncher",
    "TensorFlowLauncher",
    "TorchrunLauncher",
    "get_launcher",
]

_BUILT_IN: dict[str, type[Launcher]] = {
    "jax": JaxLauncher,
    "mpi": MpiLauncher,
    "mxnet": MxnetLauncher,
    "plain": PlainLauncher,
    "spark": SparkLauncher,
    "tensorflow": TensorFlowLauncher,
    "torchrun": TorchrunLauncher,
}
_ENTRY_POINTS = "trainmaster.launchers"


def get_launcher(name: str) -> Launcher:
    """The launcher of a framework: built in first, then installed plug-ins.

    Args:
        name: a launcher's, or what recipes write as ``framework``, such as ``pytorch``.

    Raises:
        MissingPartError: it is installed but cannot be loaded.
        UsageError: nobody knows this name.

    >>> get_launcher("pytorch").name
    'torchrun'
    """
    own = LAUNCHERS.get(name, name)
    if own in _BUILT_IN:
        return _BUILT_IN[own]()
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
    known = ", ".join(sorted({*_BUILT_IN, *LAUNCHERS, *plugins}))
    raise UsageError(f"there is no launcher {name!r}", f"Known are {known}.")
