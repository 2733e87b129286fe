"""From a gang to each member's environment: `get_launcher` finds the `Launcher` of a framework.

Pure and cheap: nothing here starts a process, opens a file or imports a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.lazy import lazy_exports

if TYPE_CHECKING:
    from trainmaster.launchers.base import Gang as Gang
    from trainmaster.launchers.base import Launcher as Launcher
    from trainmaster.launchers.base import Member as Member
    from trainmaster.launchers.base import PlainLauncher as PlainLauncher
    from trainmaster.launchers.base import get_launcher as get_launcher
    from trainmaster.launchers.jax import JaxLauncher as JaxLauncher
    from trainmaster.launchers.mpi import MpiLauncher as MpiLauncher
    from trainmaster.launchers.mxnet import MxnetLauncher as MxnetLauncher
    from trainmaster.launchers.ray import RayLauncher as RayLauncher
    from trainmaster.launchers.spark import SparkLauncher as SparkLauncher
    from trainmaster.launchers.tensorflow import TensorFlowLauncher as TensorFlowLauncher
    from trainmaster.launchers.torchrun import TorchrunLauncher as TorchrunLauncher

__all__, __getattr__ = lazy_exports(__name__)
