"""When a daemon that has ended is started again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: Who ends so often within this time would go on doing so.
MOST_ENDS: Final = 5
WITHIN_S: Final = 300.0
_FIRST_PAUSE_S: Final = 0.5


def pause_s(ended_at_s: Sequence[float]) -> float | None:
    """How long to wait before a daemon is started again; None if it is given up.

    Args:
        ended_at_s: all times when it has ended, the last one now.

    >>> pause_s([100.0]), pause_s([100.0, 101.0]), pause_s([0, 1, 2, 3, 4.0])
    (0.5, 1.0, None)
    """
    now_s = ended_at_s[-1]
    lately = sum(now_s - each < WITHIN_S for each in ended_at_s)
    return None if lately >= MOST_ENDS else _FIRST_PAUSE_S * 2 ** (lately - 1)
