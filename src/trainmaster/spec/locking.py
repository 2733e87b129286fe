"""`locked`: one at a time, over all threads and processes of this machine."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_thread_locks: dict[Path, threading.Lock] = {}
_thread_locks_guard = threading.Lock()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that belongs to a path; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _thread_locks_guard:
        lock = _thread_locks.setdefault(path, threading.Lock())
    with lock, path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
