"""Runs at a place that schedules by itself, as their tests have them, and what these ask the place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from renter import Renter

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account

#: Beyond which something hangs; the machine may be slow, and others may use it.
PATIENCE_S = 300.0
GANG = """
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: {workers}, per_node: 1}}
    framework: plain
    hardware: {{instance: {machine}}}
    checkpoint: {{every: 3s}}
    grace: 5s
    command: echo gpus=${{CUDA_VISIBLE_DEVICES-all}}; python3 steps.py {steps} 0.15 0.02
"""


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S, seen: Callable[[], Any] = str) -> Any:
    """Ask again and again, but not all the time."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {seen()}"
        time.sleep(0.5)
    return found


def gang(user: Renter, workers: int = 2, steps: int = 60, machine: str = "node") -> Path:
    """Members that count, save, and go on from what was saved."""
    return user.recipe(GANG.format(workers=workers, steps=steps, machine=machine))


def until_step(user: Renter, run: str) -> None:
    """A checkpoint is there."""
    until(lambda: user.checkpoints(run))


def check_clean(account: Account) -> None:
    """Neither jobs nor files nor processes of ours are left in a Slurm."""
    slurm, scratch = account.slurm, account.home.parent / "scratch"
    until(lambda: not slurm.jobs(), seen=lambda: slurm.command("squeue", "-o", "%i %T %r %j %k %N"))
    until(lambda: not list(scratch.iterdir()), seen=lambda: list(scratch.iterdir()))
