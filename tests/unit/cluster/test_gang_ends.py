"""A gang over several machines with a member that failed: whether a machine was lost before that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executor_bench import ONE, Bench, Clock, FakeCluster, FakeLoop, gang, made, phases, running

from trainmaster.cluster import node_links
from trainmaster.cluster.cluster_executor import _ANSWERS_AGAIN_S
from trainmaster.cluster.gang_ends import REACTION_S
from trainmaster.cluster.node_links import NodeFailureDetector
from trainmaster.control.decide.outcome import classify
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.states import EndReason, Overuse


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return made(Clock(), FakeLoop(), {0: FakeCluster(), 1: FakeCluster()}, tmp_path)


def running_on_two(bench: Bench) -> None:
    bench.rent("i-1", "10.0.0.1")
    bench.rent("i-2", "10.0.0.2")
    bench.loop.form(0)
    bench.cluster_executor.submit([gang()])
    bench.until(lambda: bench.asked("submit", ONE))
    bench.clusters[0].runs_on_two(ONE)
    assert phases(bench.cluster_executor.changes(0.0))[ONE] is Phase.RUNNING


def test_the_end_of_a_gang_over_machines_is_told_when_each_has_answered(bench: Bench) -> None:
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE, Phase.RUNNING)
    bench.cluster_executor.changes(0.0)
    assert bench.detector.asked == {(ONE, "i-1"), (ONE, "i-2")}, "while the others are being stopped"
    bench.clusters[0].fails_on_two(ONE)
    bench.detector.answered = {"i-1": True}
    assert phases(bench.cluster_executor.changes(0.0)) == {ONE: Phase.RUNNING}
    assert bench.cluster_executor.changes(0.0) == []
    bench.detector.answered["i-2"] = True
    (ended,) = bench.cluster_executor.changes(0.0)
    assert (ended.phase, ended.lost_nodes) == (Phase.EXITED, ())
    assert bench.cluster_executor.changes(0.0) == [], "it is told once"


def test_an_error_of_the_users_is_told_once_both_machines_have_answered_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later than three seconds after its members have ended, by the clock of the test."""
    running_on_two(bench)
    knocks: list[float] = []

    def greets(*_: object) -> bool:
        knocks.append(bench.clock.now)
        return True

    def sleep(seconds: float) -> None:
        bench.clock.now += seconds  # of each of two threads

    monkeypatch.setattr(node_links, "greets", greets)
    monkeypatch.setattr(node_links, "time", SimpleNamespace(sleep=sleep, monotonic=bench.clock))
    detector = NodeFailureDetector(again_s=_ANSWERS_AGAIN_S)
    monkeypatch.setattr(bench.cluster_executor._ends, "_detector", detector)
    for node in bench.loop.accesses.values():
        node.target = None
    bench.clusters[0].fails_on_two(ONE)
    began = bench.clock.now
    told: list[GangStatus] = []
    while not any(each.phase is Phase.EXITED for each in told):
        told += bench.cluster_executor.changes(0.01)
    assert classify(told[-1], None).reason is EndReason.USER_ERROR
    assert len(knocks) == 4
    assert max(knocks) - began <= 3.0


def test_a_machine_that_does_not_answer_was_lost_before_the_member_failed(bench: Bench) -> None:
    lost: list[tuple[str, Sequence[str]]] = []
    bench.cluster_executor.on_lost = lambda attempt, members: lost.append((attempt, members))
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE)
    bench.detector.answered = {"i-2": False}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert ended.lost_nodes == ("machine i-2 of worker-1 did not answer any more",)
    assert classify(ended, None).reason is EndReason.NODE_LOST
    assert lost == [(ONE, ["worker-1"])], "what was left there is not waited for"


def test_what_failed_before_the_run_was_taken_back_was_not_watched(bench: Bench) -> None:
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE)
    bench.detector.answered = {"i-1": True, "i-2": True}
    bench.cluster_executor._ends._undriven_until = 1060.0  # they failed at 1009
    (ended,) = bench.cluster_executor.changes(0.0)
    assert classify(ended, None).reason is EndReason.NODE_LOST
    assert "was not watched then" in ended.lost_nodes[0]


def test_a_loss_that_is_noticed_after_the_verdict_changes_it(bench: Bench) -> None:
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE)
    bench.detector.answered = {"i-1": True, "i-2": True}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert classify(ended, None).reason is EndReason.USER_ERROR
    bench.loop.gone = frozenset({"i-2"})
    (ended,) = bench.cluster_executor.changes(0.0)
    assert ended.lost_nodes == ("machine i-2 of worker-1 was lost",)
    bench.cluster_executor.forget([ONE])
    bench.loop.gone = frozenset()
    assert bench.cluster_executor.changes(0.0) == [], "its end is recorded"


@pytest.mark.parametrize("words", ["did not answer for a while", "is taken back by its provider"])
def test_what_befell_a_machine_shortly_before_counts_as_its_loss(bench: Bench, words: str) -> None:
    running_on_two(bench)
    bench.loop.befell = {"i-2": words}
    bench.clusters[0].fails_on_two(ONE)
    (ended,) = bench.cluster_executor.changes(0.0)
    assert ended.lost_nodes == (f"machine i-2 of worker-1 {words}",)


def test_the_head_that_is_lost_with_a_member_is_named(bench: Bench) -> None:
    """Its members had no time to say where they were; one of another machine had failed before."""
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE, Phase.RUNNING)
    bench.detector.answered = {"i-1": True, "i-2": True}
    bench.cluster_executor.changes(0.0)
    bench.loop.formation = None
    (ended,) = bench.cluster_executor.changes(0.0)
    assert ended.lost_nodes == ("machine i-2 of worker-1 was lost",)


@pytest.mark.parametrize("how", [{"lost": True}, {"exit_code": 143}])
@pytest.mark.parametrize(
    ("later_s", "reason"), [(5, EndReason.NODE_LOST), (REACTION_S + 10, EndReason.USER_ERROR)]
)
def test_an_error_long_after_a_loss_that_the_gang_outlived_is_the_users(
    bench: Bench, how: dict[str, Any], later_s: float, reason: EndReason
) -> None:
    """As of Spark's driver, which goes on without a worker."""
    running_on_two(bench)
    bench.clusters[0].goes_on_without(ONE, **how)
    bench.loop.gone = frozenset({"i-2"})
    assert phases(bench.cluster_executor.changes(0.0)) == {ONE: Phase.RUNNING}
    bench.clock.now += later_s
    bench.clusters[0].fails_later(ONE)
    bench.detector.answered = {"i-1": True}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert classify(ended, None).reason is reason
    assert bench.cluster_executor.changes(0.0) == [], "it is told once"


def test_another_machine_that_is_lost_much_later_is_asked_anew(bench: Bench) -> None:
    running_on_two(bench)
    bench.clusters[0].goes_on_without(ONE, exit_code=143)
    bench.detector.answered = {"i-1": True, "i-2": True}
    bench.cluster_executor.changes(0.0)
    bench.clock.now += REACTION_S + 10
    bench.clusters[0].fails_later(ONE)
    bench.detector.answered = {"i-1": False, "i-2": True}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert ended.lost_nodes == ("machine i-1 of worker-0 did not answer any more",)
    assert bench.detector.forgotten == [ONE], "what they answered then says nothing of now"


def test_a_gang_that_is_asked_to_end_is_not_held_up(bench: Bench) -> None:
    running_on_two(bench)
    bench.cluster_executor.stop(ONE, 1.0)
    bench.clusters[0].fails_on_two(ONE)
    (ended,) = bench.cluster_executor.changes(0.0)
    assert (ended.phase, ended.lost_nodes) == (Phase.EXITED, ())


def test_a_gang_on_one_machine_loses_no_time(bench: Bench) -> None:
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    known = bench.clusters[0].gangs[ONE]
    failed = tuple(replace(m, ended_at=1009.0, exit_code=1) for m in known.members)
    bench.clusters[0].gangs[ONE] = replace(known, phase=Phase.EXITED, members=failed, ended_at=1009.0)
    assert phases(bench.cluster_executor.changes(0.0)) == {ONE: Phase.EXITED}
    assert not bench.detector.asked


def test_a_successor_asks_for_itself(bench: Bench) -> None:
    """The driver was killed while it waited for an answer."""
    running_on_two(bench)
    bench.clusters[0].fails_on_two(ONE)
    bench.cluster_executor.changes(0.0)
    after = bench.succeeded()
    assert phases(after.cluster_executor.observe([ONE])) == {ONE: Phase.RUNNING}
    after.detector.answered = {"i-1": True, "i-2": False}
    (ended,) = after.cluster_executor.changes(0.0)
    assert ended.lost_nodes == ("machine i-2 of worker-1 did not answer any more",)


@pytest.mark.parametrize(
    ("overuse", "reason"), [(Overuse.DISK, EndReason.USER_ERROR), (Overuse.MEMORY, EndReason.OOM)]
)
@pytest.mark.parametrize("how", [{"lost": True}, {"signal": 9}])
def test_a_machine_that_was_ended_for_what_its_gang_used_is_the_gangs_fault(
    bench: Bench, overuse: Overuse, reason: EndReason, how: dict[str, Any]
) -> None:
    """Another one would end alike: with the words of its place it counts as a failed attempt."""
    running_on_two(bench)
    bench.loop.used_up = {"i-2": SimpleNamespace(overused=overuse, reason="Evicted: it used 3G")}
    bench.clusters[0].fails_on_two(ONE, **how)
    (ended,) = bench.cluster_executor.changes(0.0)
    found = classify(ended, None)
    assert (found.reason, found.message) == (
        reason,
        "machine i-2 of worker-1 was ended: Evicted: it used 3G",
    )


def test_a_machine_that_was_ended_for_that_later_or_of_others_tells_nothing(bench: Bench) -> None:
    running_on_two(bench)
    told = SimpleNamespace(overused=Overuse.DISK, reason="Evicted: it used 3G")
    bench.loop.used_up = {"i-1": told, "i-9": told}
    bench.clusters[0].fails_on_two(ONE, exit_code=3)
    bench.cluster_executor.changes(0.0)
    bench.detector.answered = {"i-1": True, "i-2": True}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert (classify(ended, None).message, ended.overused) == ("worker-0: exit code 1", None)


def test_the_only_machine_of_a_gang_that_was_ended_for_that(bench: Bench) -> None:
    bench.rent("i-2", "10.0.0.2")
    running(bench)
    bench.loop.used_up = {"i-2": SimpleNamespace(overused=Overuse.DISK, reason="Evicted: it used 3G")}
    bench.loop.formation = None
    bench.loop.accesses = {}
    (ended,) = bench.cluster_executor.changes(0.0)
    assert (ended.phase, classify(ended, None).reason) == (Phase.EXITED, EndReason.USER_ERROR)
