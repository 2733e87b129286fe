"""How many files a process may have open: a driver of hundreds of runs needs more than what it starts."""

from __future__ import annotations

import resource
from typing import Final

#: Enough for a thousand runs with their connections.
_WANTED: Final = 65_536

_given: tuple[int, int] | None = None


def raise_limit() -> None:
    """Let this process open as many as it may."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _given = (soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back(pid: int) -> None:
    """Let a process that we have just started have what we were given: programs with `select` rely on it."""
    if _given is not None:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _given)
