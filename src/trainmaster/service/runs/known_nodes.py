"""`KnownNodes`: machines that a cloud has described; it is asked again when one of them does not answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainmaster.providers.base import Node

#: What was heard so lately is taken as it is.
_FRESH_S: Final = 5.0
#: And for so long only if the machine answers. Another one that has its address by then has another key.
_KNOWN_S: Final = 600.0
_ANSWER_S: Final = 3.0
_MOST: Final = 1000


def answers(node: Node) -> bool:
    """Whether somebody listens where a machine is to be reached; that is not tried through other machines."""
    if node.jump or node.way:
        return False
    try:
        with socket.create_connection((node.address, node.port), _ANSWER_S):
            return True
    except OSError:
        return False


class KnownNodes:
    """Threads share it.

    Args:
        answers: whether a machine is still there.
    """

    def __init__(self, answers: Callable[[Node], bool] = answers) -> None:
        self._answers = answers
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[float, Node]] = {}

    def find(self, run: str, machine: str) -> Node | None:
        """A machine of a run by its id; None: the cloud has to be asked."""
        with self._lock:
            at, node = self._known.get((run, machine), (0.0, None))
        if node is None:
            return None
        age_s = time.monotonic() - at
        if age_s < _FRESH_S or (age_s < _KNOWN_S and self._answers(node)):
            return node
        self.forget(run, machine)
        return None

    def note(self, run: str, node: Node) -> None:
        """The cloud has just described it."""
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.pop(next(iter(self._known)))
            self._known[run, node.id] = time.monotonic(), node

    def forget(self, run: str, machine: str) -> None:
        """It could not be used."""
        with self._lock:
            self._known.pop((run, machine), None)
