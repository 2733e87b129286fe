"""Limits of processes: core dumps, and open files.

Processes that hold secrets leave no image of their memory behind when they crash; those of users may.
A driver of hundreds of runs needs more open files than what it starts.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# One byte, which no dump fits into: files are not written, and programs that take dumps (a pipe in
# `core_pattern`: systemd-coredump, apport) are not started, as they are in spite of a limit of 0.
_NO_DUMP_BYTES = 1

_given_core: tuple[int, int] | None = None
_lending = threading.Lock()  # the limit is the whole process's, and runs of several threads start supervisors


def forbid_core_dumps() -> None:
    """Let this process, and those that it starts, leave no core dump. Again, it changes nothing."""
    global _given_core
    if _given_core is None:
        _given_core = resource.getrlimit(resource.RLIMIT_CORE)
        if _given_core[1] != 0:
            resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP_BYTES, _given_core[1]))


@contextmanager
def core_dumps_as_given() -> Iterator[None]:
    """What is started here may leave what our own caller's processes may: it is the user's."""
    if _given_core is None:
        yield
        return
    with _lending:
        forbidden = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, _given_core)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, forbidden)


#: Enough for a thousand runs with their connections.
_WANTED = 65_536

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
