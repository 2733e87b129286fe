"""Time that is not training: renting, preparing, losing machines. Beliefs, and what is learnt of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trainmaster.advisor.quote.quote import Interval

#: The quantile of the normal distribution that leaves 5 % above it.
_Z95: Final = 1.645


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A belief about a positive quantity.

    Attributes:
        median: in the quantity's unit; 0 is "none at all".
        spread: standard deviation of the logarithm.
        weight: how many observations it is worth.
    """

    median: float
    spread: float
    weight: float = 4.0

    @property
    def interval(self) -> Interval:
        """For people.

        >>> LogNormal(10, 0.5).interval.p50
        10
        """
        factor = math.exp(_Z95 * self.spread)
        return Interval(self.median / factor, self.median, self.median * factor)

    def learnt(self, seen: Sequence[float]) -> LogNormal:
        """The belief after some observations (all positive).

        >>> LogNormal(60, 0.5).learnt([120, 120, 120, 120]).median
        84.853
        """
        if not seen or self.median <= 0:
            return self
        logs = [math.log(max(value, 1e-3)) for value in seen]
        total = self.weight + len(logs)
        mean = (self.weight * math.log(self.median) + sum(logs)) / total
        squares = self.weight * (self.spread**2 + (math.log(self.median) - mean) ** 2)
        squares += sum((value - mean) ** 2 for value in logs)
        return LogNormal(round(math.exp(mean), 3), math.sqrt(squares / total), total)


#: Seconds from asking for machines until they can be worked on. Jorge et al. waited 15 to 20 minutes with IM.
PROVISIONING_S: Final[Mapping[str, LogNormal]] = {
    "local": LogNormal(0.0, 0.0),
    "hosts": LogNormal(10.0, 0.7),
    "lab": LogNormal(15.0, 0.5),
    "aws": LogNormal(90.0, 0.5),
    "gcp": LogNormal(90.0, 0.5),
    "azure": LogNormal(150.0, 0.6),
    "im": LogNormal(1000.0, 0.4),
}
PROVISIONING_ELSEWHERE_S: Final = LogNormal(180.0, 0.8)
#: Our own part of a run: reading, accepting, starting, publishing; measured on two cores.
OVERHEAD_S: Final = LogNormal(0.5, 0.5)
#: Our own part of one task.
TASK_OVERHEAD_S: Final = LogNormal(0.05, 0.7)
#: Preemptions of one spot node per hour: from next to none to one in three hours.
PREEMPTIONS_PER_HOUR: Final = LogNormal(0.03, 1.1)
#: Seconds that a checkpoint costs the training, and that a restart needs beside renting again.
CHECKPOINT_S: Final = LogNormal(2.0, 0.8)
RESTART_S: Final = LogNormal(60.0, 0.6)
#: Share of the training that validation takes where no epoch was seen to end.
UNSEEN_PAUSES: Final = LogNormal(0.02, 0.9)
#: Seconds for which a network card with credits goes at full speed: 5 to 60 minutes (AWS' documentation).
NIC_CREDIT_S: Final = LogNormal(1000.0, 0.75)
#: Seconds from the start of the members to the first step where nobody has seen it.
STARTUP_UNSEEN_S: Final = 10.0
STARTUP_UNSEEN_SPREAD: Final = 0.9
#: How much a start-up elsewhere differs from the measured one: cold caches, another disk.
STARTUP_ELSEWHERE: Final = LogNormal(1.5, 0.5)


#: Seconds from the end of the work until a provider's machines are paid for no more, and the run is over.
GIVING_BACK_S: Final[Mapping[str, LogNormal]] = {"hosts": LogNormal(0.5, 0.7), "lab": LogNormal(3.0, 0.7)}
GIVING_BACK_ELSEWHERE_S: Final = LogNormal(30.0, 0.6)


def provisioning(provider: str, seen: Sequence[float] = ()) -> LogNormal:
    """Seconds until a provider's machines can be worked on.

    Args:
        provider: its name.
        seen: what earlier runs waited.
    """
    return PROVISIONING_S.get(provider, PROVISIONING_ELSEWHERE_S).learnt(seen)
