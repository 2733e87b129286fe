"""Several experiments under one deadline and one budget: which of their clusters to take together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from graphlib import TopologicalSorter
from typing import Final

import numpy as np

from trainmaster.advisor.market.hourly_cost import ancestors, most_at_once
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.quantiles import SURE
from trainmaster.dataclass import dataclass
from trainmaster.spec.processor_limit import check_processor_limit

#: Prices per hour are as exact as floating point is.
_ROUNDED: Final = 1 + 1e-9


class _Aim(Enum):
    """A limit that a plan does not keep yet; in this order."""

    PER_HOUR = auto()
    TIME = auto()
    COST = auto()


@dataclass(frozen=True)
class Option:
    """One cluster of one experiment, drawn: (DRAWS,) seconds and dollars.

    Attributes:
        load: share of the user's own machine that it keeps busy.
        cluster: experiments with equal ones share their machines; None shares with none.
        usd_per_hour: of the workers' machines, and of the servers'.
        end_usd: (DRAWS,) what a run keeps of its budget for the end of it, beside what it costs.
        coming_s: (DRAWS,) of ``time_s``, until its machines are there.
        leaving_s: of ``time_s``, in which its machines are given back, and not billed any more.
        rent_usd: dollars of its machines for (DRAWS,) seconds; None: they cost nothing.
        machines: of its workers, or its tasks. fills: so many of them are full of it, by slots and GPUs.
        busy: so many of them it keeps busy.
    """

    time_s: Floats
    cost_usd: Floats
    load: float = 1.0
    cluster: Hashable = None
    usd_per_hour: tuple[float, float] = (0.0, 0.0)
    end_usd: Floats | float = 0.0
    coming_s: Floats | float = 0.0
    leaving_s: float = 0.0
    rent_usd: Callable[[Floats], Floats] | None = None
    machines: float = 1.0
    fills: float = 1.0
    busy: float = 0.0


@dataclass(frozen=True)
class JointPlan:
    """One option for each experiment, and what they are together.

    Attributes:
        taken: position of the option by experiment. time_s, cost_usd: (DRAWS,) of the run.
        needed_usd: (DRAWS,) that it must be allowed, lest its cap ends it before.
        usd_per_hour: of all machines that may be there at the same time.
        feasible: both limits hold with 90 %, and the price per hour is allowed.
    """

    taken: Mapping[str, int]
    time_s: Floats
    cost_usd: Floats
    needed_usd: Floats
    usd_per_hour: float
    feasible: bool


def schedule(
    times: Mapping[str, Floats], after: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """(DRAWS,) seconds until each experiment begins, and has ended: it starts when those before it have.

    >>> schedule({"a": np.array([1.0]), "b": np.array([2.0]), "c": np.array([4.0])}, {"c": ["a"]})[1]["c"]
    array([5.])
    """
    begins: dict[str, Floats] = {}
    ends: dict[str, Floats] = {}
    graph = {name: [a for a in after.get(name, ()) if a in times] for name in times}
    for name in TopologicalSorter(graph).static_order():
        begins[name] = np.max([ends[a] for a in graph[name]] or [np.zeros_like(times[name])], axis=0)
        ends[name] = begins[name] + times[name]
    return begins, ends


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
    path: Floats = np.max(list(schedule(times, after)[1].values()), axis=0)
    if load is None:
        return path
    work: Floats = np.sum([load[name] * time_s for name, time_s in times.items()], axis=0)
    return np.maximum(path, work)


def plan(
    options: Mapping[str, Sequence[Option]],
    start: Mapping[str, int],
    after: Mapping[str, Sequence[str]],
    limits: QuoteLimits,
    shares_machine: bool = False,
) -> JointPlan:
    """Take one option of each experiment.

    Begins with the picks of the objective; while the price per hour (then the deadline, then the budget) does
    not hold, the one change that gains most of it per second (time per dollar, dollars per second) is made.
    With one experiment that is the whole front; with several it is greedy.

    Args:
        options: of each experiment, those of its Pareto front, and some that cost little per hour.
        start: the pick of the objective, a position in them.
        after: which experiments each waits for.
        limits: of the whole run.
        shares_machine: all run on one machine; see ``Option.load``.
    """
    before = ancestors({name: after.get(name, ()) for name in options})

    def whole(taken: Mapping[str, int]) -> JointPlan:
        check_processor_limit()
        chosen = {name: options[name][row] for name, row in taken.items()}
        load = {name: option.load for name, option in chosen.items()} if shares_machine else None
        chosen, waits_for = (chosen, after) if shares_machine else on_shared_machines(chosen, after)
        time_s = together({name: option.time_s for name, option in chosen.items()}, waits_for, load)
        cost: Floats = np.sum([option.cost_usd for option in chosen.values()], axis=0)
        in_time = float((time_s <= limits.deadline_s).mean())
        needed = _needed_usd(chosen, waits_for)
        in_budget = float((needed <= limits.budget_usd).mean())
        usd_per_hour = _hourly(chosen, before)
        fits = usd_per_hour <= limits.usd_per_hour * _ROUNDED
        feasible = fits and in_time >= SURE and in_budget >= SURE
        return JointPlan(taken, time_s, cost, needed, usd_per_hour, feasible)

    best = whole(dict(start))
    for aim in _Aim:
        while not best.feasible and _breaks(best, limits, aim):
            moves = [
                whole({**best.taken, name: other})
                for name, row in best.taken.items()
                for other in range(len(options[name]))
                if other != row
            ]
            if aim is _Aim.PER_HOUR or not shares_machine:
                moves += [whole(taken) for taken in _all_below(options)]
            most = max(best.usd_per_hour, limits.usd_per_hour) * _ROUNDED
            gain = _gain(best, aim)
            moves = [move for move in moves if gain(move)[0] > 0 and move.usd_per_hour <= most]
            if not moves:
                break
            best = max(moves, key=lambda move: gain(move)[0] / max(gain(move)[1], 1e-9))
    return best


def turns(
    takes_s: Mapping[str, float],
    after: Mapping[str, Sequence[str]],
    fills: Mapping[str, float],
    sharing: Iterable[Collection[str]],
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Experiments that share machines run side by side while these have room, else in turn, as a run does.

    Args:
        takes_s: seconds that each takes once it has begun.
        after: which experiments each waits for.
        fills: the share of its machines that each fills.
        sharing: experiments on the same machines, each time.

    Returns:
        Which experiments each waits for, also for its turn, and which run beside it.

    >>> both = {"a": 9.0, "b": 5.0}
    >>> turns(both, {}, {"a": 0.5, "b": 0.5}, [both])[0], turns(both, {}, {"a": 0.5, "b": 0.6}, [both])[0]
    ({'a': [], 'b': []}, {'a': [], 'b': ['a']})
    """
    waits_for = {name: [a for a in after.get(name, ()) if a in takes_s] for name in takes_s}
    beside: dict[str, list[str]] = {name: [] for name in takes_s}
    begins, _ = schedule({name: np.array([each]) for name, each in takes_s.items()}, waits_for)
    order = sorted(TopologicalSorter(waits_for).static_order(), key=lambda name: float(begins[name][0]))
    group = {name: names for names in sharing for name in names}
    ends: dict[str, float] = {}
    for name in order:
        check_processor_limit()
        begin = max((ends[each] for each in waits_for[name]), default=0.0)
        there = [each for each in group.get(name, ()) if ends.get(each, 0.0) > begin]
        there.sort(key=ends.__getitem__, reverse=True)
        while there and fills[name] + sum(fills[each] for each in there) > _ROUNDED:
            waits_for[name].append(there.pop())
            begin = ends[waits_for[name][-1]]
        ends[name] = begin + takes_s[name]
        for each in there:
            beside[name].append(each)
            beside[each].append(name)
    return waits_for, beside


def on_shared_machines(
    chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Option], dict[str, list[str]]]:
    """Experiments that share machines: these come, are billed at least, and are given back once.

    Returns:
        The options as they are then, and which experiments each waits for, also for its turn.
    """
    clusters: dict[Hashable, list[str]] = {}
    for name, option in chosen.items():
        if option.cluster is not None:
            clusters.setdefault(option.cluster, []).append(name)
    groups = [names for names in clusters.values() if len(names) > 1]
    work_s = {n: np.maximum(one.time_s - one.coming_s - one.leaving_s, 0.0) for n, one in chosen.items()}
    fills, busy = dict.fromkeys(chosen, 1.0), dict.fromkeys(chosen, 1.0)
    for names in groups:
        machines = max(chosen[name].machines for name in names)
        for name in names:
            fills[name], busy[name] = (each / machines for each in (chosen[name].fills, chosen[name].busy))
    typical_s = {name: float(np.median(each)) for name, each in work_s.items()}
    waits_for, beside = turns(typical_s, after, fills, groups)

    found: dict[str, Option] = {}
    ends: dict[str, Floats] = {}
    first: dict[Hashable, tuple[Floats, Floats | float]] = {}
    for name in TopologicalSorter(waits_for).static_order():
        check_processor_limit()
        option, begin = (
            chosen[name],
            np.max([ends[a] for a in waits_for[name]] or [0.0 * work_s[name]], axis=0),
        )
        time_s, members = option.time_s, next((names for names in groups if name in names), [])
        if members:
            since, come_s = first.setdefault(option.cluster, (begin, option.coming_s))
            coming_s = come_s - np.clip(begin - since, 0.0, come_s)
            slower = max(busy[name] + sum(busy[each] for each in beside[name]), 1.0)
            are_later = {each for each in members if each not in found} - {name, *beside[name]}
            time_s = coming_s + work_s[name] * slower + (0.0 if are_later else option.leaving_s)
        found[name] = replace(option, time_s=time_s)
        ends[name] = begin + time_s
    begins, _ = schedule({name: option.time_s for name, option in found.items()}, waits_for)
    for names in groups:
        rent_usd = max((chosen[name] for name in names), key=lambda option: sum(option.usd_per_hour)).rent_usd
        if rent_usd is None:
            continue
        # they are there from the first one's begin to the last one's end
        until = np.max([ends[name] for name in names], axis=0) - chosen[names[-1]].leaving_s
        usd = rent_usd(until - np.min([begins[name] for name in names], axis=0)) / len(names)
        for name in names:
            option = chosen[name]
            alone = option.rent_usd and option.rent_usd(np.maximum(option.time_s - option.leaving_s, 0.0))
            cost_usd = option.cost_usd - (0.0 if alone is None else alone) + usd
            found[name] = replace(found[name], cost_usd=np.maximum(cost_usd, 0.0))
    return found, waits_for


def _needed_usd(chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]]) -> Floats:
    """(DRAWS,) that a run must be allowed: at each moment what it has cost, and the end of what is there.

    That is most when an experiment ends. What has ended by then was given back, and what begins later costs
    nothing yet.
    """
    begins, ends = schedule({name: option.time_s for name, option in chosen.items()}, after)
    needed: Floats = np.sum([option.cost_usd for option in chosen.values()], axis=0)
    for at in ends.values() if any(np.any(option.end_usd) for option in chosen.values()) else ():
        check_processor_limit()
        usd = np.zeros_like(at)
        for name, option in chosen.items():
            share = np.clip((at - begins[name]) / np.maximum(option.time_s, 1e-9), 0.0, 1.0)
            is_there = (begins[name] < at) & (at <= ends[name])
            usd += option.cost_usd * share + np.where(is_there, option.end_usd, 0.0)
        needed = np.maximum(needed, usd)
    return needed


def _hourly(chosen: Mapping[str, Option], before: Mapping[str, set[str]]) -> float:
    """Dollars per hour of all that may be there at once; experiments that share machines have them once."""
    serves: dict[str, list[str]] = {}
    names: dict[Hashable, str] = {}
    for name, option in chosen.items():
        cluster = name if option.cluster is None else names.setdefault(option.cluster, name)
        serves.setdefault(cluster, []).append(name)
    prices = {
        cluster: sum(max(chosen[name].usd_per_hour[role] for name in members) for role in (0, 1))
        for cluster, members in serves.items()
    }
    return most_at_once(prices, serves, before)


def _all_below(options: Mapping[str, Sequence[Option]]) -> Iterator[Mapping[str, int]]:
    """The fastest options below each price per hour: one change alone gains nothing on shared machines."""
    medians = {name: [float(np.median(option.time_s)) for option in each] for name, each in options.items()}
    for most in sorted({sum(option.usd_per_hour) for each in options.values() for option in each}):
        below = {
            name: [row for row, option in enumerate(each) if sum(option.usd_per_hour) <= most]
            for name, each in options.items()
        }
        if all(below.values()):
            yield {name: min(rows, key=medians[name].__getitem__) for name, rows in below.items()}


def _breaks(found: JointPlan, limits: QuoteLimits, aim: _Aim) -> bool:
    match aim:
        case _Aim.PER_HOUR:
            return found.usd_per_hour > limits.usd_per_hour * _ROUNDED
        case _Aim.TIME:
            return float((found.time_s <= limits.deadline_s).mean()) < SURE
        case _Aim.COST:
            return float((found.needed_usd <= limits.budget_usd).mean()) < SURE


def _gain(now: JointPlan, aim: _Aim) -> Callable[[JointPlan], tuple[float, float]]:
    """What a change gains, and what it takes: seconds for dollars; dollars (per hour) for seconds."""

    def of(then: JointPlan) -> tuple[float, float]:
        faster = float(np.median(now.time_s) - np.median(then.time_s))
        cheaper = float(np.median(now.cost_usd) - np.median(then.cost_usd))
        less = float(np.median(now.needed_usd) - np.median(then.needed_usd))
        match aim:
            case _Aim.PER_HOUR:
                return now.usd_per_hour - then.usd_per_hour, -faster
            case _Aim.TIME:
                return faster, -cheaper
            case _Aim.COST:
                return less, -faster

    return of
