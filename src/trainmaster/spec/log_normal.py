"""`LogNormal`: what is believed of a quantity that is above 0, and how it is learnt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trainmaster.dataclass import dataclass

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
    def quantiles(self) -> tuple[float, float, float]:
        """What it is below with 5, 50 and 95 %.

        >>> LogNormal(10, 0.5).quantiles[1]
        10
        """
        factor = math.exp(_Z95 * self.spread)
        return self.median / factor, self.median, self.median * factor

    def doubted(self, *doubts: float) -> LogNormal:
        """The same with more doubt about it (log); what does not happen has none."""
        spread = math.hypot(self.spread, *doubts) if self.median else 0.0
        return LogNormal(self.median, spread, self.weight)

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
