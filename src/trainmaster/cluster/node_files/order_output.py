"""`OrderOutput`: what the driver hears of an order that `worker` does on a node."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Final

_LIFE_S: Final = 5.0

Order = Mapping[str, Any]
#: After a failure of these the program ends: bytes that were sent for them may still come, and are no order.
ENDING: Final = ("receive", "image")


class NoWayError(Exception):
    """This node has no way to where data lie; its cause says of what kind that is."""


class OrderOutput:
    """What the driver hears; threads take turns.

    Args:
        out: leads to it.

    Attributes:
        at: how many bytes of an order that takes long are there, and of how many.
        outlives: the order goes on without the driver.
    """

    def __init__(self, out: BinaryIO) -> None:
        self.at: Callable[[], tuple[int, int]] | None = None
        self.outlives = False
        self._out = out
        self._speaking = threading.Lock()

    def say(self, what: object, data: bytes = b"", *, now: bool = False) -> None:
        """Say something, and the bytes that it announces; ``now`` if the driver waits for it."""
        with self._speaking:
            self._out.write(json.dumps(what).encode() + b"\n" + data)
            if now:
                self._out.flush()

    def say_all(self, things: Iterable[object]) -> None:
        """Say what was found."""
        for each in things:
            self.say(each)

    def live(self) -> None:
        """Give a sign of life now and then. The caller may be gone without a word: then this process ends."""
        pause = threading.Event()
        while not pause.wait(_LIFE_S):
            at = self.at
            try:
                self.say(0 if at is None else {"at": at()}, now=True)
            except OSError:
                if self.outlives:
                    return
                os._exit(1)
