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

#: Of `shares_by_order`: trials of one play at most, unless more than half of so many run side by side; slots
#: at most; trials of all plays at least, and shares of a trial's steps at which it is judged. Whether a later
#: trial beats all before it is a matter of luck: a few plays do not show how often.
MOST_TRIALS: Final = 32
_MOST_SLOTS: Final = 64
_LEAST_TRIALS: Final = 2048
_ONE_BY_ONE: Final = 512
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
        usual_share: of its steps that a trial makes on average which begins as others have ended, where
            `shares_by_order` cannot play it.
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
        trials: how many there are; of more than 32 those after the first ones stand for several each.
        steps: of a whole one.
        at_once: that run side by side.
        learns: a sampler sees results, so later trials are better. By how much differs from play to play.

    Returns:
        Nothing of a pruner that cannot be played.
    """
    if pruner.usual_share is not None:
        return ()
    options = tuple(sorted(pruner.options.items()))
    trials, at_once = _smaller(trials, at_once)
    trials = min(trials, max(MOST_TRIALS, 2 * at_once))
    return _plays(type(pruner), pruner.goal, options, trials, steps, at_once, learns)


def _smaller(trials: int, at_once: int) -> tuple[int, int]:
    """The same on at least one slot, and on fewer of them in proportion if there are very many."""
    at_once = max(min(at_once, trials), 1)
    least = min(at_once, _MOST_SLOTS)
    return math.ceil(trials * least / at_once), least


def trained_by_turns(shares: tuple[float, ...], trials: int, at_once: int) -> float:
    """What share of their steps so many trials make, as the slot that is free last sees it.

    It is the time until all have ended over that of whole trials, each on the slot that is free first.

    >>> [trained_by_turns(play, 4, at_once=2) for play in ((1.0, 1.0, 0.1, 0.1), (1.0, 0.1, 0.1, 1.0))]
    [0.55, 0.6]

    Args:
        shares: of one play, by `shares_by_order`.
        trials: how many there are.
        at_once: that run side by side.
    """
    at_once = max(min(at_once, trials), 1)
    if len(shares) < trials:
        trials, at_once = _smaller(trials, at_once)
    return _last_end(shares, trials, at_once) / math.ceil(trials / at_once)


@functools.lru_cache(maxsize=4096)  # a quote asks for the same plays on many machines
def _last_end(shares: tuple[float, ...], trials: int, at_once: int) -> float:
    """When the last of so many trials ends, in times of a whole one."""
    first = shares[: len(shares) // 2]
    late = shares[len(first) :]
    between = trials - len(shares)
    some = max(min(between, _ONE_BY_ONE), 0)  # of very many, each stands for several
    free = [0.0] * at_once
    for share in (*first, *[mean(late) * between / max(some, 1)] * some, *late):
        heapq.heapreplace(free, free[0] + share)
    return max(free)


@functools.lru_cache(maxsize=64)  # each forecast of a run asks for the same
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
