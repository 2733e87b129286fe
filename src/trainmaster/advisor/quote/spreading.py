"""`spread`: how many machines of each place the tasks of a sweep take, by what each place is quoted. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.dataclass import dataclass, field

if TYPE_CHECKING:
    from trainmaster.spec.objective import Objective


@dataclass(frozen=True, slots=True)
class PlaceCapacity:
    """What a place gives a sweep in time.

    Attributes:
        place: its name.
        tasks: that run there at the same time, at most.
        task_s: that one takes there. task_usd: that it costs.
        wait_s: until the first could begin.
        nodes: machines that one task fills.
        keeps: its quote keeps the limits with all tasks there.
        usd_per_hour: of the machines that one task fills.
        end_usd: what is kept of the budget for the end of these, at the highest price, as it was quoted.
    """

    place: str
    tasks: int
    task_s: float
    task_usd: float
    wait_s: float = 0.0
    nodes: int = 1
    keeps: bool = True
    usd_per_hour: float = 0.0
    end_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A choice.

    Attributes:
        nodes: machines in each place, those first that are filled first.
        time_s: until all tasks have ended. cost_usd: of all of them.
        at_once: tasks that run at the same time. usd_per_hour: of all machines. end_usd: see `PlaceCapacity`.
        misses: how many limits it exceeds.
    """

    nodes: Mapping[str, int]
    time_s: float
    cost_usd: float
    at_once: int = field(default=0, repr=False)
    usd_per_hour: float = field(default=0.0, repr=False)
    end_usd: float = field(default=0.0, repr=False)
    misses: int = field(default=0, repr=False)


def spread(
    capacities: Sequence[PlaceCapacity],
    tasks: int,
    most_nodes: int,
    objective: Objective,
    *,
    budget_usd: float = math.inf,
    deadline_s: float = math.inf,
    usd_per_hour: float = math.inf,
    end_s: Callable[[int], float] = lambda _: 0.0,
) -> Spread:
    """The best by an objective; if nothing keeps the limits, the best of what exceeds the fewest.

    Places are taken the cheapest first or the fastest first, as many as are best. If two choices are equal by
    the objective, the cheaper one is taken, then the faster one.

    Args:
        capacities: of the places; at least one can run a task, and each could have one below the cap.
        tasks: of the sweep.
        most_nodes: that its tasks spread over, in all places together.
        objective: weighs time and cost.
        budget_usd: of all tasks.
        deadline_s: until the last one has ended.
        usd_per_hour: a cap on all machines together.
        end_s: for how long money of the budget is kept for the end, by tasks at once.

    >>> from trainmaster.spec.objective import Objective
    >>> capacities = [PlaceCapacity("hosts", 2, 60.0, 0.0), PlaceCapacity("aws", 9, 30.0, 0.1)]
    >>> spread(capacities, 6, 6, Objective(time=0, cost=1))
    Spread(nodes={'hosts': 2}, time_s=180.0, cost_usd=0.0)
    >>> spread(capacities, 6, 6, Objective(time=1, cost=0)).nodes
    {'aws': 6}
    >>> spread(capacities, 6, 6, Objective(time=0, cost=1), deadline_s=100).nodes
    {'hosts': 2, 'aws': 4}
    """
    late = {capacity.place for capacity in capacities if not capacity.keeps}

    def judged(each: Spread) -> Spread:
        needed_usd = each.cost_usd + max(each.usd_per_hour * end_s(each.at_once) / 3600, each.end_usd)
        misses = (needed_usd > budget_usd) + (each.time_s > deadline_s)
        is_alone = len(each.nodes) == 1 and each.nodes.keys() <= late
        return replace(each, misses=max(misses, int(is_alone)))

    def badness(each: Spread) -> tuple[float, ...]:
        value = objective.time * each.time_s + objective.cost * each.cost_usd
        return each.misses, value, each.cost_usd, each.time_s

    return min(map(judged, _choices(capacities, tasks, most_nodes, usd_per_hour)), key=badness)


def _choices(
    capacities: Sequence[PlaceCapacity], tasks: int, most_nodes: int, usd_per_hour: float
) -> Iterator[Spread]:
    cheapest = sorted(capacities, key=lambda each: (each.task_usd, each.wait_s + each.task_s))
    fastest = sorted(capacities, key=lambda each: (each.wait_s + each.task_s, each.task_usd))
    for ranked in (cheapest, fastest):
        for count in range(1, len(ranked) + 1):
            filled = _filled(ranked[:count], tasks, most_nodes, usd_per_hour)
            if any(filled.values()):
                yield _played(ranked[:count], filled, tasks)


def _filled(
    capacities: Sequence[PlaceCapacity], tasks: int, most_nodes: int, usd_per_hour: float
) -> dict[str, int]:
    """Tasks at a time in each place: the first ones first."""
    found = dict[str, int]()
    for each in capacities:
        found[each.place] = min(each.tasks, tasks - sum(found.values()), most_nodes // each.nodes)
        if each.usd_per_hour and math.isfinite(usd_per_hour):  # 3 x $0.10 is $0.30
            most = math.floor(max(usd_per_hour, 0.0) / each.usd_per_hour * (1 + 1e-9))
            found[each.place] = min(found[each.place], most)
        most_nodes -= found[each.place] * each.nodes
        usd_per_hour -= found[each.place] * each.usd_per_hour
    return found


def _played(capacities: Sequence[PlaceCapacity], filled: Mapping[str, int], tasks: int) -> Spread:
    """Each task begins where something is free first; what gets none is not asked for."""
    used, end_s, cost_usd = set[tuple[int, int]](), 0.0, 0.0
    for number, slot, at_s in _placed(capacities, [filled[each.place] for each in capacities], tasks):
        end_s, cost_usd = max(end_s, at_s), cost_usd + capacities[number].task_usd
        used.add((number, slot))
    counts = [
        sum(each == number for each, _ in used) * capacity.nodes for number, capacity in enumerate(capacities)
    ]
    nodes = {capacity.place: count for capacity, count in zip(capacities, counts, strict=True) if count}
    usd_per_hour = sum(capacities[number].usd_per_hour for number, _ in used)
    end_usd = sum(capacities[number].end_usd for number, _ in used)
    return Spread(nodes, end_s, cost_usd, len(used), usd_per_hour, end_usd)


def tasks_by_place(
    capacities: Sequence[PlaceCapacity], tasks: int, machines: Mapping[str, int]
) -> dict[str, int]:
    """How many tasks run in each place: one on each machine first, then as many as they can run at once.

    No place has none: a task that begins there soon is why it was chosen.

    Args:
        capacities: of the places.
        tasks: of the sweep. Of fewer than places each counts as one, as its machines are taken.
        machines: gangs of them, by place.

    >>> capacities = [PlaceCapacity("hosts", 2, 60.0, 0.0), PlaceCapacity("aws", 4, 30.0, 0.1, wait_s=20.0)]
    >>> [tasks_by_place(capacities, tasks, {"hosts": 2, "aws": 2}) for tasks in (6, 2)]
    [{'hosts': 2, 'aws': 4}, {'hosts': 1, 'aws': 1}]
    >>> tasks_by_place(capacities, 1, {"hosts": 2, "aws": 2})
    {'hosts': 1, 'aws': 1}
    """
    found = dict.fromkeys((capacity.place for capacity in capacities), 0)
    for number, _, _ in _placed(capacities, [each.tasks for each in capacities], tasks, machines):
        found[capacities[number].place] += 1
    for place in [place for place, count in found.items() if not count]:
        most = max(found, key=lambda each: found[each])
        found[most] -= found[most] > 1
        found[place] = 1
    return found


def _placed(
    capacities: Sequence[PlaceCapacity],
    slots: Sequence[int],
    tasks: int,
    machines: Mapping[str, int] | None = None,
) -> Iterator[tuple[int, int, float]]:
    """Of each task the number of its place, its slot there, and when it ends.

    Slots that are free at the same time are taken in the order of the places; a second one of the same
    machine after the first one of each.
    """
    free = []
    for number, (capacity, many) in enumerate(zip(capacities, slots, strict=True)):
        alone = many if machines is None else max(machines[capacity.place], 1)
        free += [(capacity.wait_s, slot // max(alone, 1), number, slot) for slot in range(many)]
    heapq.heapify(free)
    for _ in range(tasks):
        at_s, shared, number, slot = heapq.heappop(free)
        at_s += capacities[number].task_s
        yield number, slot, at_s
        heapq.heappush(free, (at_s, shared, number, slot))
