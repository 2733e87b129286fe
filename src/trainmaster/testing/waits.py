"""`until`: a test waits for what it needs, with a deadline of its own, and says what did not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str = "what is awaited", patience_s: float = 60.0) -> Found:
    """Look again and again until something is so; gives what was found.

    For what no event tells: another process, or a thread that is not the test's. To look may cost, a call of
    the command line a fifth of a second: it takes no more than a tenth of the time, unless that is a second.
    """
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        assert now < deadline, f"not within {patience_s:.0f} s: {what}"
        time.sleep(min(max(0.002, 9 * (now - began)), 1.0))
