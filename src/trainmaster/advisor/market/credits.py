"""Credits: machines whose cores, or whose network cards, are fast only for a while."""

from __future__ import annotations

import numpy as np

from trainmaster.advisor.model.shapes import Floats

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


def with_nic_credits(
    busy_s: Floats, sent_mbit: Floats, fast: Floats, sustained: Floats, launch_s: Floats
) -> Floats:
    """Seconds that work takes over a network card that slows down when its credits are used up.

    A card that sends more than it sustains draws on a reserve, which lets it go at full speed for
    ``launch_s``. When that is used up, no more goes through on average than it sustains: pauses between the
    sends earn what the next one needs.

    Args:
        busy_s: (S, m) seconds of work while the card is fast.
        sent_mbit: (S, m) what it sends meanwhile.
        fast: (m,) Mbit/s that the card reaches, NaN if unknown.
        sustained: (m,) Mbit/s that it does for good.
        launch_s: (S, m) seconds at full speed that the reserve is good for.

    >>> of = lambda *some: [np.array([x]) for x in some]
    >>> with_nic_credits(*of(7200.0, 72e6, 10e3, 1e3, 1800.0)).item()  # a fourth, then a tenth of it
    55800.0
    >>> with_nic_credits(*of(7200.0, 6e6, 10e3, 1e3, 1800.0)).item()  # it rests most of the time
    7200.0
    """
    beyond = sent_mbit - (fast - sustained) * launch_s
    return np.fmax(busy_s, beyond / np.maximum(sustained, 1e-3))
