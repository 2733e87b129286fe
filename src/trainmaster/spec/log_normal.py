"""`LogNormal`: what is believed of a quantity that is above 0, and how it is learnt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


def left_s(quoted_s: Mapping[str, float], worked_s: float) -> float | None:
    """What a quote leaves of a run that goes on: the median of what takes longer than it has until now.

    Args:
        quoted_s: seconds by their quantiles ``p50`` and ``p95``.
        worked_s: what of them are over.

    Returns:
        Seconds; None where the quote is nothing or does not hold any more.

    >>> quoted = {"p50": 60.0, "p95": 75.0}
    >>> [round(left_s(quoted, worked_s), 1) for worked_s in (0.0, 30.0, 60.0, 75.0)]
    [60.0, 30.0, 5.7, 3.3]
    >>> left_s(quoted, 75.1)
    """
    median_s, high_s = quoted_s["p50"], quoted_s["p95"]
    if median_s <= 0 or worked_s > high_s:
        return None
    spread = math.log(high_s / median_s) / _Z95
    if spread <= 0 or worked_s <= 0:
        return max(0.0, median_s - worked_s)

    def longer(seconds: float) -> float:
        return math.erfc(math.log(seconds / median_s) / spread / math.sqrt(2)) / 2

    low, high = math.log(worked_s), math.log(high_s) + spread * 4
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if longer(math.exp(middle)) > longer(worked_s) / 2 else (low, middle)
    return math.exp(high) - worked_s
