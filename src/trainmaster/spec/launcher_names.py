"""Which launcher a framework has."""

from __future__ import annotations

from typing import Final

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
    "spark": "spark",
    "plain": "plain",
}
