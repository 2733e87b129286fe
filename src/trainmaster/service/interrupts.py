"""`interruptible`: Ctrl-C and SIGTERM end a measurement in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.service.quoting import Quoter


def catch_interrupts(interrupt: Callable[[], None]) -> None:
    """Let Ctrl-C and SIGTERM end a measurement in order."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


@dataclass
class Caught:
    """Who ends in order when the user presses Ctrl-C; nobody as yet: then it is Python's own way."""

    quoter: Quoter | None = None

    def interrupt(self) -> None:
        """Ctrl-C. Signal-safe."""
        if self.quoter is None:
            raise KeyboardInterrupt
        self.quoter.interrupt()


@contextmanager
def interruptible() -> Iterator[Caught]:
    """Let Ctrl-C and SIGTERM end measurements of `Caught.quoter` in order; afterwards all is as before.

    Python gives signals to the main thread only: in others nothing is changed.
    """
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    catch_interrupts(caught.interrupt)
    try:
        yield caught
    finally:
        for number, handler in before:
            signal.signal(number, handler)
