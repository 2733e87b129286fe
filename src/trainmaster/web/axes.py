"""`FigureAxis`: where a value is drawn, and which values stand beside the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from trainmaster.dataclass import dataclass

#: What differs by more than this is drawn on a logarithmic axis.
_WIDE: Final = 30.0
_TICKS: Final = 4
_MOST_TICKS: Final = 6
#: Share of a logarithmic axis that stays free at each end.
_MARGIN: Final = 0.06


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, and what stands there."""

    at: float
    text: str


class FigureAxis:
    """From values to places: by their logarithm where they differ much, else from zero.

    Args:
        values: what is to be seen; none is negative.
        begin: place of the least.
        end: place of the greatest.
        unit: what is easy to read is a multiple of it.
    """

    def __init__(self, values: Sequence[float], begin: float, end: float, unit: float = 1.0) -> None:
        low, high = min(values), max(values) or 1.0
        self._is_log = low > 0 and high > _WIDE * low
        margin = _MARGIN * (math.log(high) - math.log(low)) if self._is_log else 0.0
        ends = (math.log(low) - margin, math.log(high) + margin) if self._is_log else (0.0, high * 1.05)
        self._low, self._high = ends
        self._begin, self._end, self._unit = begin, end, unit

    def at(self, value: float) -> float:
        """Its place."""
        where = math.log(value) if self._is_log else value
        share = (where - self._low) / ((self._high - self._low) or 1.0)
        return round(self._begin + share * (self._end - self._begin), 1)

    @property
    def ticks(self) -> list[float]:
        """Values that are easy to read."""
        if self._is_log:
            return self._log_ticks()
        step = _nice(self._high / self._unit / _TICKS) * self._unit
        return [step * number for number in range(1 + int(self._high / step))]

    def _log_ticks(self) -> list[float]:
        """1, 2 and 5 of each power of ten, or fewer of them where that is too many."""
        low, high = (math.exp(each) / self._unit for each in (self._low, self._high))
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digits in ((1, 2, 5), (1, 5), (1,)):
            found = [digit * 10.0**power for power in powers for digit in digits]
            found = [value for value in found if low <= value <= high]
            if len(found) <= _MOST_TICKS:
                break
        return [value * self._unit for value in found[:: -(-len(found) // _MOST_TICKS) or 1]]


def _nice(step: float) -> float:
    """The next number that is easy to count by.

    >>> _nice(3.2), _nice(0.41), _nice(23)
    (5.0, 0.5, 30.0)
    """
    power = 10.0 ** math.floor(math.log10(step))
    return next(each * power for each in (1.0, 1.5, 2.0, 3.0, 5.0, 10.0) if each * power >= step)


def time_unit_s(most_s: float) -> float:
    """What times up to so much are counted in."""
    return 3600.0 if most_s > 7200 else 60.0 if most_s > 180 else 1.0
