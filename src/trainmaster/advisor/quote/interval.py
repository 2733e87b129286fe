"""`Interval`: a quantity that is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.spec.plain_json import JsonObject
from trainmaster.spec.units import QUOTE_RESOLUTION

#: From this p95 over p5 on an interval is too wide to plan by.
WIDE: Final = 4.0


@dataclass(frozen=True, slots=True)
class Interval(JsonObject):
    """A quantity that is not known: with 5 %, 50 % and 95 % it is below these.

    >>> from trainmaster.spec.units import format_duration
    >>> Interval(8, 10, 12).holds(12), Interval(8, 10, 12).width, Interval(11, 12, 13).is_wide
    (True, 1.2, False)
    >>> Interval(60, 90, 7200).is_wide, Interval(60, 90, 7200).words(format_duration)
    (True, '1 min 30 s (1 min to 2 h)')
    """

    p5: float
    p50: float
    p95: float

    def holds(self, value: float) -> bool:
        """True if what became of it is no more than was said (less is no miss)."""
        return value <= self.p95 + QUOTE_RESOLUTION

    @property
    def width(self) -> float:
        """p95 over p50; 1 where there is nothing to know."""
        return self.p95 / self.p50 if self.p50 else 1.0

    @property
    def is_wide(self) -> bool:
        """True if it says too little to plan by."""
        return self.p95 > WIDE * self.p5

    def span(self, shown: Callable[[float], str]) -> str:
        """For people, without the middle."""
        return f"{shown(self.p5)} to {shown(self.p95)}"

    def words(self, shown: Callable[[float], str]) -> str:
        """For people: the middle, and the span."""
        return f"{shown(self.p50)} ({self.span(shown)})"
