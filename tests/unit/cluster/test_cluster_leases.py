"""Machines live as long as their driver does: leases are renewed, whatever else fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from cluster_bench import Bench, Clock, TimedTasks, assert_alive, let, record

from trainmaster.cluster.decision import WaitLimits
from trainmaster.cluster.node_watch import PROBE_S, NodeWatch
from trainmaster.providers.base import Node, NodeState
from trainmaster.spec.errors import ProviderError, UsageError


@pytest.fixture
def bench() -> Bench:
    made = Bench(record())
    made.loop.want()
    return made


def test_a_lease_may_become_shorter_at_any_time_and_is_renewed_three_times_as_often(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 350.0)
    assert len(bench.provisioner.switched["i-0"]) == 2, "a third of 900 s"
    bench.loop.leases.lease_s = 30.0
    let(bench, 60.0)
    assert_alive(bench)
    latest = bench.provisioner.switched["i-0"][2:]
    assert 5 <= len(latest) <= 7
    assert {lease_s for _, lease_s in latest} == {30.0}
    assert bench.provider.kept_s == 30.0
    bench.loop.leases.lease_s = 0.0
    assert bench.loop.leases.lease_s >= 15, "it can still be renewed in time"


def test_a_short_lease_is_renewed_in_time_though_leases_are_longer_again(bench: Bench) -> None:
    """They get shorter as money runs out, and longer when less is rented than was feared."""
    bench.until(lambda: bench.loop.formation)
    bench.loop.leases.lease_s = 90.0
    let(bench, 120.0)
    bench.loop.leases.lease_s = 900.0
    let(bench, 120.0)
    assert_alive(bench)
    ends = [at + lease_s for at, lease_s in bench.provisioner.switched["i-0"]]
    starts = [at for at, _ in bench.provisioner.switched["i-0"]]
    assert all(later < end for end, later in zip(ends, starts[1:], strict=False))
    assert bench.provider.kept_s == 900.0


@pytest.mark.simulation
def test_machines_that_hang_do_not_keep_others_from_being_renewed() -> None:
    """Forty of two hundred do not answer within any time; probes of the others must not wait for theirs."""
    bench = Bench(record(count=200), patience=WaitLimits(1e9, 60.0))
    hanging = bench.provisioner.unresponsive
    bench.loop = bench.make(
        record(count=200),
        lambda wake: TimedTasks(wake, bench.clock, lambda name: 10.0 if name in hanging else 0.2),
    )
    bench.provisioner.lease_s = 60.0
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    names = sorted(bench.provider.live)
    hanging |= set(names[:40])
    let(bench, 300.0)
    for name in hanging:
        del bench.provider.machines[name]
    assert_alive(bench)
    times = [at for at, _ in bench.provisioner.switched[names[-1]]]
    assert max(b - a for a, b in pairwise(times)) < 40, "with time to spare"


def test_those_that_have_waited_longest_are_asked_first() -> None:
    clock = Clock()
    watch = NodeWatch(cast("Any", None), clock)
    watch.only({"a", "b"}, 900.0)
    clock.now += 1
    watch.only({"a", "b", "0"}, 900.0)
    assert not watch.due(clock.now), "they have just been reached"
    clock.now += PROBE_S
    assert watch.due(clock.now) == ["a", "b", "0"]
    assert not watch.due(clock.now - 2)


def test_what_a_probe_hangs_up_at_its_end_is_not_what_keeps_a_machine() -> None:
    """It was under way when the watch ended."""
    node = Node("a", "c", "worker", NodeState.READY, address="10.0.0.1")
    line, ended = MagicMock(), list[int]()
    provisioner = MagicMock()
    provisioner.transport.connect.return_value = line
    watch = NodeWatch(provisioner, Clock())

    def set_switch(*_: object) -> None:
        watch.end("a")
        ended.append(line.close.call_count)

    provisioner.set_switch.side_effect = set_switch
    watch.renew("a", node, 600.0)
    assert (ended, line.close.call_count) == ([0], 1)


HOURS_S = 2 * 3600.0


@pytest.mark.simulation
def test_a_provider_that_is_away_for_hours_ends_no_machine(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    bench.loop.notes()
    bench.provider.is_away = True
    let(bench, HOURS_S, 2.0)
    assert_alive(bench)
    assert bench.loop.formation is not None
    assert bench.loop.formation.number == 0, "nothing was formed anew"
    assert bench.loop.fatal is None
    assert len(bench.loop.record.rented) == 2
    assert (bench.loop.record.leased_until or 0) > bench.clock.now, "a reader of the row knows that they live"
    told = [note for note in bench.loop.notes() if "has not answered since" in note]
    assert HOURS_S / 300 - 2 < len(told) <= HOURS_S / 300 + 1, "once, and each five minutes"
    assert "train: lab has not answered since" in told[0]
    assert "leases are renewed over SSH" in told[0]
    assert "away" in told[0]
    bench.provider.is_away = False
    let(bench, 60.0)
    assert bench.loop.notes() == ["train: lab answers again"]
    assert (bench.provider.live, bench.provider.given_back) == ({"i-0", "i-1"}, [])


def test_a_provider_that_fails_for_a_moment_is_not_worth_a_word(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.loop.notes()
    for _ in range(5):
        bench.provider.is_away = not bench.provider.is_away
        let(bench, 6.0)
    bench.provider.is_away = False
    let(bench, 30.0)
    assert not bench.loop.notes()


def test_what_is_rented_while_nothing_can_be_listed_makes_no_other_machine_forgotten(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 300.0)
    bench.provider.end("i-1")
    listed = bench.provider.nodes

    def fail(_: str) -> list[Node]:
        raise ProviderError("too many requests")

    bench.until(lambda: "i-2" in bench.provider.live)
    bench.provider.nodes = fail  # type: ignore[method-assign]
    let(bench, 600.0)
    assert {machine.id for machine in bench.loop.record.rented} == {"i-0", "i-2"}
    bench.provider.nodes = listed  # type: ignore[method-assign]
    let(bench, 60.0)
    assert_alive(bench)
    assert bench.provider.live == {"i-0", "i-2"}


EXPIRED = UsageError("AWS refuses the credentials (ExpiredToken)", "Run `aws sso login`.")


def test_credentials_that_expire_end_nothing_and_lost_machines_are_replaced_when_they_are_back(
    bench: Bench,
) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.loop.notes()
    bench.provider.refuses = EXPIRED
    bench.provisioner.unresponsive = {"i-1"}
    let(bench, 3600.0)
    bench.provider.end("i-1")
    assert bench.loop.fatal is None
    assert_alive(bench)
    told = [note for note in bench.loop.notes() if "cannot be rented now" in note]
    assert 58 <= len(told) <= 61, "each minute"
    assert "train goes on with 1 of its machines: node-2 cannot be rented now" in told[-1]
    assert "aws sso login" in told[-1]
    bench.provider.refuses = None
    bench.until(lambda: len(bench.provider.live) == 2, 90)
    bench.until(lambda: "i-2" in {node.key for node in bench.provisioner.rays[0].nodes}, 30)


def test_a_run_whose_only_machine_is_lost_waits_for_credentials() -> None:
    bench = Bench(record(count=1))
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    bench.provider.refuses = EXPIRED
    bench.provisioner.unresponsive = {"i-0"}
    let(bench, 600.0)
    assert bench.loop.fatal is None
    bench.provider.end("i-0")
    bench.provider.refuses = None
    bench.until(lambda: bench.loop.formation and bench.loop.formation.number == 1, 120)
    before = Bench(record(count=1))  # where nothing was ever formed there is nothing to wait with
    before.provider.refuses = EXPIRED
    before.loop.want()
    before.until(lambda: before.loop.fatal, 10)


def test_who_comes_after_a_driver_renews_what_is_known_while_the_provider_is_away() -> None:
    first = Bench(record())
    first.loop.want()
    first.until(lambda: first.loop.formation)
    again = Bench(first.loop.record, head="i-0")
    again.provider.machines = first.provider.machines
    again.provider.is_away = True
    again.provisioner.known = lambda machines: {name: first.provider.machines[name] for name in machines}
    again.loop.want()
    again.until(lambda: again.loop.formation, 30)
    let(again, 3600.0, 1.0)
    assert_alive(again)


def test_a_machine_that_did_not_answer_who_comes_after_at_first_was_silent_until_then() -> None:
    """It was cut off when another driver began: what failed meanwhile did so because of that."""
    first = Bench(record())
    first.loop.want()
    first.until(lambda: first.loop.formation)
    assert not first.loop.troubles(0.0)
    again = Bench(first.loop.record, head="i-0")
    again.provider.machines = first.provider.machines
    again.provisioner.late = {"i-1"}
    again.loop.want()
    again.until(lambda: again.loop.formation)
    let(again, 10.0)
    now = again.clock.now
    assert again.loop.troubles(now - 30.0) == {"i-1": "did not answer for a while"}
    assert not again.loop.troubles(now), "it is over"


def test_a_cluster_is_kept_warm_while_the_provider_is_away(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 10.0)
    bench.provider.is_away = True
    let(bench, 60.0)
    bench.provisioner.switched.clear()
    assert bench.loop.keep(1800.0, bench.clock.now)
    assert {name: times[-1][1] for name, times in bench.provisioner.switched.items()} == {
        "i-0": 1800.0,
        "i-1": 1800.0,
    }
    assert any("could not be told" in note for note in bench.loop.notes())


def test_nobody_is_given_up_while_we_are_cut_off_from_everybody(bench: Bench) -> None:
    """A laptop without a network: neither the provider nor any machine answers."""
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    bench.loop.notes()
    bench.provider.is_away = True
    bench.provisioner.unresponsive = {"i-0", "i-1"}
    let(bench, 300.0)
    assert any("cut off" in note for note in bench.loop.notes())
    bench.provider.is_away = False
    let(bench, 8.0)
    bench.provisioner.unresponsive = set()
    let(bench, 60.0)
    assert_alive(bench)
    assert (bench.provider.live, bench.provider.given_back) == ({"i-0", "i-1"}, [])


def sleep(bench: Bench, seconds: float) -> None:
    """The driver's machine sleeps; machines end themselves when their leases are over."""
    bench.clock.now += seconds
    for name in bench.provider.live:
        at, lease_s = bench.provisioner.switched[name][-1]
        if bench.clock.now > at + lease_s:
            bench.provider.machines[name] = replace(
                bench.provider.machines[name], state=NodeState.GONE, ended_at=at + lease_s, reason="shut down"
            )
            bench.provisioner.unresponsive |= {name}


def test_a_short_sleep_ends_nothing(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    bench.loop.notes()
    bench.provisioner.unresponsive = {"i-0"}  # one was not reached when the lid was closed
    let(bench, 4.0)
    sleep(bench, 400.0)
    bench.provisioner.unresponsive = {"i-0", "i-1"}  # and their connections are dead at first
    let(bench, 5.0)
    bench.provisioner.unresponsive = set()
    let(bench, 60.0)
    assert_alive(bench)
    assert bench.provider.live == {"i-0", "i-1"}
    assert [note for note in bench.loop.notes() if "slept from" in note and "themselves" not in note]


@pytest.mark.parametrize("forgets", [False, True])
def test_sleep_is_not_billed_beyond_the_lease_and_is_told(bench: Bench, forgets: bool) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 600.0)
    awake_usd = bench.loop.record.spent_usd(bench.clock.now)
    bench.loop.notes()
    bench.provider.is_away = True  # the network is up later than we are
    sleep(bench, 36_000.0)
    if forgets:
        bench.provider.machines.clear()
    lease_usd = 2 * 0.36 * 1200 / 3600
    for _ in range(20):
        bench.turn()
        bench.clock.now += 1
        assert bench.loop.record.spent_usd(bench.clock.now) <= awake_usd + lease_usd
        assert bench.loop.record.most_usd(bench.clock.now, bench.clock.now) <= awake_usd + lease_usd
    bench.provider.is_away = False
    let(bench, 60.0)
    assert all(m.ended_at is not None for m in bench.loop.record.machines if m.is_over)
    assert bench.loop.record.spent_usd(bench.clock.now) <= awake_usd + lease_usd + 2 * 0.36 * 90 / 3600
    told = bench.loop.notes()
    assert any("this machine slept from" in note and "ended themselves" in note for note in told)
    lost = bench.loop.losses()
    assert any("i-0" in loss and "its lease was over at" in loss and "slept" in loss for loss in lost)
    assert len(bench.provider.live) == 2, "the run goes on with new ones"


def test_what_a_provider_said_before_we_slept_is_not_news() -> None:
    bench = Bench(record())
    bench.loop = bench.make(
        record(), lambda wake: TimedTasks(wake, bench.clock, lambda name: 3.0 if name == "look" else 0.2)
    )
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    while not bench.loop._tasks.is_running("look"):
        let(bench, 0.5)
    until = bench.loop.record.leased_until
    sleep(bench, 36_000.0)
    bench.turn()
    assert bench.loop.record.leased_until == until, "they may have ended since"
    bench.clock.now += 0.5
    bench.turn()
    assert bench.loop._tasks.is_running("look"), "asked anew"
    let(bench, 10.0)
    assert not {machine.id for machine in bench.loop.record.rented} & {"i-0", "i-1"}


def test_leases_that_ran_out_name_the_cause(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    let(bench, 30.0)
    bench.provisioner.unresponsive = {"i-0", "i-1"}
    bench.provider.is_away = True
    let(bench, 1000.0)
    sleep(bench, 0.5)
    assert not bench.provider.live
    bench.loop.notes()
    bench.provider.is_away = False
    let(bench, 20.0)
    (told,) = [loss for loss in bench.loop.losses() if "(i-0) is lost" in loss]
    assert "its lease was over at" in told
    assert "could not be reached by SSH since" in told


@pytest.mark.parametrize("set_s", [-900, 900])
def test_others_read_times_as_their_clocks_have_them(bench: Bench, set_s: int) -> None:
    """The wall clock was set since the driver began."""
    behind = Bench(record())
    behind.loop._wall = lambda: behind.clock.now + set_s
    behind.loop.want()
    behind.until(lambda: behind.loop.formation)
    let(behind, 3600.0, 2.0)
    assert_alive(behind)
    written, known = behind.written[-1], behind.loop.record
    assert known.leased_until is not None
    assert written == known.moved(set_s)
    assert written.spent_usd(behind.clock.now + set_s) == pytest.approx(known.spent_usd(behind.clock.now))
    assert behind.loop.keep(600.0, behind.clock.now)
    assert behind.written[-1].kept_until == pytest.approx(behind.clock.now + set_s + 600)


def test_machines_that_are_listed_no_more_cost_nothing_beyond_their_lease(bench: Bench) -> None:
    """Their provider has forgotten them over night; it may also show them late, so they are waited for."""
    bench.until(lambda: bench.loop.formation)
    let(bench, 60.0)
    lease_usd = 2 * 0.36 * (1300 + 60) / 3600
    next_day = Bench(bench.loop.record)
    next_day.clock.now = bench.clock.now + 50_000.0
    next_day.loop.want()
    for _ in range(100):
        next_day.turn()
        next_day.clock.now += 1
        assert next_day.loop.record.most_usd(next_day.clock.now, next_day.clock.now) <= lease_usd
        assert not next_day.provider.live
    let(next_day, 60.0)
    assert next_day.provider.live, "others take their seats"


def test_a_machine_that_was_asked_for_before_this_one_slept_is_not_billed_for_the_sleep(bench: Bench) -> None:
    """It is known since it has a name, also if that was just before; nobody sees it afterwards."""
    bench.until(lambda: bench.loop.record.rented)
    asked_for = len(bench.loop.record.machines)
    lease_usd = 2 * 0.36 * (1300 + 60) / 3600
    bench.provider.machines.clear()
    bench.clock.now += 50_000.0
    for _ in range(100):
        bench.turn()
        bench.clock.now += 1
    gone = replace(bench.loop.record, machines=bench.loop.record.machines[:asked_for])
    assert all(machine.id for machine in gone.machines)
    assert gone.most_usd(bench.clock.now, bench.clock.now) <= lease_usd


def test_machines_are_ended_over_ssh_while_they_cannot_be_given_back(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provider.is_away = True
    bench.loop.end()
    let(bench, 30.0)
    assert {"end i-0", "end i-1"} <= set(bench.provisioner.done)
    assert not bench.loop.is_over, "nobody has said that they have ended"
    bench.provider.is_away = False
    bench.until(lambda: bench.loop.is_over)
