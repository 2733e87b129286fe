"""`local_offer`: this machine as an offer that costs nothing."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

from trainmaster.providers.offer import Offer, site_offer
from trainmaster.spec.processes import chosen_gpus, granted_cores, granted_memory

_NVIDIA_SMI_TIMEOUT_S: Final = 10.0
_MIB: Final = 1 << 20


def local_offer(today: date, root: Path = Path("/")) -> Offer:
    """What this machine has, as it would be listed by somebody who rents it out.

    In a container: what the container was granted.

    Args:
        today: the day.
        root: where ``sys`` and ``proc`` are (tests make their own).
    """
    model, count, gpu_memory_bytes = _gpus()
    nic_gbps = _nic_gbps(root)
    cores, memory_bytes = granted_cores(root), granted_memory(root)
    name = platform.node() or "this machine"
    found = site_offer("local", name, cores, memory_bytes, today, "measured", gpu=model, gpus=count)
    return replace(
        found,
        accelerator_memory_bytes=gpu_memory_bytes,
        nic_gbps=nic_gbps,
        nic_burst_gbps=nic_gbps,
        arch={"amd64": "x86_64", "aarch64": "arm64"}.get(platform.machine().lower(), platform.machine()),
    )


def _nic_gbps(root: Path) -> float | None:
    """Speed of the fastest network card that is up; None where no driver tells (virtual ones do not)."""
    speeds = []
    for card in sorted((root / "sys/class/net").glob("*")):
        if card.name == "lo" or not (card / "device").exists():
            continue  # bridges and tunnels claim speeds that no cable has
        try:
            speeds.append(int((card / "speed").read_text()))
        except (OSError, ValueError):
            continue  # the kernel answers EINVAL for a card that is down
    fastest = max(speeds, default=-1)
    return fastest / 1000 if fastest > 0 else None


def _gpus() -> tuple[str, int, int | None]:
    """Model, number and memory of the GPUs; of different ones, those of the first kind."""
    chosen = chosen_gpus()
    if chosen == []:
        return "", 0, None
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            query, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "", 0, None
    if answer.returncode:
        return "", 0, None
    model, count, memory_bytes = parse_gpus(answer.stdout)
    return model, count if chosen is None else min(count, len(chosen)), memory_bytes


def parse_gpus(listing: str) -> tuple[str, int, int | None]:
    r"""Model, number and memory of one GPU from the lines of ``nvidia-smi``.

    >>> parse_gpus("NVIDIA H200, 143771\nNVIDIA H200, 143771\n")
    ('H200', 2, 150754820096)
    >>> parse_gpus("NVIDIA GB10, [N/A]\n")
    ('GB10', 1, None)
    """
    rows = [line.rpartition(",") for line in listing.splitlines() if "," in line]
    if not rows:
        return "", 0, None
    first, _, memory = rows[0]
    count = sum(name == first for name, _, _ in rows)
    mebibytes = memory.strip()
    return (
        first.strip().removeprefix("NVIDIA "),
        count,
        int(mebibytes) * _MIB if mebibytes.isdigit() else None,
    )
