"""Who may drive a run: leases with a fencing token.

A lease has an owner, a token that grows with each change of hands, and an expiry. Every write
of a driver names its token; a stale token changes nothing. The lease of a process of this
machine that is dead is broken at once: nobody waits for an expiry after ``kill -9``.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

LEASE_S = 30.0


@dataclass(slots=True)
class Lease:
    """The right to drive one run; held by one thread at a time.

    Attributes:
        run: id of the run.
        token: fencing token; larger than every token before it.
        owner: who holds it, see `this_process`.
        turn: the run's as this driver knows it; the store advances it with each commit, so that
            a commit that is repeated because its answer got lost is not written twice.
    """

    run: str
    token: int
    owner: str
    turn: int = 0


def this_process() -> str:
    """``HOST/BOOT:PID:START``: names this very process, also after its pid is used again."""
    return f"{_machine()}:{os.getpid()}:{_start_ticks(os.getpid())}"


def is_alive(owner: str | None, expires_at: float | None, now: float) -> bool:
    """True if the owner of a lease may still be at work.

    Args:
        owner: text of `this_process`, or None.
        expires_at: Unix seconds.
        now: Unix seconds.
    """
    if not owner:
        return False
    machine, _, rest = owner.partition(":")
    if machine == _machine():  # we can look: no need to trust the clock
        pid, _, start = rest.partition(":")
        return pid.isdigit() and _start_ticks(int(pid)) == start
    return expires_at is not None and expires_at > now


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return f"{socket.gethostname()}/{boot}"


def _start_ticks(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
