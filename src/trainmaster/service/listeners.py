"""`Listeners`: what waits in this process for something to change, by its name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Listeners:
    """May be used by all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[Callable[[], None]]] = {}

    @contextmanager
    def listening(self, name: str, call: Callable[[], None]) -> Iterator[None]:
        """Meanwhile have something called whenever that changes.

        Args:
            name: what is waited for.
            call: must be quick; by any thread.
        """
        with self._lock:
            self._calls.setdefault(name, []).append(call)
        try:
            yield
        finally:
            with self._lock:
                left = self._calls[name]
                left.remove(call)
                if not left:
                    del self._calls[name]

    def tell(self, name: str) -> None:
        """It has changed."""
        with self._lock:
            calls = list(self._calls.get(name, ()))
        for call in calls:
            call()
