"""`Curve`: a metric by step."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

#: A longer curve keeps every second point: a script that reports each millisecond must not fill the memory.
MAX_POINTS = 4096


class Curve:
    """Values of one metric by rising step.

    A step that was there before begins the rest anew: the script went back to a checkpoint.

    Attributes:
        steps: rising.
        values: one per step; may be NaN.

    >>> curve = Curve([(1, 0.5), (2, 0.25), (4, 0.125)])
    >>> curve.reached(3), curve.until(3), curve.last_step
    (0.125, 0.25, 4)
    >>> curve.add(2, 0.75)
    >>> list(curve)
    [(1, 0.5), (2, 0.75)]
    """

    __slots__ = ("_counts", "_sums", "steps", "values")

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self.steps: list[float] = []
        self.values: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []
        for step, value in points:
            self.add(step, value)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(zip(self.steps, self.values, strict=True))

    def __repr__(self) -> str:
        return f"Curve({list(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and repr(self) == repr(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def last_step(self) -> float:
        """The highest step; minus infinity without any."""
        return self.steps[-1] if self.steps else -math.inf

    def add(self, step: float, value: float) -> None:
        """One more value; a step that is no finite number is passed over."""
        if not math.isfinite(step):
            return
        if self.steps and step <= self.steps[-1]:
            keep = bisect_left(self.steps, step)
            for column in (self.steps, self.values, self._sums, self._counts):
                del column[keep:]
        self._sums.append((self._sums[-1] if self._sums else 0.0) + value)
        self._counts.append((self._counts[-1] if self._counts else 0) + 1)
        self.steps.append(step)
        self.values.append(value)
        if len(self.steps) > MAX_POINTS:
            for column in (self.steps, self.values, self._sums, self._counts):
                del column[1:-1:2]  # sums and counts are of all points that ever were

    def reached(self, step: float) -> float | None:
        """The first value at or after a step; None if it never came that far."""
        at = bisect_left(self.steps, step)
        return self.values[at] if at < len(self.steps) else None

    def until(self, step: float) -> float | None:
        """The last value at or before a step."""
        at = bisect_right(self.steps, step)
        return self.values[at - 1] if at else None

    def mean_until(self, step: float) -> float | None:
        """The mean of all values at or before a step; NaN if one of them is."""
        at = bisect_right(self.steps, step)
        return self._sums[at - 1] / self._counts[at - 1] if at else None
