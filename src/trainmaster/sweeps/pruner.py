"""`Pruner`: ends hopeless trials early."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from trainmaster.sweeps.trial import Goal, Trial, TrialState

#: Of `share_trained`: trials that are played at most and at least, and looks until one comes to its end.
_MOST_TRIALS: Final = 32
_LEAST_TRIALS: Final = 24
_LOOKS: Final = 16


class Pruner(ABC):
    """Decides on a running trial's curve against the others'. Pure: it remembers nothing.

    Args:
        goal: which values are better.
        options: as the recipe writes them.

    Attributes:
        name: as recipes write it.
        option_names: the options that it understands.
        usual_share: of all steps that it lets trials make, where `share_trained` cannot play it.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()
    usual_share: ClassVar[float | None] = None

    def __init__(self, goal: Goal, options: Mapping[str, str]) -> None:
        self.goal = goal
        self.options = options

    @abstractmethod
    def verdict(self, trial: Trial, others: Sequence[Trial], judged: float = -math.inf) -> str:
        """Why a trial should end now; empty if it may go on.

        Args:
            trial: RUNNING.
            others: all other trials, whatever their state.
            judged: step up to which the trial was judged before; it is not judged there again.
        """


def share_trained(pruner: Pruner, trials: int, steps: int, at_once: int) -> float:
    """What share of all steps a pruner lets trials make, if the first values tell which trials are better.

    Trials of random rank are played against the pruner itself, so this holds for any; more than 32 are as 32.

    >>> from trainmaster.sweeps.halving import AshaPruner
    >>> asha = AshaPruner(Goal.MAX, {"min_steps": "10"})
    >>> round(share_trained(asha, 24, 640, at_once=2), 2)
    0.21

    Args:
        pruner: of a search.
        trials: how many there are.
        steps: of a whole one.
        at_once: that run side by side.
    """
    if pruner.usual_share is not None:
        return pruner.usual_share
    trials = min(trials, _MOST_TRIALS)
    made = 0.0
    plays = math.ceil(_LEAST_TRIALS / trials)
    for play in range(plays):
        ranks = random.Random(play).sample(range(trials), trials)  # noqa: S311 - no secret
        made += _steps_made(pruner, ranks, steps, at_once)
    return made / (plays * trials * steps)


def _steps_made(pruner: Pruner, ranks: Sequence[int], steps: int, at_once: int) -> float:
    """How many steps trials of these ranks make, all together; a higher rank is better."""
    looks = sorted({steps * k / _LOOKS for k in range(1, _LOOKS + 1)} | {steps / 2**k for k in range(5, 8)})
    sign = 1.0 if pruner.goal is Goal.MAX else -1.0
    trials = [Trial(number, {}) for number in range(len(ranks))]
    judged = [-math.inf] * len(ranks)
    waiting, running, made = list(reversed(range(len(ranks)))), list[int](), 0.0
    while running or waiting:
        while waiting and len(running) < max(at_once, 1):
            running.append(waiting.pop())
        for number in tuple(running):
            trial = trials[number]
            step = looks[len(trial.curve)]
            trial.curve.add(step, sign * (1 + ranks[number]))
            state = TrialState.COMPLETE
            if step < steps:
                others = trials[:number] + trials[number + 1 :]
                ends = pruner.verdict(trial, others, judged[number])
                state = TrialState.PRUNED if ends else TrialState.RUNNING
            judged[number] = step
            if state is not TrialState.RUNNING:
                made += step
                running.remove(number)
                trials[number] = Trial(number, {}, state, trial.curve.values[-1], trial.curve)
    return made


def longest(trials: Sequence[Trial]) -> float | None:
    """The last step of the trial that went furthest of those that went to their end; None without any."""
    ends = [t.curve.last_step for t in trials if t.state is TrialState.COMPLETE and len(t.curve)]
    return max(ends, default=None)
