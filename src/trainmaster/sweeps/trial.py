"""`Trial`: one task of a search, as samplers and pruners see it.

`Curve`: a metric by step.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Any

from trainmaster.dataclass import dataclass, field
from trainmaster.spec import ParameterValue

#: A longer curve keeps half of its points: a script that reports each millisecond must not fill the memory.
MAX_POINTS = 4096


def extremes(values: Sequence[float], among: range, size: int) -> Iterator[int]:
    """Indices of what a picture may not lose: the least and the greatest of each stretch, and its first NaN.

    Args:
        values: that are thinned.
        among: indices, rising by one.
        size: of a stretch.

    >>> list(extremes([3, 1, 2, 4, math.nan, math.nan, 0, 9], range(8), 4))
    [1, 3, 4, 6, 7]
    """
    for start in range(among.start, among.stop, size):
        stretch = range(start, min(start + size, among.stop))
        finite = [index for index in stretch if math.isfinite(values[index])]
        kept = {index for index in stretch if not math.isfinite(values[index])}
        kept = {min(kept)} if kept else kept
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        yield from sorted(kept)


class Curve:
    """Values of one metric by rising step.

    A step that was there before begins the rest anew: the script went back to a checkpoint. A long one
    is thinned: its least and greatest values, its first and its last stay.

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

    __slots__ = ("_counts", "_group", "_sums", "_thinned", "steps", "values")

    def __init__(self, points: Iterable[tuple[float, float]] = ()) -> None:
        self.steps: list[float] = []
        self.values: list[float] = []
        self._sums: list[float] = []
        self._counts: list[int] = []
        #: Of so many reports two points are kept, up to an index: what is old is as fine as what is new.
        self._group, self._thinned = 0, 1
        for step, value in points:
            self.add(step, value)

    @classmethod
    def of(cls, steps: list[float], values: list[float]) -> Curve:
        """A curve of points at rising steps that is not thinned."""
        curve = cls()
        curve.steps, curve.values = steps, values
        curve._sums, curve._counts = list(accumulate(values)), list(range(1, len(values) + 1))
        return curve

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
            self._thinned = max(1, min(self._thinned, keep))
        self._sums.append((self._sums[-1] if self._sums else 0.0) + value)
        self._counts.append((self._counts[-1] if self._counts else 0) + 1)
        self.steps.append(step)
        self.values.append(value)
        last = len(self.steps) - 1
        if self._group and last - self._thinned >= self._group:
            self._thin(self._thinned, self._group)
        elif last >= MAX_POINTS:
            self._group = max(4, 2 * self._group)
            self._thin(1, 4)

    def _thin(self, first: int, size: int) -> None:
        last = len(self.steps) - 1
        kept = list(extremes(self.values, range(first, last), size))
        columns: tuple[list[Any], ...] = (self.steps, self.values, self._sums, self._counts)
        for column in columns:  # sums and counts are of all that ever were
            column[first:last] = [column[index] for index in kept]
        self._thinned = first + len(kept)

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


class Goal(StrEnum):
    """Which values of the metric are better."""

    MAX = "max"
    MIN = "min"

    def score(self, value: float | None) -> float:
        """The value so that more is better; what is missing or not finite is worse than any number.

        >>> Goal.MIN.score(0.25), Goal.MAX.score(float("nan"))
        (-0.25, -inf)
        """
        if value is None or not math.isfinite(value):
            return -math.inf
        return value if self is Goal.MAX else -value


class TrialState(StrEnum):
    """How far a trial is. FAILED has no value: its script failed, or its machine was lost."""

    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of parameters and what came of it.

    Attributes:
        number: of its task.
        parameters: by name.
        state: how far it is; a retry of a task is the same trial.
        value: of the metric at its end (COMPLETE) or last seen (PRUNED); NaN if it was no number.
        curve: the metric by step. Samplers need only its last point, pruners all of it.
    """

    number: int
    parameters: Mapping[str, ParameterValue]
    state: TrialState = TrialState.RUNNING
    value: float | None = None
    curve: Curve = field(default_factory=Curve)

    @property
    def is_over(self) -> bool:
        """True if nothing more will come of it."""
        return self.state is not TrialState.RUNNING

    @property
    def has_value(self) -> bool:
        """True if it tells how good its parameters are, be it NaN."""
        return self.state in (TrialState.COMPLETE, TrialState.PRUNED) and self.value is not None
