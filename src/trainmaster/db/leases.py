"""Which process may drive a run: leases with a fencing token.

A lease has an owner, a token that grows with each change of hands, and an expiry. Every write
of a driver names its token; a stale token changes nothing. The lease of a process that can be seen from
here to be dead is broken at once: there is no wait for an expiry after ``kill -9``.
"""

from __future__ import annotations

import os
import socket

from trainmaster.dataclass import dataclass
from trainmaster.spec import processes

LEASE_S = 30.0
#: A holder renews it so often.
RENEW_S = 5.0


@dataclass(slots=True)
class Lease:
    """The right to drive one run; held by one thread at a time.

    Attributes:
        run: id of the run.
        token: fencing token; larger than every token before it.
        owner: that holds it, see `this_process`.
        turn: the run's as this driver knows it; the database advances it with each commit, so that
            a commit that is repeated because its answer got lost is not written twice.
    """

    run: str
    token: int
    owner: str
    turn: int = 0


def this_process() -> str:
    """``HOST/BOOT/PIDS:PID:START``: names this very process, also after its pid is used again."""
    return f"{_place()}:{os.getpid()}:{processes.start_ticks(os.getpid()) or ''}"


def is_alive(owner: str | None, expires_at: float | None, now: float) -> bool:
    """True if the owner of a lease may still be at work.

    Args:
        owner: text of `this_process`, or None.
        expires_at: Unix seconds.
        now: Unix seconds, by the clock of `Database.clock_s`.
    """
    if not owner:
        return False
    place, pid, start = owner.rsplit(":", 2) if owner.count(":") >= 2 else ("", "", "")
    if place == _place() and processes.process_space():  # we can look: no need to trust the clock
        found = processes.is_alive(int(pid), int(start)) if pid.isdigit() and start.isdigit() else False
        if found is not None:
            return found
    return expires_at is not None and expires_at > now


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that may still be at work on a run.

    Attributes:
        pid: its process, if that is on this machine; else 0.
        is_stopped: that was stopped, or a debugger holds it.
        silent_s: since its last sign of life. One that works gives one every `RENEW_S`.
    """

    pid: int
    is_stopped: bool
    silent_s: float


def holder(owner: str | None, expires_at: float | None, now: float) -> Holder | None:
    """The holder of a lease, as far as that can be seen from here; None if there is none. See `is_alive`."""
    if not owner or not is_alive(owner, expires_at, now):
        return None
    place, pid, _ = owner.rsplit(":", 2) if owner.count(":") >= 2 else ("", "", "")
    is_here = place == _place() and bool(processes.process_space()) and pid.isdigit()
    silent_s = 0.0 if expires_at is None else max(now - (expires_at - LEASE_S), 0.0)
    return Holder(int(pid) if is_here else 0, is_here and processes.is_stopped(int(pid)), silent_s)


def _place() -> str:
    # Containers may share the host's name and its start, but not what their process ids mean.
    return "/".join((socket.gethostname(), *(processes.process_space().split() or ["unknown"])))
