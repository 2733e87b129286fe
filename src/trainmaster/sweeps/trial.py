"""`Trial`: one task of a search, as samplers and pruners see it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from trainmaster.spec import ParameterValue
from trainmaster.sweeps.curve import Curve


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
