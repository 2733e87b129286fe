"""Successive halving without waiting (ASHA), and Hyperband, which hedges its bets."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from trainmaster.spec.errors import UsageError
from trainmaster.sweeps.plugins import integer, number
from trainmaster.sweeps.pruner import Pruner, longest
from trainmaster.sweeps.trial import Goal, Trial

#: Rungs below the longest curve where the recipe gives no ``min_steps``.
RUNGS = 3


class AshaPruner(Pruner):
    """Of the trials that have come to a rung, only the best quarter goes on.

    Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2, as a
    stopping rule: instead of pausing a trial at a rung until it is among the best, it is ended there unless
    it is; the first to arrive go on. Rungs are ``min_steps`` x ``reduction``^k, and no trial is ended at the
    last step of the longest curve, where nothing is to be saved. Values that are equal to the last good one
    are good too.

    Options:
        reduction: one in this many goes on (4).
        min_steps: the first rung (without it 1/64 of the longest curve, once a trial has come to its end).
    """

    name = "asha"
    option_names: ClassVar[tuple[str, ...]] = ("reduction", "min_steps")
    default_reduction = 4

    def __init__(self, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(goal, options)
        self._reduction = integer(options, "reduction", self.default_reduction, least=2)
        self._min_steps = number(options, "min_steps", above=0)

    def verdict(self, trial: Trial, others: Sequence[Trial], judged: float = -math.inf) -> str:
        """See `Pruner.verdict`."""
        end = longest(others)
        first = self._first(end)
        return "" if first is None else self._halve(trial, others, judged, first, end)

    def _first(self, end: float | None) -> float | None:
        if self._min_steps is not None:
            return self._min_steps
        return None if end is None else max(1.0, end / self._reduction**RUNGS)

    def _halve(
        self, trial: Trial, others: Sequence[Trial], judged: float, first: float, end: float | None
    ) -> str:
        for rung in self._rungs(first, min(trial.curve.last_step, math.inf if end is None else end), end):
            if rung <= judged:
                continue
            own = self.goal.score(trial.curve.reached(rung))
            rivals = [self.goal.score(value) for o in others if (value := o.curve.reached(rung)) is not None]
            places = max(1, (len(rivals) + 1) // self._reduction)
            better = sum(score > own for score in rivals)
            if better >= places:
                value = trial.curve.reached(rung)
                return (
                    f"{value:.6g} at step {math.ceil(rung)} is number {better + 1} of {len(rivals) + 1}, "
                    f"only the best {f'{places} go' if places > 1 else 'one goes'} on"
                )
        return ""

    def _rungs(self, first: float, reached: float, end: float | None) -> Iterator[float]:
        rung = first
        while rung <= reached and (end is None or rung < end):
            yield rung
            rung *= self._reduction


class HyperbandPruner(AshaPruner):
    """Several halvings side by side that begin to judge at different steps.

    Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18 (2018),
    section 3: whether early values tell the end is unknown, so bracket s judges from step ``min_steps`` x
    ``reduction``^s on. A trial's bracket follows from its number, in the proportions of algorithm 1, line
    2; only trials of one bracket are compared.

    Options:
        reduction: one in this many goes on (3).
        min_steps: where the first bracket begins (1/27 of the longest curve).
        max_steps: length of a whole trial (the longest curve, once a trial has come to its end).
    """

    name = "hyperband"
    option_names: ClassVar[tuple[str, ...]] = ("reduction", "min_steps", "max_steps")
    default_reduction = 3

    def __init__(self, goal: Goal, options: Mapping[str, str]) -> None:
        super().__init__(goal, options)
        self._max_steps = number(options, "max_steps", above=0)
        if self._max_steps and self._min_steps and self._min_steps >= self._max_steps:
            raise UsageError(
                f"search option min_steps: {self._min_steps:g} is not below max_steps: {self._max_steps:g}"
            )

    def verdict(self, trial: Trial, others: Sequence[Trial], judged: float = -math.inf) -> str:
        """See `Pruner.verdict`."""
        end = self._max_steps or longest(others)
        first = self._first(end)
        if first is None or end is None:
            return ""
        brackets, by = self._brackets(first, end), self._reduction
        bracket = _bracket(trial.number, brackets, by)
        rivals = [other for other in others if _bracket(other.number, brackets, by) == bracket]
        return self._halve(trial, rivals, judged, first * self._reduction**bracket, end)

    def bracket(self, number: int, first: float, end: float) -> int:
        """The bracket of a trial, 0 judging earliest."""
        return _bracket(number, self._brackets(first, end), self._reduction)

    def _brackets(self, first: float, end: float) -> int:
        return max(1, math.floor(math.log(max(end / first, 1.0), self._reduction) + 1e-9) + 1)


@functools.lru_cache(maxsize=4096)  # each look at a trial asks for those of all others
def _bracket(number: int, brackets: int, reduction: int) -> int:
    shares = [math.ceil(brackets / (rank + 1) * reduction**rank) for rank in reversed(range(brackets))]
    place = zlib.crc32(f"bracket {number}".encode()) % sum(shares)
    for bracket, share in enumerate(shares):
        if place < share:
            return bracket
        place -= share
    raise AssertionError(place)
