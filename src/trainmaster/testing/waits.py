"""`until`: a test waits for what it needs, with a deadline of its own, and says what did not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, patience_s: float = 60.0) -> Found:
    """Look again and again until something is so; gives what was found.

    For what no event tells: another process, or a thread that is not the test's.
    """
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {patience_s:.0f} s: {what}"
        time.sleep(0.002)
    return found
