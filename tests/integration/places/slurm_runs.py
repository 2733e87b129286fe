"""What tests of runs on a real Slurm ask it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # another folder's conftest.py may have the name by then
    from conftest import Account


def until(condition: Callable[[], Any], patience_s: float, seen: Callable[[], Any] = str) -> None:
    """Ask Slurm again and again, but not all the time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {seen()}"
        time.sleep(0.3)


def check_clean(account: Account) -> None:
    """Neither jobs nor files nor processes of ours are left."""
    slurm, scratch = account.slurm, account.home.parent / "scratch"
    until(lambda: not slurm.jobs(), 30, lambda: slurm.command("squeue", "-o", "%i %T %r %j %k %N"))
    until(lambda: not list(scratch.iterdir()), 30, lambda: list(scratch.iterdir()))
