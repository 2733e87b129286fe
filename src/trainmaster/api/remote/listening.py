"""`Listening`: what a server tells, as a `Stream`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any


class Listening(Iterator[Any]):
    """To stop listening ends nothing on the server.

    Args:
        told: what it tells.
        interrupt: Ctrl-C; see `Stream.interrupt`.
    """

    def __init__(self, told: Generator[Any], interrupt: Callable[[], int] = lambda: 0) -> None:
        self._told = told
        self.interrupt = interrupt

    def __next__(self) -> Any:  # noqa: ANN401 - whatever is told
        return next(self._told)

    def close(self) -> None:
        """The listener is gone."""
        self._told.close()
