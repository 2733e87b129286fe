"""`Sampler`: chooses the parameters of the next trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from trainmaster.dataclass import dataclass
from trainmaster.spec import ParameterValue
from trainmaster.sweeps.space import SearchSpace
from trainmaster.sweeps.trial import Goal, Trial


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What a trial begins with.

    Attributes:
        parameters: by name, in the recipe's order.
        parent: number of the trial whose last checkpoint it starts from; None for a fresh start.
    """

    parameters: dict[str, ParameterValue]
    parent: int | None = None


class Sampler(ABC):
    """Chooses parameters. Towards its caller a pure function of the space, the options and the history.

    It may remember what it has worked out of a history, but must give the same suggestion to a history that
    it sees for the first time: the table of trials is the truth, and a controller that was killed begins
    anew.

    Args:
        space: what there is to choose from.
        goal: which values are better.
        options: as the recipe writes them.

    Attributes:
        name: as recipes write it.
        option_names: the options that it understands.
        looks_back: it looks at results, so it is asked only when a trial can start at once.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]] = ()
    looks_back: ClassVar[bool] = True

    def __init__(self, space: SearchSpace, goal: Goal, options: Mapping[str, str]) -> None:
        self.space = space
        self.goal = goal
        self.options = options

    @abstractmethod
    def ask(self, history: Sequence[Trial], number: int) -> Suggestion | None:
        """What trial ``number`` begins with.

        Args:
            history: trials 0 to ``number`` - 1, in this order. What is RUNNING is under way elsewhere.
            number: of the new trial.

        Returns:
            None if it has to wait until more of the history is over.
        """
