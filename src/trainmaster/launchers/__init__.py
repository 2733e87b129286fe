"""From a gang to each member's environment: `get_launcher` finds the `Launcher` of a framework.

Pure and cheap: nothing here starts a process, opens a file or imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.launchers.base import Gang, Launcher, Member
from trainmaster.lazy import lazy_exports
from trainmaster.spec.launcher_names import LAUNCHERS
from trainmaster.spec.plugins import PluginRegistry

if TYPE_CHECKING:
    from trainmaster.launchers.jax import JaxLauncher as JaxLauncher
    from trainmaster.launchers.mpi import MpiLauncher as MpiLauncher
    from trainmaster.launchers.mxnet import MxnetLauncher as MxnetLauncher
    from trainmaster.launchers.plain import PlainLauncher as PlainLauncher
    from trainmaster.launchers.spark import SparkLauncher as SparkLauncher
    from trainmaster.launchers.tensorflow import TensorFlowLauncher as TensorFlowLauncher
    from trainmaster.launchers.torchrun import TorchrunLauncher as TorchrunLauncher

_BUILT_IN = {
    "jax": "JaxLauncher",
    "mpi": "MpiLauncher",
    "mxnet": "MxnetLauncher",
    "plain": "PlainLauncher",
    "spark": "SparkLauncher",
    "tensorflow": "TensorFlowLauncher",
    "torchrun": "TorchrunLauncher",
}
_names, __getattr__ = lazy_exports(__name__, _BUILT_IN)
__all__ = ["Gang", "Launcher", "Member", "get_launcher", *_names]

_LAUNCHERS = PluginRegistry(
    "launcher",
    {name: f"trainmaster.launchers.{name}:{of}" for name, of in _BUILT_IN.items()},
    also=LAUNCHERS,
)


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
    found: Launcher = _LAUNCHERS.make(LAUNCHERS.get(name, name))
    return found
