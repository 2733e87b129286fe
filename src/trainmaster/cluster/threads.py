"""`Threads`: what a cluster's loop has others do, by name, so that nothing is begun twice at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

#: Of one kind, the first word of a name: fifty machines that log in must not hold up everything else.
_MOST_OF_A_KIND: Final = 32


class Threads:
    """Work in daemon threads; results are collected by the loop that asked for them.

    Args:
        wake: is set whenever something has ended.
    """

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._running: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()

    def start(self, name: str, work: Callable[[], object]) -> bool:
        """Begin a piece of work; False if one of that name, or too many of its kind, are under way."""
        kind = name.partition(" ")[0]
        alike = sum(other.partition(" ")[0] == kind for other in self._running)
        if name in self._running or alike >= _MOST_OF_A_KIND:
            return False
        self._running.add(name)
        self._begin(name, work)
        return True

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        threading.Thread(target=self._do, args=(name, work), name=name, daemon=True).start()

    def _do(self, name: str, work: Callable[[], object]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - what collects it knows what it means
            result = error
        self._done.put((name, result))
        self._wake.set()

    def is_running(self, name: str) -> bool:
        """Whether it is under way."""
        return name in self._running

    def running(self, prefix: str) -> set[str]:
        """What is under way of those whose names begin so, without that beginning."""
        return {name.removeprefix(prefix) for name in self._running if name.startswith(prefix)}

    def collect(self) -> list[tuple[str, object]]:
        """What has ended, with its result or exception."""
        found: list[tuple[str, object]] = []
        while True:
            try:
                name, result = self._done.get_nowait()
            except queue.Empty:
                return found
            self._running.discard(name)
            found.append((name, result))
