"""One cluster's loop, a turn at a time."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from cluster_bench import NOW, WORKER, Bench, assert_alive, let, record

from trainmaster.cluster.actuator import Threads
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.observed import ObservedCluster
from trainmaster.cluster.provider_looks import look_pause_s
from trainmaster.cluster.record import ClusterRecord, ClusterState
from trainmaster.cluster.renting.plan import Rental, RolePlan
from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState, ProviderGoneError
from trainmaster.spec.errors import ExecutorError, LeaseLostError, ProviderError, UsageError
from trainmaster.testing.waits import until


@pytest.fixture
def bench() -> Bench:
    made = Bench(record())
    made.loop.want()
    return made


def test_from_nothing_to_a_cluster_and_back(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    assert [node.key for node in bench.provisioner.rays[0].nodes] == ["i-0", "i-1"]
    assert bench.written[0].machines[0].token, "written before it was asked for"
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)
    assert (bench.provider.live, bench.provisioner.forgotten) == (set(), 1)
    assert bench.written[-1].state is ClusterState.ENDED


def test_a_lost_head_has_the_others_form_anew(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provider.end("i-0")
    second = bench.until(lambda: bench.loop.formation and bench.loop.formation.number == 1)
    assert second
    first = bench.provisioner.rays[0]
    assert first.stopped == {"i-0"}, "what is no more is not asked"
    assert {node.key for node in bench.provisioner.rays[1].nodes} == {"i-1", "i-2"}
    assert bench.loop.record.formed == 1


@pytest.mark.parametrize("error", [UsageError("not allowed"), ProviderError("away")])
def test_the_end_does_not_wait_until_what_was_refused_may_be_asked_for_again(
    bench: Bench, error: Exception
) -> None:
    bench.provider.refusals = [error]
    bench.until(lambda: not bench.provider.refusals)
    bench.turn()
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over, most_s=4)
    assert bench.provider.live == set()


def test_a_head_that_goes_while_its_cluster_is_formed_is_noticed(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.loop.record = bench.loop.record.changed(
        replace(m, is_over=True) for m in bench.loop.record.machines if m.id == "i-0"
    )
    bench.until(lambda: bench.loop.formation and bench.loop.formation.number == 1)


def test_a_cluster_that_is_mute_is_made_anew(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.loop.broken(0)
    bench.until(lambda: bench.loop.formation and bench.loop.formation.number == 1)
    assert bench.provider.live == {"i-0", "i-1"}, "with the same machines"


def test_a_node_that_ray_never_saw_is_asked_to_join_again(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    ray = bench.provisioner.rays[0]
    ray.nodes = [node for node in ray.nodes if node.key != "i-1"]  # its raylet died at once
    bench.until(lambda: any(node.key == "i-1" for node in ray.nodes), 60)
    assert ray.removed == [("i-1", False)]


def test_a_node_that_never_joins_is_replaced(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provisioner.not_joining = {"i-2"}
    bench.provider.end("i-1")
    bench.until(lambda: "i-3" in {node.key for node in bench.provisioner.rays[0].nodes})
    assert bench.provider.live == {"i-0", "i-3"}
    assert any("no port is free" in note for note in bench.loop.notes())


def test_nodes_that_do_not_become_one_are_tried_for_a_while(bench: Bench) -> None:
    bench.provisioner.form_errors = [ExecutorError("i-1 is cut off") for _ in range(8)]
    bench.until(lambda: bench.loop.formation)
    assert bench.loop.fatal is None
    assert sum("i-1 is cut off" in note for note in bench.loop.notes()) == 1, "said once"


def test_nodes_that_never_become_one_end_the_run(bench: Bench) -> None:
    bench.provisioner.form_errors = [ExecutorError("no") for _ in range(1000)]
    bench.until(lambda: bench.loop.fatal, 200)


def test_one_that_answers_nobody_is_replaced(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provisioner.unresponsive = {"i-1"}
    bench.until(lambda: "i-1" not in bench.provider.live)
    bench.until(lambda: "i-2" in {node.key for node in bench.provisioner.rays[0].nodes})
    assert ("i-1", True) in bench.provisioner.rays[0].removed, "nobody waits for its answer"


def test_what_an_earlier_process_left_is_sought_and_found() -> None:
    first = Bench(record())
    first.loop.want()
    first.until(lambda: first.loop.formation)
    again = Bench(first.loop.record, head="i-0")
    again.provider.machines = first.provider.machines
    assert again.loop.is_sought
    again.until(lambda: again.loop.formation)
    assert not again.loop.is_sought
    lost = Bench(first.loop.record, head="i-0")
    lost.provider.machines = dict(first.provider.machines)
    lost.provider.end("i-0")
    lost.until(lambda: not lost.loop.is_sought)
    assert lost.loop.formation is None, "known before the next one is there"


def test_no_capacity_is_said_and_waited_for(bench: Bench) -> None:
    bench.provider.refusals = [NoCapacityError("none there", zones=("us-a",))]
    bench.until(lambda: bench.loop.formation)
    assert bench.clock.now > NOW + 60
    assert sum("no capacity" in note for note in bench.loop.notes()) == 1


def test_what_may_not_be_rented_ends_the_run(bench: Bench) -> None:
    bench.provider.refusals = [UsageError("not allowed", "Ask for ec2:RunInstances.")]
    fatal = bench.until(lambda: bench.loop.fatal)
    assert isinstance(fatal, UsageError), "only the user can mend it"
    assert "Ask for ec2:RunInstances." in str(fatal)
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)


def test_a_machine_with_work_lives_on_though_the_others_cannot_be_had(bench: Bench) -> None:
    """Another place may do the work of those: this one is given back once it is free."""
    bench.until(lambda: bench.loop.formation)
    bench.provisioner.cannot = {f"i-{number}": "no disk" for number in range(2, 9)}
    bench.provider.end("i-1")
    bench.until(lambda: bench.loop.fatal, 200)
    bench.provider.kept_s = 0.0
    let(bench, 2 * bench.provisioner.lease_s, step_s=5.0)
    assert bench.provider.live == {"i-0"}, "what is of no use is given back"
    assert bench.provider.kept_s == bench.provisioner.lease_s
    assert (bench.loop.record.leased_until or 0.0) > bench.clock.now
    assert_alive(bench)
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)
    assert not bench.provider.live


def test_giving_back_is_tried_until_it_is_done(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provider.is_away = True
    bench.loop.end()
    for _ in range(10):
        bench.turn()
        bench.clock.now += 1
    assert not bench.loop.is_over
    bench.provider.is_away = False
    bench.until(lambda: bench.loop.is_over)
    assert not bench.provider.live


def test_what_is_given_back_is_known_no_more(bench: Bench) -> None:
    """Its driver may be killed half-way, and the next one find some of it: that is to be looked at anew."""
    bench.until(lambda: bench.loop.formation)
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)
    assert bench.provisioner.done == ["forget nodes"]


def test_rented_machines_are_given_back_whatever_is_still_done_to_their_cluster(bench: Bench) -> None:
    """To end a Ray on machines that are gone may take minutes; of hosts of one's own that is waited for."""
    bench.until(lambda: bench.loop.formation)
    with bench.loop._actuator._changing:
        bench.loop.end()
        bench.until(lambda: bench.loop.is_over, most_s=10)
    assert not bench.provider.live
    own = Bench(record(rental=Rental(slots=2, is_rented=False)))
    own.loop.want()
    own.until(lambda: own.loop.formation)
    own.loop.end()
    own.until(lambda: own.loop.is_over)
    assert own.provisioner.done == ["forget nodes", "take back"]


def test_a_machine_that_ended_before_it_was_named_is_on_the_bill(bench: Bench) -> None:
    """Spot machines may be gone when the answer to the request comes."""
    rent = bench.provider.acquire

    def acquire(cluster: str, request: NodeRequest) -> list[Node]:
        nodes = rent(cluster, request)
        if nodes[0].id == "i-0":
            bench.clock.now += 100
            bench.provider.end("i-0")
        return [bench.provider.machines[node.id] for node in nodes]

    bench.provider.acquire = acquire  # type: ignore[method-assign]
    bench.until(lambda: bench.loop.formation, most_s=300)
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)
    lost = bench.loop.record.machine("i-0")
    assert lost is not None
    assert (lost.started_at, lost.ended_at) == (NOW, NOW + 100)
    assert lost.billed_usd(bench.clock.now) == pytest.approx(0.36 * 100 / 3600)
    never = Bench(record())  # one that never began costs nothing, and is told
    rented = never.provider.acquire

    def refuse(cluster: str, request: NodeRequest) -> list[Node]:
        nodes = rented(cluster, request)
        never.provider.acquire = rented  # type: ignore[method-assign]
        return [replace(nodes[0], state=NodeState.GONE, started_at=None, reason="h1 is down"), *nodes[1:]]

    never.provider.acquire = refuse  # type: ignore[method-assign]
    never.loop.want()
    never.until(lambda: "left out: h1 is down" in never.loop.notes(), most_s=5)


def test_a_machine_that_its_provider_does_not_name_is_not_taken_for_gone(bench: Bench) -> None:
    """What it has is still fetched: a list may be of the moment before."""
    bench.until(lambda: bench.loop.formation)
    machines = bench.provider.machines
    one, other = machines["i-0"], machines["i-1"]
    bench.loop._observed.nodes = {"i-0": one}
    assert bench.loop.gone == frozenset()
    bench.loop._observed.nodes = {"i-0": one, "i-1": replace(other, state=NodeState.GONE)}
    assert bench.loop.gone == {"i-1"}


def test_it_is_kept_warm(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    assert bench.loop.keep(600.0, bench.clock.now)
    kept = bench.written[-1]
    assert (kept.state, kept.kept_until) == (ClusterState.KEPT, bench.clock.now + 600)
    assert bench.provider.kept_s == 600
    assert not bench.provider.given_back


def test_one_that_leaves_is_not_kept(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    machine = bench.loop.record.machines[0]
    bench.loop.record = bench.loop.record.changed([replace(machine, is_leaving=True)])
    assert not bench.loop.keep(600.0, bench.clock.now)


def test_who_does_not_hold_the_lease_does_nothing_more() -> None:
    bench = Bench(record())

    def refuse(_: ClusterRecord) -> None:
        raise LeaseLostError("another process drives it")

    loop = ClusterLoop(
        record(), cast("Any", bench.provider), cast("Any", bench.provisioner), refuse, clock=bench.clock
    )
    loop.want()
    loop._run()
    assert isinstance(loop.fatal, LeaseLostError)
    assert not bench.provider.machines


def test_a_bug_ends_the_run_in_order() -> None:
    bench = Bench(record())

    def fail(_: ClusterRecord) -> None:
        raise KeyError("x")

    loop = ClusterLoop(
        record(), cast("Any", bench.provider), cast("Any", bench.provisioner), fail, clock=bench.clock
    )
    loop.want()
    loop._run()
    assert isinstance(loop.fatal, ProviderError)


def test_more_machines_than_are_prepared_at_once_all_get_their_turn() -> None:
    bench = Bench(record(count=40))
    bench.loop.want()
    hold = bench.provisioner.hold = threading.Event()

    def most_are_under_way() -> bool:
        bench.loop._turn()
        return sum(t.name.startswith("prepare") for t in threading.enumerate()) >= 32

    until(most_are_under_way, "as many as are prepared at once")
    hold.set()
    bench.until(lambda: bench.loop.formation)
    assert len(bench.provisioner.rays[0].nodes) == 40


def test_tasks_of_one_kind_do_not_hold_up_others() -> None:
    tasks, hold = Threads(threading.Event()), threading.Event()
    begun = [tasks.start(f"prepare {n}", lambda: hold.wait(10)) for n in range(40)]
    assert begun.count(True) == 32
    assert tasks.start("look", lambda: None)
    assert not tasks.start("prepare 0", lambda: None), "under way"
    hold.set()


def test_for_what_a_run_waits_is_told_once_and_now_and_then(bench: Bench) -> None:
    bench.provider.refusals = [NoCapacityError("none there", zones=["us-a"]) for _ in range(20)]
    told: list[str] = []

    def waits() -> list[str]:
        told.extend(note for note in bench.loop.notes() if "asked again at" in note)
        return told

    bench.until(waits, most_s=10)
    assert told[0].startswith("train waits for 2 x m4.large (node-1, node-2): there are none in us-a; ")
    assert "TRAINMASTER_CAPACITY_PATIENCE" in told[0]
    bench.until(lambda: bench.clock.now > NOW + 400 and waits(), most_s=500)
    assert 2 <= len(told) <= 8, "not with every look"
    bench.provider.refusals = []
    bench.until(lambda: bench.loop.formation)


def test_a_lab_that_is_down_ends_the_run_and_nobody_waits_for_its_machines(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    gone = ProviderGoneError("the lab is down")

    def fail(*_: Any) -> Any:
        raise gone

    bench.provider.nodes = bench.provider.release = fail  # type: ignore[method-assign, assignment]
    assert bench.until(lambda: bench.loop.fatal, most_s=10) is gone
    # No machine answers either, as when this machine is cut off; gangs would wait for them for ever.
    bench.provisioner.unresponsive = {"i-0", "i-1"}
    bench.until(lambda: bench.loop.formation is None, most_s=10)
    assert bench.loop.gone == {"i-0", "i-1"}
    assert not bench.loop.record.live, "nothing is asked for in their place"
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over, most_s=10)


def test_a_lab_that_goes_down_before_anything_is_rented_is_no_refusal_of_the_users(bench: Bench) -> None:
    gone = ProviderGoneError("the lab is down")

    def fail(*_: Any) -> Any:
        raise gone

    bench.provider.acquire = fail  # type: ignore[method-assign, assignment]
    assert bench.until(lambda: bench.loop.fatal, most_s=10) is gone
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over, most_s=10)


def test_who_takes_over_a_warm_cluster_goes_on_with_what_is_known() -> None:
    bench = Bench(record())
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    taken = replace(bench.loop.record, state=ClusterState.ACTIVE)
    asked: list[str] = []
    listed = bench.provider.nodes
    bench.provider.nodes = lambda cluster: asked.append(cluster) or listed(cluster)  # type: ignore[method-assign, func-returns-value]
    bench.provisioner.known = lambda machines: {name: bench.provider.machines[name] for name in machines}
    bench.provisioner.head = "i-0"
    bench.loop = bench.make(taken)
    bench.loop.recall()
    bench.loop.want()
    bench.until(lambda: bench.loop.formation, most_s=1.6)
    assert not asked, "the provider is asked in a moment"
    bench.provider.end("i-1")
    bench.until(lambda: "i-2" in bench.provider.live, most_s=30)
    assert asked


def test_what_is_not_known_is_looked_at(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.loop = bench.make(replace(bench.loop.record, state=ClusterState.ACTIVE))
    bench.loop.recall()
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)


def test_what_is_in_the_way_of_giving_machines_back_is_told_once() -> None:
    """It is tried every few seconds, for as long as their provider is away."""
    told: list[str] = []
    observed = ObservedCluster(told.append)
    away, full = ProviderError("nobody answers", "Is it up?"), ProviderError("its disk is full")
    for now, reason in enumerate((away, away, away, full, full)):
        observed.take("c", "release", reason, 1000.0 + 3 * now)
    observed.take("c", "release", full, 2000.0)
    before = "machines could not be given back yet, which is tried on and on: "
    assert told == [f"{before}nobody answers. Is it up?", *2 * [f"{before}its disk is full"]]
    assert not observed.is_released


def test_what_is_not_paid_is_told_once_until_more_is_asked_for(bench: Bench) -> None:
    most = 1
    bench.loop.why_unpaid = lambda it, _: "it may cost $1" if len(it.live) > most else ""
    bench.loop.record = replace(
        bench.loop.record,
        plan=replace(bench.loop.record.plan, roles=(RolePlan("worker", 2, (WORKER,), least=1),)),
    )
    let(bench, 30.0)
    (line,) = [note for note in bench.loop.notes() if "not asked for" in note]
    assert line.startswith("train goes on")
    assert len(bench.loop.record.live) == 1
    most = 2
    let(bench, 30.0)
    assert len(bench.loop.record.live) == 2
    assert not [note for note in bench.loop.notes() if "not asked for" in note]
    most = 1
    bench.provider.machines["i-1"] = replace(bench.provider.machines["i-1"], state=NodeState.GONE)
    let(bench, 30.0)
    (line,) = [note for note in bench.loop.notes() if "not asked for" in note]
    assert line.startswith("train goes on with 1 of its machines: 1 x m4.large (node-2)")


def test_a_queue_that_others_use_is_asked_more_rarely_the_longer_a_run_waits() -> None:
    """Unless something of it is there, or comes."""
    queued, booting, ready, gone = (
        Node("i", "c", "worker", state, is_queued=is_queued)
        for state, is_queued in (
            (NodeState.STARTING, True),
            (NodeState.STARTING, False),
            (NodeState.READY, False),
            (NodeState.GONE, False),
        )
    )
    assert [look_pause_s([queued, gone], waited) for waited in (0, 100, 86_400)] == [1, 10, 30]
    assert [look_pause_s([queued, each], 86_400) for each in (booting, ready)] == [1, 5]
    assert [look_pause_s(nodes, 0) for nodes in ([], [gone], [ready], [ready, booting])] == [2, 2, 5, 1]


def test_a_machine_that_does_not_answer_is_named_once_while_a_run_ends(bench: Bench) -> None:
    """`cancel` waited for it for a minute, without a word."""
    bench.until(lambda: bench.loop.formation)
    bench.loop.notes()
    bench.provisioner.unresponsive.add("i-1")
    let(bench, 12.0)
    assert not [note for note in bench.loop.notes() if "has not answered" in note], "it may come back"
    bench.loop.unwant()
    let(bench, 12.0)
    (told,) = [note for note in bench.loop.notes() if "has not answered since" in note]
    assert told.startswith("node-2 (i-1) has not answered since ")
    assert ": it is waited for until " in told
    let(bench, 12.0)
    assert not [note for note in bench.loop.notes() if "has not answered" in note]


def test_a_machine_that_does_not_answer_is_named_while_a_task_on_it_ends_and_others_go_on(
    bench: Bench,
) -> None:
    """`cancel RUN TASK` waited for it without a word."""
    bench.until(lambda: bench.loop.formation)
    bench.provisioner.unresponsive.add("i-1")
    bench.loop.ends_on(["i-0"])
    let(bench, 12.0)
    assert not [note for note in bench.loop.notes() if "has not answered" in note], "the task is elsewhere"
    bench.loop.ends_on(["i-1"])
    let(bench, 12.0)
    assert [note for note in bench.loop.notes() if note.startswith("node-2 (i-1) has not answered since ")]


def test_a_cloud_is_asked_every_five_seconds_while_all_is_well_and_soon_if_a_machine_is_silent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    nodes = bench.provider.nodes
    monkeypatch.setattr(
        bench.provider, "nodes", lambda cluster: [asked.append(bench.clock()), nodes(cluster)][1]
    )
    bench.until(lambda: bench.loop.formation)
    let(bench, 10.0)
    asked.clear()
    let(bench, 60.0)
    assert {b - a for a, b in pairwise(asked)} == {5.0}
    bench.provisioner.unresponsive.add("i-1")
    let(bench, 6.0)
    asked.clear()
    let(bench, 20.0)
    assert {b - a for a, b in pairwise(asked)} == {2.0}
