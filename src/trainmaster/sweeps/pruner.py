"""`Pruner`: ends hopeless trials early."""

from __future__ import annotations

import functools
import heapq
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import ClassVar, Final

from trainmaster.sweeps.trial import Goal, Trial, TrialState

#: Of `shares_by_order`: trials of one play at most, of all plays at least, and shares of a trial's steps at
#: which it is judged. Whether a later trial beats all before it is a matter of luck: a few plays do not show
#: how often.
MOST_TRIALS: Final = 32
_LEAST_TRIALS: Final = 2048
_LOOKS: Final = sorted({k / 128 for k in range(1, 8)} | {k / 16 for k in range(1, 17)})
#: By each whole trial that it has seen, a sampler that learns chooses the best of so many more random ones at
#: most: so do TPE and CMA-ES on smooth functions of two and three parameters.
_LEARNS: Final = 0.5


class Pruner(ABC):
    """Decides on a running trial's curve against the others'. Pure: it remembers nothing.

    Args:
        goal: which values are better.
        options: as the recipe writes them.

    Attributes:
        name: as recipes write it.
        option_names: the options that it understands.
        usual_share: of all steps that it lets trials make, where `shares_by_order` cannot play it.
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


def share_trained(pruner: Pruner, plays: Sequence[Sequence[float]]) -> float:
    """What share of all steps a pruner lets trials make.

    >>> from trainmaster.sweeps.halving import AshaPruner
    >>> asha = AshaPruner(Goal.MAX, {"min_steps": "10"})
    >>> round(share_trained(asha, shares_by_order(asha, 24, 640, at_once=2)), 2)
    0.17

    Args:
        pruner: of a search.
        plays: of it, by `shares_by_order`.
    """
    return mean(map(mean, plays)) if plays else pruner.usual_share or 1.0


def shares_by_order(
    pruner: Pruner, trials: int, steps: int, at_once: int, *, learns: bool = False
) -> tuple[tuple[float, ...], ...]:
    """By play, what share of its steps each trial makes, in the order in which they begin.

    The first values are taken to tell which trials are better. Trials of random rank are played against the
    pruner itself, so this holds for any. The first ones have none to be compared with, so they go furthest.

    >>> from trainmaster.sweeps.halving import AshaPruner
    >>> shares_by_order(AshaPruner(Goal.MIN, {}), 4, 80, at_once=2)[2]
    (1.0, 1.0, 0.015625, 0.015625)

    Args:
        pruner: of a search.
        trials: how many there are; more than 32 are as 32.
        steps: of a whole one.
        at_once: that run side by side.
        learns: a sampler sees results, so later trials are better. By how much differs from play to play.

    Returns:
        Nothing of a pruner that cannot be played.
    """
    if pruner.usual_share is not None:
        return ()
    options = tuple(sorted(pruner.options.items()))
    return _plays(type(pruner), pruner.goal, options, min(trials, MOST_TRIALS), steps, at_once, learns)


@functools.lru_cache(maxsize=16)  # each forecast of a run asks for the same
def _plays(
    kind: type[Pruner],
    goal: Goal,
    options: tuple[tuple[str, str], ...],
    trials: int,
    steps: int,
    at_once: int,
    learns: bool,
) -> tuple[tuple[float, ...], ...]:
    pruner = kind(goal, dict(options))
    draws = (random.Random(play) for play in range(math.ceil(_LEAST_TRIALS / trials)))  # noqa: S311 - no secret
    return tuple(_play(pruner, draw, trials, steps, at_once, learns) for draw in draws)


def with_seen(
    plays: Sequence[Sequence[float]], seen: Sequence[Sequence[float]]
) -> tuple[tuple[float, ...], ...]:
    """Plays, and beside them what the very same trials were seen to make: n times, n (n + 2) times as much.

    The same trials rank as they did, but for what is chance in a training: of one run seen three in four
    believe it, of four 24 in 25.

    >>> with_seen([(1.0, 0.5)], [(1.0, 0.1)])
    ((1.0, 0.5), (1.0, 0.1), (1.0, 0.1), (1.0, 0.1))
    >>> len(with_seen([], [(1.0, 0.1)]))
    3
    """
    again = max(len(plays), 1) * (len(seen) + 2)  # some pruners are not played
    return (*map(tuple, plays), *(tuple(each) for each in seen for _ in range(again)))


def _play(
    pruner: Pruner, draw: random.Random, trials: int, steps: int, at_once: int, learns: bool
) -> tuple[float, ...]:
    """Share of its steps that each trial makes."""
    sign, learnt = 1.0 if pruner.goal is Goal.MAX else -1.0, draw.uniform(0.0, _LEARNS * learns)
    some, ranks = list[Trial](), list[float]()
    judged, made = [-math.inf] * trials, [0.0] * trials
    running = list[tuple[float, int, float]]()  # when each is looked at next, and when it began

    def begin(now: float) -> None:
        if (number := len(some)) < trials:
            some.append(Trial(number, {}))
            ranks.append(draw.random() ** (1 / (1 + learnt * sum(made))))
            heapq.heappush(running, (now + _LOOKS[0], number, now))

    for _ in range(max(at_once, 1)):
        begin(0.0)
    while running:
        now, number, since = heapq.heappop(running)
        trial = some[number]
        share = _LOOKS[len(trial.curve)]
        trial.curve.add(steps * share, sign * (1 + ranks[number]))
        state = TrialState.COMPLETE
        if share < 1:
            why = pruner.verdict(trial, some[:number] + some[number + 1 :], judged[number])
            state = TrialState.PRUNED if why else TrialState.RUNNING
        judged[number] = steps * share
        if state is TrialState.RUNNING:
            heapq.heappush(running, (since + _LOOKS[len(trial.curve)], number, since))
            continue
        made[number] = share
        some[number] = Trial(number, {}, state, trial.curve.values[-1], trial.curve)
        begin(now)
    return tuple(made)


def longest(trials: Sequence[Trial]) -> float | None:
    """The last step of the trial that went furthest of those that went to their end; None without any."""
    ends = [t.curve.last_step for t in trials if t.state is TrialState.COMPLETE and len(t.curve)]
    return max(ends, default=None)
