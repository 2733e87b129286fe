"""Machines of services: those that are taken back, and as many as replicas need."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from test_cluster_executor import ONE, TWO, Bench, bench, gang, running

__all__ = ["bench"]  # a fixture


def test_a_replica_of_a_service_is_told_to_end_only_when_it_is_late(bench: Bench) -> None:
    """Until then proxies hear that it gets no more requests."""
    bench.cluster_executor.look_after({"train": 9.0})
    running(bench, ONE, "10.0.0.2")
    running(bench, TWO, "10.0.0.1")
    stops_in_s = bench.cluster_executor.stops_in_s
    assert (stops_in_s(ONE), stops_in_s(TWO)) == (None, None)
    bench.loop.leaving = {"10.0.0.2": bench.clock.now + 120}
    assert (stops_in_s(ONE), stops_in_s(TWO)) == (106.0, None), "5 s before its machine goes it has ended"
    bench.cluster_executor.changes(0.0)
    bench.clock.now += 105
    bench.cluster_executor.changes(0.0)
    assert not bench.asked("stop", ONE, 9.0)
    bench = bench.succeeded()
    bench.cluster_executor.look_after({"train": 9.0})
    assert bench.cluster_executor.stops_in_s(ONE) == 1.0
    bench.clock.now += 2
    bench.cluster_executor.changes(0.0)
    assert bench.asked("stop", ONE, 8.0)
    assert not bench.asked("stop", TWO, 8.0)


def test_replicas_know_of_a_head_that_is_taken_back_and_make_room_on_a_machine_that_waits(
    bench: Bench,
) -> None:
    bench.cluster_executor.look_after({"train": 9.0})
    running(bench, ONE, "10.0.0.2")
    bench.loop.leaving = {"10.0.0.1": bench.clock.now + 120}
    assert bench.cluster_executor.stops_in_s(ONE) == 106.0
    bench.loop.leaving = {"10.0.0.2": math.inf}
    assert bench.cluster_executor.stops_in_s(ONE) == 0.0, "it goes as soon as nothing works there"
    bench.cluster_executor.changes(0.0)
    assert not any(what[0] == "stop" for what in bench.clusters[0].asked)


def test_machines_on_which_no_replica_works_or_is_about_to_are_spare(bench: Bench) -> None:
    bench.cluster_executor.look_after({"train": 9.0})
    running(bench, ONE, "10.0.0.1")
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == {"10.0.0.2"}
    bench.cluster_executor.submit([gang(TWO)])
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == frozenset(), "where it will be is not known yet"
    bench.clusters[0].runs(TWO, "10.0.0.2")
    bench.clusters[0].exits(ONE)
    for _ in range(2):
        bench.cluster_executor.changes(0.0)
    bench.cluster_executor.forget([ONE])
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == frozenset(), "the head stays"
    bench.clusters[0].exits(TWO)
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == frozenset(), "what it left is saved"
    bench.cluster_executor.forget([TWO])
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == {"10.0.0.2"}
    bench.loop.scaling.needed = {}
    bench.cluster_executor.changes(0.0)
    assert bench.loop.told_spare == {"10.0.0.1", "10.0.0.2"}, "no machine is needed"


def test_a_replica_waits_for_a_machine_of_its_own_while_another_one_answers(bench: Bench) -> None:
    bench.cluster_executor.look_after({"train": 9.0})
    bench.loop.awaits = True
    running(bench, ONE, "10.0.0.1")
    bench.cluster_executor.submit([gang(TWO)])
    bench.cluster_executor.changes(0.0)
    assert not bench.asked("submit", TWO)
    bench.clock.now += 299
    bench.cluster_executor.changes(0.0)
    assert not bench.asked("submit", TWO)
    bench.clock.now += 2
    bench.cluster_executor.changes(0.0)
    assert bench.asked("submit", TWO), "there may be none to be had"


def test_the_only_replica_does_not_wait_for_a_machine_of_its_own(bench: Bench) -> None:
    bench.cluster_executor.look_after({"train": 9.0})
    bench.loop.awaits = True
    running(bench, ONE, "10.0.0.1")
    bench.clusters[0].exits(ONE)
    bench.cluster_executor.changes(0.0)
    bench.cluster_executor.submit([gang(TWO)])
    bench.cluster_executor.changes(0.0)
    assert bench.asked("submit", TWO)


@pytest.mark.parametrize(("share", "nodes"), [(0.0, 0), (0.25, 1), (0.5, 2), (0.6, 3), (1.0, 4), (1.25, 5)])
def test_a_part_of_the_replicas_needs_a_part_of_the_machines(bench: Bench, share: float, nodes: int) -> None:
    rental = SimpleNamespace(is_rented=True)
    role = SimpleNamespace(role="worker", count=4, rentals=[rental])
    bench.loop.record.plan = SimpleNamespace(experiments=("train",), roles=[role])
    bench.cluster_executor.need("train", share)
    assert bench.loop.scaling.needed == {"worker": nodes}
    bench.cluster_executor.own_cluster = bench.loop.record.id
    bench.cluster_executor.need("train", share)
    assert bench.loop.scaling.needed == {"worker": max(nodes, 1)}, "the driver works on one"
    rental.is_rented, bench.loop.scaling.needed = False, None
    bench.cluster_executor.need("train", share)
    assert bench.loop.scaling.needed is None, "hosts of one's own cost nothing"
