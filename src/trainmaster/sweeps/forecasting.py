"""`ForecastPruner`: ends a trial that will hardly come to the best value seen, by how its curve goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from trainmaster.spec.errors import UsageError
from trainmaster.sweeps.plugins import number
from trainmaster.sweeps.pruner import Pruner, longest
from trainmaster.sweeps.trial import Goal, Trial

#: A trial is judged again once it is so many times as long.
_LONGER: Final = 1.5


class ForecastPruner(Pruner):
    """Ends a trial whose curve leaves little chance that it comes to the best value of the others by its end.

    Options:
        chance: a trial with less of it is ended (0.3).
        max_steps: length of a whole trial (the longest curve, once a trial has come to its end).
    """

    name = "forecast"
    option_names: ClassVar[tuple[str, ...]] = ("chance", "max_steps")
    usual_share: ClassVar[float | None] = 0.25

    def __init__(self, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(goal, options)
        self._chance = number(options, "chance", above=0) or 0.3
        if self._chance >= 1:
            raise UsageError(f"search option chance: {self._chance:g}; write a number between 0 and 1")
        self._max_steps = number(options, "max_steps", above=0)

    def verdict(self, trial: Trial, others: Sequence[Trial], judged: float = -math.inf) -> str:
        """See `Pruner.verdict`."""
        end, last = self._max_steps or longest(others), trial.curve.last_step
        if end is None or not 0 < last < end:
            return ""
        # the last one that it has passed
        rung = end / _LONGER ** math.ceil(math.log(end / last, _LONGER) - 1e-9)
        best = max((self.goal.score(value) for o in others for value in o.curve.values), default=-math.inf)
        if rung <= judged or best == -math.inf:
            return ""
        from trainmaster.advisor.model.learning_curve import forecast_curve

        more = self.goal is Goal.MAX
        aim = best if more else -best
        curve = trial.curve
        found = forecast_curve(curve.steps, curve.values, aim, more_is_better=more, most=end)
        if found is None or found.chance >= self._chance:
            return ""
        chance = f"{100 * found.chance:.0f} %"
        return f"the chance that it comes to {aim:.6g} by step {math.ceil(end)} is {chance}, by its curve"
