"""`periodically`: something is done at intervals as long as something else takes, as renewing a lease."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def periodically(
    work: Callable[[], object], every_s: float, name: str, *, awaited: bool = True
) -> Iterator[None]:
    """Do something in a thread, for the first time after a while, until the body has ended.

    Args:
        work: raises nothing.
        every_s: seconds between two turns.
        name: of the thread.
        awaited: wait for a turn that is under way at the end.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        if awaited:
            thread.join()
