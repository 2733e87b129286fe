"""`CpuCredits`: how much of its processors a burstable machine may use."""

from __future__ import annotations

from typing import Final

from trainmaster.dataclass import dataclass

#: A T2 starts with half an hour of each of its vCPUs, and keeps what it earns in a day.
LAUNCH_S: Final = 1800.0
_DAY_S: Final = 86_400.0


@dataclass(slots=True)
class CpuCredits:
    """Of one host.

    Attributes:
        baseline: share of its vCPUs that what it earns sustains.
        speed: so many times as fast as on EC2 they are earned and spent.
        balance_s: seconds of each of its vCPUs.

    >>> small = CpuCredits(baseline=0.2, speed=60)
    >>> small.spend(1.0, 30.0)  # half a minute, all of it: half an hour on EC2
    >>> small.balance_s, small.share(1.0)
    (360.0, 1.0)
    >>> small.spend(1.0, 10.0)
    >>> small.balance_s, small.share(1.0)
    (0.0, 0.2)
    """

    baseline: float
    speed: float
    balance_s: float = LAUNCH_S

    def spend(self, used: float, seconds: float) -> None:
        """So much of its vCPUs was used for so long; meanwhile it has earned."""
        earned = (self.baseline - used) * seconds * self.speed
        self.balance_s = min(max(0.0, self.balance_s + earned), LAUNCH_S + self.baseline * _DAY_S)

    def share(self, seconds: float) -> float:
        """What it may use of its vCPUs during so long: all of them, if the balance pays for that."""
        return min(1.0, self.baseline + self.balance_s / (seconds * self.speed))
