"""`MedianPruner`: ends what is worse than half of the finished trials were at this step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from trainmaster.sweeps.plugins import integer, number
from trainmaster.sweeps.pruner import Pruner
from trainmaster.sweeps.trial import Goal, Trial, TrialState


class MedianPruner(Pruner):
    """Ends a trial whose best value so far is worse than the median of the others' means up to the same step.

    Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, section 3.2.2. Only
    trials that came to their end are compared with.

    Options:
        startup: finished trials before it begins (5).
        warmup: steps before which no trial is judged (0).
    """

    name = "median"
    option_names = ("startup", "warmup")

    def __init__(self, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(goal, options)
        self._startup = integer(options, "startup", 5, least=1)
        self._warmup = number(options, "warmup", above=-1) or 0.0

    def verdict(self, trial: Trial, others: Sequence[Trial], judged: float = -math.inf) -> str:
        """See `Pruner.verdict`."""
        step = trial.curve.last_step
        if step <= max(judged, self._warmup if self._warmup else -math.inf):
            return ""
        means = [
            self.goal.score(mean)
            for other in others
            if other.state is TrialState.COMPLETE and (mean := other.curve.mean_until(step)) is not None
        ]
        if len(means) < self._startup:
            return ""
        own = max(map(self.goal.score, trial.curve.values))
        middle = statistics.median(means)
        if own >= middle or math.isnan(middle):
            return ""
        return f"its best value up to step {step:g} is worse than the median of {len(means)} finished trials"
