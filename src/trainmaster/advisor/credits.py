"""CPU credits: machines whose cores are theirs only for a while (AWS T2 and T3)."""

from __future__ import annotations

import numpy as np

from trainmaster.advisor.shapes import Floats

#: Credits that a T2 starts with: 30 minutes of one core for each of its cores (AWS' documentation).
LAUNCH_CREDIT_S = 1800.0


def with_credits(
    busy_s: Floats, baseline: Floats | float, launch_s: Floats | float = LAUNCH_CREDIT_S
) -> Floats:
    """Seconds that work takes on cores which slow down when their credits are used up.

    At full speed a core spends ``1 - baseline`` credits per second more than it earns; after that it
    goes on at ``baseline`` of its speed. Jorge et al. saw it happen to a parameter server on a t2.small.

    Args:
        busy_s: (..., m) seconds of work at full speed, all cores busy.
        baseline: (m,) share of the cores that is theirs for good; NaN or 1 is all of it.
        launch_s: credits at the start, in seconds of one core for each core; (m,) or one for all.

    >>> with_credits(np.array([600.0, 7200.0]), 0.25).tolist()
    [600.0, 21600.0]
    """
    share = np.where(np.isnan(baseline), 1.0, baseline)
    burst = np.where(share < 1, launch_s / np.maximum(1 - share, 1e-9), np.inf)
    beyond = np.maximum(busy_s - burst, 0.0)
    result: Floats = busy_s - beyond + beyond / np.maximum(share, 1e-3)
    return result
