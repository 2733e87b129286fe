"""Has the kernel killed somebody for want of memory?"""
# ruff: noqa: PTH110, PTH123 - pathlib would slow down the supervisor's start

from __future__ import annotations

import os
import time

#: The first counts every kill that we can see, the second also those that a container hides from it.
_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")
_PREFIX = b"oom_kill "
#: At the start of a member, a count so old will do; a thousand starts a second read it five times.
_AGE_S = 0.2


class OomCounter:
    """Counts the kills on this node."""

    def __init__(self) -> None:
        self._paths = [path for path in _COUNTERS if os.path.exists(path)]
        self._count = 0
        self._read_at = 0.0

    def count(self, fresh: bool = False) -> int:
        """How many there have been; only differences mean something.

        Args:
            fresh: not from a moment ago.
        """
        now = time.monotonic()
        if fresh or now - self._read_at > _AGE_S:
            self._count = sum(_read(path) for path in self._paths)
            self._read_at = now
        return self._count


def _read(path: str) -> int:
    try:
        with open(path, "rb") as file:
            for line in file:
                if line.startswith(_PREFIX):
                    return int(line[len(_PREFIX) :])
    except (OSError, ValueError):
        pass
    return 0
