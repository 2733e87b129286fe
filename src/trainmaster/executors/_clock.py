"""The time of exit records: it never jumps while a supervisor lives, as that of `trainmaster.spec.clocks`.

A copy, because a supervisor starts without site-packages, which `trainmaster.spec` needs.
"""

from __future__ import annotations

import time

_OFFSET_S = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_s() -> float:
    """Unix seconds as they were when this process began, carried on by the boot-time clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + _OFFSET_S
