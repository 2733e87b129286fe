"""How much work something is, whatever else the machine does: the calls it makes, not the time it takes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def counted_calls(work: Callable[[], Any]) -> tuple[int, Any]:
    """Calls of functions, Python's and C's, in this thread, and what ``work`` gives."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return count, result
