"""What this machine has, as far as this process may use it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.spec.processes import control_groups, kernel_text

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
    cores = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    if quota is not None:
        cores = min(cores, max(1, int(quota)))
    return NodeCapacity(cores=cores, memory_bytes=_memory_bytes(root), gpus=_gpus(root))


def _cpu_quota(root: Path) -> float | None:
    """Cores that the control group grants, None without a limit."""
    limits = []
    for group in control_groups(root, "cpu"):
        first, _, second = kernel_text(group / "cpu.max").partition(" ")
        if first.isdigit() and second.isdigit():
            limits.append(int(first) / int(second))
        first, second = kernel_text(group / "cpu.cfs_quota_us"), kernel_text(group / "cpu.cfs_period_us")
        if first.isdigit() and second.isdigit() and int(second):
            limits.append(int(first) / int(second))
    return min(limits, default=None)


def _memory_bytes(root: Path) -> int:
    lines = kernel_text(root / "proc/meminfo").splitlines()
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for group in control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limit = kernel_text(group / name)
            if limit.isdigit():
                limits.append(int(limit))
    return min(limits, default=0)


def _gpus(root: Path) -> tuple[str, ...]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(gpu.strip() for gpu in chosen.split(",") if gpu.strip() and gpu.strip() != "-1")
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
