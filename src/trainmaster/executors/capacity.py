"""What this machine has, as far as this process may use it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.spec.processes import chosen_gpus, granted_cores, granted_memory

_NVIDIA_SMI_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The resources of one node.

    Attributes:
        cores: CPU cores we may run on, at least 1.
        memory_bytes: memory we may use.
        gpus: ids as for CUDA_VISIBLE_DEVICES.
    """

    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]


def detect_capacity(root: Path = Path("/")) -> NodeCapacity:
    """Look at this machine; takes a millisecond unless it has GPUs.

    Args:
        root: where ``proc`` and ``sys`` are (tests make their own).
    """
    return NodeCapacity(max(1, int(granted_cores(root))), granted_memory(root), _gpus(root))


def _gpus(root: Path) -> tuple[str, ...]:
    chosen = chosen_gpus()
    if chosen is not None:
        return tuple(chosen)
    try:
        count = len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        count = 0
    if not count and (program := shutil.which("nvidia-smi")):
        count = _count_with(program)
    return tuple(str(number) for number in range(count))


def _count_with(program: str) -> int:
    try:
        listing = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return (
        sum(line.startswith("GPU ") for line in listing.stdout.splitlines()) if not listing.returncode else 0
    )
