"""`StepCounter`: one count of steps out of what scripts say of steps, examples and epochs."""

from __future__ import annotations

import math
from enum import IntEnum

from trainmaster.dataclass import dataclass


class _CountUnit(IntEnum):
    """Unit in which steps are counted; a larger number is a finer unit."""

    NOTHING = 0
    EPOCHS = 1
    EXAMPLES = 2
    STEPS = 3


@dataclass(frozen=True, slots=True)
class StepReading:
    """What one observation says.

    Attributes:
        count: steps in all, from wherever the script counts.
        crossed: an epoch ended since the observation before.
        anew: it cannot be compared with what was read before: the script went back, or counts finer now.
        examples: done in all, None if they are not counted.
    """

    count: float
    crossed: bool = False
    anew: bool = False
    examples: float | None = None


class StepCounter:
    """Reads observations in their order.

    A script may number the steps of each epoch from the start: then they count on as the epoch goes up.
    Without an epoch, a number that goes back is a restart, until it does so twice at the same height.

    Args:
        steps_per_epoch: if known.
        examples_per_step: if known.

    Attributes:
        epochs_seen: an epoch was seen to end.
    """

    def __init__(self, steps_per_epoch: float | None = None, examples_per_step: float | None = None) -> None:
        self.steps_per_epoch = _positive(steps_per_epoch)
        self.epochs_seen = False
        self._examples_per_step = _positive(examples_per_step)
        self._by = _CountUnit.NOTHING
        self._epoch: float | None = None
        self._raw: float | None = None
        self._examples: float | None = None
        self._done = 0.0  # of earlier laps
        self._lowest = math.inf
        self._top: float | None = None  # where the number went back the last time

    @property
    def epoch(self) -> float | None:
        """The newest one, None if none was seen."""
        return self._epoch

    @property
    def by_epoch(self) -> bool:
        """Nothing finer than epochs is known."""
        return self._by is _CountUnit.EPOCHS

    @property
    def unit(self) -> str:
        """What the count is of: ``epoch`` where nothing finer is known, else ``step``."""
        return "epoch" if self.by_epoch and self.steps_per_epoch is None else "step"

    def read(self, step: object, examples: object, epoch: object) -> StepReading | None:
        """One observation; None if it says nothing of how far the script is."""
        number, now = _number(examples), _number(epoch)
        by, raw = self._finest(_number(step), number, now)
        # Some give parts of epochs: only a whole one is an end.
        crossed = now is not None and self._epoch is not None and math.floor(now) > math.floor(self._epoch)
        if by is _CountUnit.NOTHING:
            return None
        if by < self._by:  # an epoch's summary between steps
            if now is not None and self._epoch is not None and now < self._epoch:
                return None
            self._note(now, crossed)
            return (
                StepReading(self._count(self._raw or 0.0), crossed, examples=self._examples)
                if crossed
                else None
            )
        if by > self._by:
            self._begin(by, raw)
            self._note(now, crossed=False)
            self._examples = number
            return StepReading(self._count(raw), anew=True, examples=number)
        back = self._raw is not None and raw < self._raw
        anew = False
        if back and by is _CountUnit.STEPS and (crossed or self._is_lap()):
            # From 0 means that the first one is a step too; and the last ones may not have been shown.
            top = max(self._top or 0.0, self._raw or 0.0)
            self._done += top + (self._lowest < 1)
            self._top = top
            crossed = True
        elif back:
            self._top = self._raw
            self._done = 0.0
            anew, crossed = True, False
        self._raw = raw
        self._lowest = min(self._lowest, raw)
        self._note(now, crossed)
        self._examples = number if number is not None else self._examples
        return StepReading(self._count(raw), crossed, anew, number)

    def _finest(
        self, step: float | None, examples: float | None, epoch: float | None
    ) -> tuple[_CountUnit, float]:
        if step is not None:
            return _CountUnit.STEPS, step
        if examples is not None and self._examples_per_step is not None:
            return _CountUnit.EXAMPLES, examples
        if epoch is not None:
            return _CountUnit.EPOCHS, epoch
        return _CountUnit.NOTHING, 0.0

    def _begin(self, by: _CountUnit, raw: float) -> None:
        self._by, self._raw, self._lowest = by, raw, raw
        self._done, self._top = 0.0, None

    def _is_lap(self) -> bool:
        return (
            self._top is not None and self._raw is not None and abs(self._raw - self._top) <= 0.02 * self._top
        )

    def _note(self, epoch: float | None, crossed: bool) -> None:
        if epoch is not None:
            self._epoch = epoch
        self.epochs_seen |= crossed

    def _count(self, raw: float) -> float:
        if self._by is _CountUnit.EXAMPLES:
            return raw / (self._examples_per_step or 1.0)
        if self._by is _CountUnit.EPOCHS:
            return raw * (self.steps_per_epoch or 1.0)
        return self._done + raw


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and 0 <= number < 1e15 else None


def _positive(value: float | None) -> float | None:
    return value if value is not None and 1e-9 < value < 1e15 else None
