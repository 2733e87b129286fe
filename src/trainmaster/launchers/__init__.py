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
from trainmaster.spec.launcher_names import LAUNCHERS
from trainmaster.spec.plugins import PluginRegistry

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

_LAUNCHERS = PluginRegistry(
    "launcher",
    {
        "jax": "trainmaster.launchers.jax:JaxLauncher",
        "mpi": "trainmaster.launchers.mpi:MpiLauncher",
        "mxnet": "trainmaster.launchers.mxnet:MxnetLauncher",
        "plain": "trainmaster.launchers.plain:PlainLauncher",
        "spark": "trainmaster.launchers.spark:SparkLauncher",
        "tensorflow": "trainmaster.launchers.tensorflow:TensorFlowLauncher",
        "torchrun": "trainmaster.launchers.torchrun:TorchrunLauncher",
    },
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
