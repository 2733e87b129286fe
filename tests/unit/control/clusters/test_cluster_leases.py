"""Machines live as long as their driver does: leases are renewed, whatever else fails."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
from cluster_bench import Bench, Clock, TimedTasks, assert_alive, let, record

from trainmaster.control.clusters.decision import Patience
from trainmaster.control.clusters.watching import Watch


@pytest.fixture
def bench() -> Bench:
    made = Bench(record())
    made.loop.want()
    return made


def test_a_lease_may_become_shorter_at_any_time_and_is_renewed_three_times_as_often(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 350.0)
    assert len(bench.workplace.switched["i-0"]) == 2, "a third of 900 s"
    bench.loop.lease_s = 30.0
    let(bench, 60.0)
    assert_alive(bench)
    latest = bench.workplace.switched["i-0"][2:]
    assert 5 <= len(latest) <= 7
    assert {lease_s for _, lease_s in latest} == {30.0}
    assert bench.provider.kept_s == 30.0
    bench.loop.lease_s = 0.0
    assert bench.loop.lease_s >= 15, "it can still be renewed in time"


def test_machines_that_hang_do_not_keep_others_from_being_renewed() -> None:
    """Forty of two hundred do not answer within any time; probes of the others must not wait for theirs."""
    bench = Bench(record(count=200), patience=Patience(1e9, 60.0))
    hanging = bench.workplace.mute
    bench.loop = bench.make(
        record(count=200),
        lambda wake: TimedTasks(wake, bench.clock, lambda name: 10.0 if name in hanging else 0.2),
    )
    bench.workplace.lease_s = 60.0
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    names = sorted(bench.provider.live)
    hanging |= set(names[:40])
    let(bench, 600.0)
    for name in hanging:
        del bench.provider.machines[name]
    assert_alive(bench)
    times = [at for at, _ in bench.workplace.switched[names[-1]]]
    assert max(b - a for a, b in pairwise(times)) < 40, "with time to spare"


def test_those_that_have_waited_longest_are_asked_first() -> None:
    clock = Clock()
    watch = Watch(cast("Any", None), clock)
    watch.only({"a", "b"}, 900.0)
    clock.now += 1
    watch.only({"a", "b", "0"}, 900.0)
    assert watch.due(clock.now) == ["a", "b", "0"]
    assert not watch.due(clock.now - 2)
