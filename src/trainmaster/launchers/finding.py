"""`get_launcher`: the launcher of a framework; each is loaded when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.spec.launcher_names import LAUNCHERS
from trainmaster.spec.plugins import PluginRegistry

if TYPE_CHECKING:
    from trainmaster.launchers.base import Launcher

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
        UsageError: the name is unknown.

    >>> get_launcher("pytorch").name
    'torchrun'
    """
    found: Launcher = _LAUNCHERS.make(LAUNCHERS.get(name, name))
    return found
