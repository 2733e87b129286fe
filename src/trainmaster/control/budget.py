"""The hard cap of a run: what it has spent, and when it must end so that the bill stays below it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trainmaster.spec import Budget

#: Seconds that stopping, saving and giving machines back take beside the members' grace.
ENDING_S = 60.0


@dataclass(slots=True)
class Meter:
    """The billing clock of a run.

    Attributes:
        cap_usd: ``budget.total``; infinite where there is none.
        usd_per_hour: price of all that is rented now; 0 on the user's own machines.
        settled_usd: what was spent before ``since``.
        since: Unix seconds from which on ``usd_per_hour`` holds.
        ending_s: how long the end of the run may take, in which the clock goes on.
    """

    cap_usd: float = math.inf
    usd_per_hour: float = 0.0
    settled_usd: float = 0.0
    since: float = 0.0
    ending_s: float = ENDING_S

    @classmethod
    def of(cls, budget: Budget | None) -> Meter:
        """With a recipe's cap."""
        total = budget.total_usd if budget else None
        return cls(cap_usd=math.inf if total is None else total)

    def spent_usd(self, now: float) -> float:
        """Dollars so far.

        >>> Meter(usd_per_hour=3.6, settled_usd=1.0, since=100.0).spent_usd(1100.0)
        2.0
        """
        return self.settled_usd + self.usd_per_hour * max(now - self.since, 0.0) / 3600

    def rent(self, usd_per_hour: float, now: float) -> None:
        """From now on all that is rented costs so much."""
        self.settled_usd, self.since = self.spent_usd(now), now
        self.usd_per_hour = usd_per_hour

    def must_end(self, now: float) -> bool:
        """True if the run would cost more than the cap unless it begins to end now.

        >>> Meter(cap_usd=2.0, usd_per_hour=3.6, since=0.0, ending_s=100.0).must_end(1899.0)
        False
        >>> Meter(cap_usd=2.0, usd_per_hour=3.6, since=0.0, ending_s=100.0).must_end(1901.0)
        True
        """
        return self.spent_usd(now) + self.usd_per_hour * self.ending_s / 3600 > self.cap_usd
