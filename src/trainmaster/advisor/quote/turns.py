"""Experiments that share machines, or wait for each other: when each begins and ends, and what that costs."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass
from trainmaster.spec.processor_limit import check_processor_limit

#: Shares of machines are as exact as floating point is.
_ROUNDED: Final = 1 + 1e-9


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

    @cached_property
    def work_s(self) -> Floats:
        """(DRAWS,) while its machines are there."""
        return np.maximum(self.time_s - self.coming_s - self.leaving_s, 0.0)

    @cached_property
    def typical_s(self) -> float:
        """The median of that."""
        return float(np.median(self.work_s))

    @cached_property
    def beside_usd(self) -> Floats:
        """(DRAWS,) dollars beside those of its machines."""
        if self.rent_usd is None:
            return self.cost_usd
        return self.cost_usd - self.rent_usd(np.maximum(self.time_s - self.leaving_s, 0.0))


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
        earlier = graph[name]
        begins[name] = latest([ends[a] for a in earlier]) if earlier else np.zeros_like(times[name])
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
        Which experiments each waits for, also for its turn, and which run beside it. What another one that
        it waits for has waited for is left out.

    >>> both = {"a": 9.0, "b": 5.0}
    >>> turns(both, {}, {"a": 0.5, "b": 0.5}, [both])[0], turns(both, {}, {"a": 0.5, "b": 0.6}, [both])[0]
    ({'a': [], 'b': []}, {'a': [], 'b': ['a']})
    """
    waits_for = {name: [a for a in after.get(name, ()) if a in takes_s] for name in takes_s}
    beside: dict[str, list[str]] = {name: [] for name in takes_s}
    order = [*takes_s]
    if any(waits_for.values()):
        begins, _ = schedule({name: np.array([each]) for name, each in takes_s.items()}, waits_for)
        order = [*TopologicalSorter(waits_for).static_order()]
        order.sort(key=lambda name: float(begins[name][0]))
    groups: dict[str, list[tuple[int, int]]] = {}
    for number, names in enumerate(sharing):
        for i, name in enumerate(names):
            groups.setdefault(name, []).append((number, i))
    ends: dict[str, float] = {}
    # Of each group those that have had their turn, the last to end at the end; and all of them, as bits.
    lines: dict[int, list[tuple[float, int, str]]] = {}
    in_line: dict[int, int] = {}
    with_earlier: dict[str, int] = {}
    check_processor_limit()
    for number, name in enumerate(order):
        begin = max((ends[each] for each in waits_for[name]), default=0.0)
        earlier = 0
        for each in waits_for[name]:
            earlier |= with_earlier[each]
        group = groups.get(name, [(-1, 0)])[-1][0]
        line = lines.get(group, [])
        row, filled = len(line) - 1, fills[name]
        while row >= 0 and line[row][0] > begin and (filled := filled + fills[line[row][2]]) <= _ROUNDED:
            beside[name].append(line[row][2])
            row -= 1
        least_s = begin
        begin = max(begin, line[row][0]) if row >= 0 else begin
        while row >= 0 and line[row][0] > least_s and in_line[group] & ~earlier:
            if with_earlier[line[row][2]] & ~earlier:  # else another one that is waited for ends later
                waits_for[name].append(line[row][2])
                earlier |= with_earlier[line[row][2]]
            row -= 1
        ends[name] = begin + takes_s[name]
        with_earlier[name] = earlier | 1 << number
        for each in beside[name]:
            beside[each].append(name)
        for group, i in groups.get(name, ()):
            insort(lines.setdefault(group, []), (ends[name], -i, name))
            in_line[group] = in_line.get(group, 0) | 1 << number
    return waits_for, beside


@dataclass(frozen=True)
class RentedGroup:
    """Experiments that share machines: these come, are billed at least, and are given back once.

    Attributes:
        names: of the experiments. rented_s: (DRAWS,) that the machines are there.
        rent_usd: what that costs; None: nothing.
    """

    names: Sequence[str]
    rented_s: Floats
    rent_usd: Callable[[Floats], Floats] | None

    def costs_usd(self, chosen: Mapping[str, Option]) -> Floats:
        """(names, DRAWS) dollars of each."""
        if self.rent_usd is None:
            return np.array([chosen[name].cost_usd for name in self.names])
        usd = self.rent_usd(self.rented_s) / len(self.names)
        return np.maximum(np.array([chosen[name].beside_usd for name in self.names]) + usd, 0.0)


@dataclass(frozen=True)
class JointCourse:
    """When experiments begin and end that share machines.

    Attributes:
        waits_for: which experiments each waits for, also for its turn.
        beside: which run at the same time on the same machines.
        begins, ends: (DRAWS,) seconds of each.
        groups: those that share machines.
    """

    waits_for: Mapping[str, Sequence[str]]
    beside: Mapping[str, Sequence[str]]
    begins: Mapping[str, Floats]
    ends: Mapping[str, Floats]
    groups: Sequence[RentedGroup]

    @classmethod
    def of(cls, chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]]) -> JointCourse:
        """Of one option for each experiment.

        Args:
            chosen: by experiment.
            after: which experiments each waits for.
        """
        clusters: dict[Hashable, list[str]] = {}
        for name, option in chosen.items():
            if option.cluster is not None:
                clusters.setdefault(option.cluster, []).append(name)
        groups = [names for names in clusters.values() if len(names) > 1]
        fills, busy = dict.fromkeys(chosen, 1.0), dict.fromkeys(chosen, 1.0)
        for names in groups:
            machines = max(chosen[name].machines for name in names)
            for name in names:
                fills[name], busy[name] = chosen[name].fills / machines, chosen[name].busy / machines
        typical_s = {name: option.typical_s for name, option in chosen.items()}
        waits_for, beside = turns(typical_s, after, fills, groups)

        group_of = {name: names for names in groups for name in names}
        left = {names[0]: len(names) for names in groups}
        begins, ends = dict[str, Floats](), dict[str, Floats]()
        first: dict[str, tuple[Floats, Floats | float]] = {}
        have_come: set[str] = set()  # the first of each group, and who waits for one of these
        for name in TopologicalSorter(waits_for).static_order():
            option, earlier = chosen[name], waits_for[name]
            begin = latest([ends[each] for each in earlier]) if earlier else np.zeros_like(option.time_s)
            takes_s = option.time_s
            if (its := group_of.get(name)) is not None:
                slower = busy[name] + sum(busy[each] for each in beside[name])
                takes_s = option.work_s * slower if slower > 1 else option.work_s
                since, come_s = first.setdefault(its[0], (begin, option.coming_s))
                if any(each in have_come and group_of[each] is its for each in earlier):
                    have_come.add(name)
                else:
                    takes_s = takes_s + come_s - np.clip(begin - since, 0.0, come_s)
                    have_come |= {name} if since is begin else set()
                left[its[0]] -= 1
                if left[its[0]] == sum(each not in ends for each in beside[name]):  # none comes later
                    takes_s = takes_s + option.leaving_s
            begins[name], ends[name] = begin, begin + takes_s
        return cls(
            waits_for, beside, begins, ends, [_rented(chosen, names, begins, ends) for names in groups]
        )

    def deciding(self, time_s: Floats, draws: NDArray[np.int_]) -> set[str]:
        """Experiments without which one of some draws would end sooner, and what slows these down.

        Args:
            time_s: (DRAWS,) when the run ends.
            draws: which of them.
        """
        must_end = dict.fromkeys(self.ends, time_s[draws])
        found: set[str] = set()
        for name in reversed(list(TopologicalSorter(self.waits_for).static_order())):
            end_s, begin_s = self.ends[name][draws], self.begins[name][draws]
            if (end_s * _ROUNDED >= must_end[name]).any():
                found |= {name, *self.beside[name]}
            for each in self.waits_for[name]:
                must_end[each] = np.minimum(must_end[each], must_end[name] - (end_s - begin_s))
        return found

    def last(self, time_s: Floats, usd: Mapping[str, Floats | float]) -> Floats | float:
        """(DRAWS,) of one of those that end last.

        Args:
            time_s: (DRAWS,) when the last one ends.
            usd: of each experiment.
        """
        found: Floats | float = 0.0
        for name in self.ends.keys() - {each for earlier in self.waits_for.values() for each in earlier}:
            found = np.where(self.ends[name] == time_s, usd[name], found)
        return found


def _rented(
    chosen: Mapping[str, Option],
    names: Sequence[str],
    begins: Mapping[str, Floats],
    ends: Mapping[str, Floats],
) -> RentedGroup:
    """They are there from the first one's begin to the last one's end."""
    rent_usd = max((chosen[name] for name in names), key=lambda option: sum(option.usd_per_hour)).rent_usd
    until = latest([ends[name] for name in names]) - chosen[names[-1]].leaving_s
    since: Floats = np.minimum.reduce([begins[name] for name in names])
    return RentedGroup(names, until - since, rent_usd)


def on_shared_machines(
    chosen: Mapping[str, Option], after: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Option], Mapping[str, Sequence[str]]]:
    """Experiments that share machines: these come, are billed at least, and are given back once.

    Returns:
        The options as they are then, and which experiments each waits for, also for its turn.
    """
    course = JointCourse.of(chosen, after)
    found = {name: chosen[name] for name in course.ends}
    for group in course.groups:
        for name, usd in zip(group.names, group.costs_usd(chosen), strict=True):
            time_s = course.ends[name] - course.begins[name]
            found[name] = replace(found[name], time_s=time_s, cost_usd=usd)
    return found, course.waits_for


def latest(ends: Sequence[Floats]) -> Floats:
    """(DRAWS,) until all of some have ended."""
    found = ends[0]
    for each in ends[1:]:
        found = np.maximum(found, each)
    return found
