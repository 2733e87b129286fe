"""How many machines of each place a sweep takes, by its quotes: pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainmaster.advisor.quote.spreading import PlaceCapacity, spread
from trainmaster.spec.objective import Objective

CHEAPEST, FASTEST = Objective(time=0.0, cost=1.0), Objective(time=1.0, cost=0.0)
HOSTS = PlaceCapacity("hosts", 2, 60.0, 0.0)
QUEUE = PlaceCapacity("slurm", 4, 40.0, 0.0, wait_s=600.0)
AWS = PlaceCapacity("aws", 8, 30.0, 0.1)


@pytest.mark.parametrize(
    ("capacities", "objective", "limits", "nodes"),
    [
        ([HOSTS, QUEUE, AWS], CHEAPEST, {}, {"hosts": 2}),  # the queue is as cheap, and begins too late
        ([HOSTS, QUEUE, AWS], FASTEST, {}, {"aws": 6}),
        ([HOSTS, AWS], CHEAPEST, {"deadline_s": 100.0}, {"hosts": 2, "aws": 4}),
        ([HOSTS, AWS], FASTEST, {"budget_usd": 0.45}, {"hosts": 2, "aws": 4}),
        ([HOSTS, AWS], FASTEST, {"budget_usd": 0.05}, {"hosts": 2}),
        ([HOSTS, replace(AWS, end_usd=0.1)], FASTEST, {"budget_usd": 0.45}, {"hosts": 2}),  # kept for its end
        ([HOSTS, AWS], CHEAPEST, {"deadline_s": 1.0}, {"hosts": 2}),  # nothing keeps it
        ([AWS, PlaceCapacity("lab", 8, 90.0, 0.05)], Objective(time=0.001, cost=1.0), {}, {"lab": 6}),
        ([AWS, PlaceCapacity("lab", 8, 90.0, 0.05)], Objective(time=0.1, cost=1.0), {}, {"aws": 6}),
        ([PlaceCapacity("slurm", 2, 50.0, 0.0, nodes=2), AWS], FASTEST, {}, {"aws": 6}),
        ([PlaceCapacity("slurm", 3, 50.0, 0.0, nodes=2), AWS], CHEAPEST, {}, {"slurm": 6}),
        ([replace(AWS, usd_per_hour=1.0)], FASTEST, {"usd_per_hour": 4.0}, {"aws": 4}),
        (
            [replace(AWS, usd_per_hour=0.1), PlaceCapacity("lab", 2, 90.0, 0.05, usd_per_hour=0.1)],
            CHEAPEST,
            {"usd_per_hour": 0.3, "deadline_s": 200.0},
            {"lab": 2, "aws": 1},
        ),
        (
            [PlaceCapacity("slow", 1, 1000.0, 0.0), PlaceCapacity("aws", 2, 30.0, 0.1)],
            FASTEST,
            {},
            {"aws": 2},
        ),
    ],
)
def test_the_best_by_an_objective_within_its_limits(
    capacities: list[PlaceCapacity], objective: Objective, limits: dict[str, float], nodes: dict[str, int]
) -> None:
    """Of six tasks over at most six machines."""
    assert spread(capacities, 6, 6, objective, **limits).nodes == nodes
    assert spread(capacities[::-1], 6, 6, objective, **limits).nodes == nodes, (
        "in whatever order they are named"
    )


def test_a_place_that_alone_does_not_keep_a_limit_helps_another_one() -> None:
    """Its quote is of all tasks, and surer than their usual time."""
    hosts = replace(HOSTS, keeps=False)
    found = spread([hosts, AWS], 6, 6, CHEAPEST, deadline_s=200.0)
    assert (found.nodes, found.misses) == ({"hosts": 2, "aws": 4}, 0)
    assert spread([hosts], 6, 6, CHEAPEST, deadline_s=200.0).misses == 1


def test_what_gets_no_task_is_not_asked_for() -> None:
    """The first place has done all before the queue gives anything."""
    found = spread([PlaceCapacity("ray", 2, 10.0, 0.0), QUEUE], 6, 6, FASTEST)
    assert (found.nodes, found.time_s, found.cost_usd) == ({"ray": 2}, 30.0, 0.0)
