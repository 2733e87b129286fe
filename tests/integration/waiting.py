"""How tests wait for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

#: Long enough for a machine that does many other things.
DEADLINE_S = 60.0


def until(condition: Callable[[], Any], what: str = "", timeout_s: float = DEADLINE_S) -> Any:
    """Poll until the condition holds; gives its value."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < deadline, f"not within {timeout_s:.0f} s: {what or condition}"
        time.sleep(min(max(0.02, 9 * (now - began)), 0.5))  # looking may cost
