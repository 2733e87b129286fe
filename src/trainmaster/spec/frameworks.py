"""What a framework needs: its launcher, the module that scripts import, and an image that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.plugins import PluginRegistry

#: By what people write as ``framework``; a launcher's own name is one, too.
LAUNCHERS: Final[dict[str, str]] = {
    "pytorch": "torchrun",
    "torch": "torchrun",
    "torchrun": "torchrun",
    "lightning": "torchrun",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "jax": "jax",
    "flax": "jax",
    "mxnet": "mxnet",
    "mpi": "mpi",
    "horovod": "mpi",
    "ray": "ray",
    "spark": "spark",
    "plain": "plain",
}
#: What makes one cluster of machines: classes that are a `RecordedCluster`.
ENGINES: Final = PluginRegistry(
    "engine",
    {
        "ray": "trainmaster.executors.ray.cluster:RayCluster",
        "ssh": "trainmaster.executors.ssh.cluster:SshCluster",
    },
)
#: Of clusters that were recorded before each named its own.
RECORDED_ENGINE: Final = "ray"
#: Of so many machines and fewer SSH alone makes a cluster: it is there sooner, and takes less of them
#: (`benchmarks/RESULTS.md`, where 24 are the most that was measured).
FEW_MACHINES: Final = 24
#: As a ``container``: the image of the experiment's framework. As an ``engine``: see `engine_for`.
AUTO: Final = "auto"


def engine_for(asked: str, machines: int, *, scheduled: bool) -> str:
    """What makes one cluster of machines.

    Args:
        asked: in the recipe; `AUTO` leaves it open.
        machines: how many there are.
        scheduled: they come from what places gangs by itself, such as a Slurm: nothing is laid over it.

    >>> [engine_for("auto", machines, scheduled=False) for machines in (1, 24, 25)]
    ['ssh', 'ssh', 'ray']
    >>> engine_for("auto", 25, scheduled=True), engine_for("ray", 1, scheduled=True)
    ('ssh', 'ray')
    """
    if asked != AUTO:
        return asked
    return "ssh" if scheduled or machines <= FEW_MACHINES else "ray"


@dataclass(frozen=True, slots=True)
class Packages:
    """What scripts of a framework need on a machine.

    Attributes:
        module: that they import.
        package: that brings it, for pip.
        image: that has it; empty where none is published and kept.
        gpu_image: the same where GPUs are asked for; empty: ``image`` has both.
    """

    module: str
    package: str
    image: str = ""
    gpu_image: str = ""


_PYTORCH: Final = Packages("torch", "torch", "docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime")
_TENSORFLOW: Final = Packages(
    "tensorflow",
    "tensorflow",
    "docker.io/tensorflow/tensorflow:2.18.0",
    "docker.io/tensorflow/tensorflow:2.18.0-gpu",
)
_JAX: Final = Packages("jax", "jax")
PACKAGES: Final[dict[str, Packages]] = {
    "pytorch": _PYTORCH,
    "torch": _PYTORCH,
    "torchrun": _PYTORCH,
    "lightning": _PYTORCH,
    "tensorflow": _TENSORFLOW,
    "keras": _TENSORFLOW,
    "jax": _JAX,
    "flax": _JAX,
    "mxnet": Packages("mxnet", "mxnet"),
    "horovod": Packages(
        "horovod", "horovod", "docker.io/horovod/horovod-cpu:0.28.1", "docker.io/horovod/horovod:0.28.1"
    ),
    "ray": Packages("ray", "ray"),
    "spark": Packages("pyspark", "pyspark"),
}


def packages_of(framework: str | None) -> Packages | None:
    """What scripts of a framework need; None of one that is no library of Python, or that we do not know."""
    return PACKAGES.get(framework.lower()) if framework else None


def image_variable(framework: str) -> str:
    """The variable that names another image for a framework.

    >>> image_variable("pytorch")
    'TRAINMASTER_IMAGE_PYTORCH'
    """
    return f"TRAINMASTER_IMAGE_{framework.upper().replace('-', '_')}"


def image_of_framework(framework: str | None, environ: Mapping[str, str], *, gpus: bool) -> str:
    """What ``container: auto`` takes; empty where there is none.

    Args:
        framework: as written.
        environ: may name another one.
        gpus: whether the experiment asks for any.

    >>> image_of_framework("keras", {}, gpus=False)
    'docker.io/tensorflow/tensorflow:2.18.0'
    >>> image_of_framework("jax", {"TRAINMASTER_IMAGE_JAX": "me/jax:1"}, gpus=True)
    'me/jax:1'
    """
    if framework is None:
        return ""
    if own := environ.get(image_variable(framework), ""):
        return own
    packages = packages_of(framework)
    return "" if packages is None else (packages.gpu_image if gpus else "") or packages.image
