"""Which clock tells what: intervals by one that cannot be set, and that goes on while the machine sleeps.

`time.time` is for what is written down and read by others: it may be set forwards or back at any moment.
`time.monotonic` stands still while the machine is suspended, so what others did meanwhile is not seen by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Linux has it; elsewhere (a driver on macOS) the monotonic clock is the nearest there is.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_s() -> float:
    """Seconds since the machine was started, those that it slept included. Never set, never goes back.

    >>> begun = boot_s()
    >>> boot_s() >= begun
    True
    """
    return time.clock_gettime(_BOOT_CLOCK)


def slept_s() -> float:
    """Seconds that this machine has been suspended, from a moment that stays the same; 0 where none tells it.

    >>> 0 <= slept_s() - slept_s() + 0.1 < 0.2
    True
    """
    return boot_s() - time.clock_gettime(time.CLOCK_MONOTONIC)


_OFFSET_S: Final = time.time() - boot_s()


def steady_s() -> float:
    """Unix seconds as they were when this process began, carried on by the boot-time clock.

    For intervals in code that reckons in Unix seconds: it never jumps, but knows nothing of a wall clock
    that was set right meanwhile. What other processes read is written down with `time.time`.

    >>> begun = steady_s()
    >>> 0 <= steady_s() - begun < 1000
    True
    """
    return boot_s() + _OFFSET_S


def driven_clock(earlier_s: float, began: float) -> Callable[[float], float]:
    """For how long a run has been driven at a Unix time.

    What its tasks worked while nothing drove it counts: what they began before this driver did began as long
    before the time that is counted by now.

    >>> [driven_clock(11.0, 100.0)(at) for at in (80.0, 90.0, 101.0)]
    [0.0, 1.0, 12.0]

    Args:
        earlier_s: that was counted before this driver.
        began: Unix seconds when it did.
    """
    return lambda now: max(earlier_s + now - began, 0.0)
