"""`Pruner`: ends hopeless trials early."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from trainmaster.sweeps.trial import Goal, Trial, TrialState


class Pruner(ABC):
    """Decides on a running trial's curve against the others'. Pure: it remembers nothing.

    Args:
        goal: which values are better.
        options: as the recipe writes them.

    Attributes:
        name: as recipes write it.
        option_names: the options that it understands.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()

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


def longest(trials: Sequence[Trial]) -> float | None:
    """The last step of the trial that went furthest of those that went to their end; None without any."""
    ends = [t.curve.last_step for t in trials if t.state is TrialState.COMPLETE and len(t.curve)]
    return max(ends, default=None)
