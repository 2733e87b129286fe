"""Several experiments under one deadline and one budget: which of their clusters to take together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

import numpy as np

from trainmaster.advisor.choosing import SURE, Limits
from trainmaster.advisor.shapes import Floats


@dataclass(frozen=True)
class Option:
    """One cluster of one experiment, drawn: (DRAWS,) seconds and dollars.

    Attributes:
        load: share of the user's own machine that it keeps busy.
    """

    time_s: Floats
    cost_usd: Floats
    load: float = 1.0


@dataclass(frozen=True)
class Plan:
    """One option for each experiment, and what they are together.

    Attributes:
        taken: position of the option by experiment. time_s, cost_usd: (DRAWS,) of the run.
        feasible: both limits hold with 90 %.
    """

    taken: Mapping[str, int]
    time_s: Floats
    cost_usd: Floats
    feasible: bool


def critical_path(times: Mapping[str, Floats], after: Mapping[str, Sequence[str]]) -> Floats:
    """(DRAWS,) seconds until the last experiment has ended; each starts when those before it have.

    >>> critical_path({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4.0])}, {"c": ["a"]})
    array([5.])
    """
    ends: dict[str, Floats] = {}
    graph = {name: [a for a in after.get(name, ()) if a in times] for name in times}
    for name in TopologicalSorter(graph).static_order():
        begin = np.max([ends[a] for a in graph[name]], axis=0) if graph[name] else 0.0
        ends[name] = begin + times[name]
    result: Floats = np.max(list(ends.values()), axis=0)
    return result


def together(
    times: Mapping[str, Floats], after: Mapping[str, Sequence[str]], load: Mapping[str, float] | None = None
) -> Floats:
    """(DRAWS,) seconds until all have ended, where they share one machine: no less than all work on it.

    Args:
        times: seconds of each experiment by itself.
        after: which experiments each waits for.
        load: share of the machine that each keeps busy; None if each has machines of its own.

    >>> alone = {"a": np.array([4.0]), "b": np.array([3.0])}
    >>> together(alone, {}, {"a": 1.0, "b": 0.5}), together(alone, {})
    (array([5.5]), array([4.]))
    """
    path = critical_path(times, after)
    if load is None:
        return path
    work: Floats = np.sum([load[name] * time_s for name, time_s in times.items()], axis=0)
    return np.maximum(path, work)


def plan(
    options: Mapping[str, Sequence[Option]],
    start: Mapping[str, int],
    after: Mapping[str, Sequence[str]],
    limits: Limits,
    shares_machine: bool = False,
) -> Plan:
    """Take one option of each experiment.

    Begins with the picks of the objective; while the deadline (or the budget) does not hold, the one change
    that gains most time per dollar (or most dollars per second) is made. With one experiment that is the
    whole front; with several it is greedy.

    Args:
        options: of each experiment, those of its Pareto front.
        start: the pick of the objective, a position in them.
        after: which experiments each waits for.
        limits: of the whole run.
        shares_machine: all run on one machine; see ``Option.load``.
    """

    def whole(taken: Mapping[str, int]) -> Plan:
        chosen = {name: options[name][row] for name, row in taken.items()}
        load = {name: option.load for name, option in chosen.items()} if shares_machine else None
        time_s = together({name: option.time_s for name, option in chosen.items()}, after, load)
        cost: Floats = np.sum([option.cost_usd for option in chosen.values()], axis=0)
        in_time = float((time_s <= limits.deadline_s).mean())
        in_budget = float((cost <= limits.budget_usd).mean())
        return Plan(taken, time_s, cost, in_time >= SURE and in_budget >= SURE)

    best = whole(dict(start))
    for is_late in (True, False):
        while not best.feasible and _breaks(best, limits, late=is_late):
            moves = [
                whole({**best.taken, name: other})
                for name, row in best.taken.items()
                for other in range(len(options[name]))
                if other != row
            ]
            gain = _gain(best, late=is_late)
            moves = [move for move in moves if gain(move)[0] > 0]
            if not moves:
                break
            best = max(moves, key=lambda move: gain(move)[0] / max(gain(move)[1], 1e-9))
    return best


def _breaks(found: Plan, limits: Limits, *, late: bool) -> bool:
    if late:
        return float((found.time_s <= limits.deadline_s).mean()) < SURE
    return float((found.cost_usd <= limits.budget_usd).mean()) < SURE


def _gain(now: Plan, *, late: bool) -> Callable[[Plan], tuple[float, float]]:
    """What a change gains, and what it takes: seconds for dollars, or dollars for seconds."""

    def of(then: Plan) -> tuple[float, float]:
        faster = float(np.median(now.time_s) - np.median(then.time_s))
        cheaper = float(np.median(now.cost_usd) - np.median(then.cost_usd))
        return (faster, -cheaper) if late else (cheaper, -faster)

    return of
