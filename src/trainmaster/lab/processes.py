"""Whether a process is still the one that it was: its id and when it started."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None if there is none, or only its remains.

    >>> import os
    >>> start_time(os.getpid()) == start_time(os.getpid()) is not None
    True
    >>> start_time(2**31 - 1) is None
    True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process with this id that started then still runs."""
    return started is not None and start_time(pid) == started
