"""`spread`: how many machines of each place the tasks of a sweep take, by what each place is quoted. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.spec.objective import Objective


@dataclass(frozen=True, slots=True)
class Room:
    """What a place gives a sweep in time.

    Attributes:
        place: its name.
        tasks: that run there at the same time, at most.
        task_s: that one takes there. task_usd: that it costs.
        wait_s: until the first could begin.
        nodes: machines that one task fills.
        keeps: its quote keeps the limits with all tasks there.
        usd_per_hour: of the machines that one task fills.
    """

    place: str
    tasks: int
    task_s: float
    task_usd: float
    wait_s: float = 0.0
    nodes: int = 1
    keeps: bool = True
    usd_per_hour: float = 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A choice.

    Attributes:
        nodes: machines in each place, those first that are filled first.
        time_s: until all tasks have ended. cost_usd: of all of them.
        misses: how many limits it exceeds.
    """

    nodes: Mapping[str, int]
    time_s: float
    cost_usd: float
    misses: int = field(default=0, repr=False)


def spread(
    rooms: Sequence[Room],
    tasks: int,
    most_nodes: int,
    objective: Objective,
    *,
    budget_usd: float = math.inf,
    deadline_s: float = math.inf,
    usd_per_hour: float = math.inf,
) -> Spread:
    """The best by an objective; if nothing keeps the limits, the best of what exceeds the fewest.

    Places are taken the cheapest first or the fastest first, as many as are best. If two choices are equal by
    the objective, the cheaper one is taken, then the faster one.

    Args:
        rooms: of the places; at least one has room for a task, and each could have one below the cap.
        tasks: of the sweep.
        most_nodes: that its tasks spread over, in all places together.
        objective: weighs time and cost.
        budget_usd: of all tasks.
        deadline_s: until the last one has ended.
        usd_per_hour: a cap on all machines together.

    >>> from trainmaster.spec.objective import Objective
    >>> rooms = [Room("hosts", 2, 60.0, 0.0), Room("aws", 9, 30.0, 0.1)]
    >>> spread(rooms, 6, 6, Objective(time=0, cost=1))
    Spread(nodes={'hosts': 2}, time_s=180.0, cost_usd=0.0)
    >>> spread(rooms, 6, 6, Objective(time=1, cost=0)).nodes
    {'aws': 6}
    >>> spread(rooms, 6, 6, Objective(time=0, cost=1), deadline_s=100).nodes
    {'hosts': 2, 'aws': 4}
    """
    late = {room.place for room in rooms if not room.keeps}

    def judged(each: Spread) -> Spread:
        misses = (each.cost_usd > budget_usd) + (each.time_s > deadline_s)
        is_alone = len(each.nodes) == 1 and each.nodes.keys() <= late
        return replace(each, misses=max(misses, int(is_alone)))

    def badness(each: Spread) -> tuple[float, ...]:
        value = objective.time * each.time_s + objective.cost * each.cost_usd
        return each.misses, value, each.cost_usd, each.time_s

    return min(map(judged, _choices(rooms, tasks, most_nodes, usd_per_hour)), key=badness)


def _choices(rooms: Sequence[Room], tasks: int, most_nodes: int, usd_per_hour: float) -> Iterator[Spread]:
    cheapest = sorted(rooms, key=lambda each: (each.task_usd, each.wait_s + each.task_s))
    fastest = sorted(rooms, key=lambda each: (each.wait_s + each.task_s, each.task_usd))
    for ranked in (cheapest, fastest):
        for count in range(1, len(ranked) + 1):
            filled = _filled(ranked[:count], tasks, most_nodes, usd_per_hour)
            if any(filled.values()):
                yield _played(ranked[:count], filled, tasks)


def _filled(rooms: Sequence[Room], tasks: int, most_nodes: int, usd_per_hour: float) -> dict[str, int]:
    """Tasks at a time in each place: the first ones first."""
    found = dict[str, int]()
    for each in rooms:
        found[each.place] = min(each.tasks, tasks - sum(found.values()), most_nodes // each.nodes)
        if each.usd_per_hour and math.isfinite(usd_per_hour):  # 3 x $0.10 is $0.30
            most = math.floor(max(usd_per_hour, 0.0) / each.usd_per_hour * (1 + 1e-9))
            found[each.place] = min(found[each.place], most)
        most_nodes -= found[each.place] * each.nodes
        usd_per_hour -= found[each.place] * each.usd_per_hour
    return found


def _played(rooms: Sequence[Room], filled: Mapping[str, int], tasks: int) -> Spread:
    """Each task begins where something is free first; what gets none is not asked for."""
    free = [
        (each.wait_s, number, slot) for number, each in enumerate(rooms) for slot in range(filled[each.place])
    ]
    heapq.heapify(free)
    used, end_s, cost_usd = set[tuple[int, int]](), 0.0, 0.0
    for _ in range(tasks):
        at_s, number, slot = heapq.heappop(free)
        at_s += rooms[number].task_s
        end_s, cost_usd = max(end_s, at_s), cost_usd + rooms[number].task_usd
        used.add((number, slot))
        heapq.heappush(free, (at_s, number, slot))
    counts = [sum(each == number for each, _ in used) * room.nodes for number, room in enumerate(rooms)]
    nodes = {room.place: count for room, count in zip(rooms, counts, strict=True) if count}
    return Spread(nodes, end_s, cost_usd)
