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
def locked(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Hold the lock that belongs to a path; its directory is made.

    Args:
        path: that it belongs to.
        waits: until it is free; else what is given tells whether it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _thread_locks_guard:
        lock = _thread_locks.setdefault(path, threading.Lock())
    if not lock.acquire(blocking=waits):
        yield False
        return
    try:
        with path.with_name(path.name + ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
            except BlockingIOError:
                is_free = False
            yield is_free
    finally:
        lock.release()
