"""What follows for a cluster from what was observed of it, one step at a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from trainmaster.cluster.decide_cluster import BROKEN_MOST, FORGOTTEN_S, decide_cluster
from trainmaster.cluster.decision import ActionKind, Decision, Observation, Refusal, Stage, WaitLimits
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, new_record, resumed
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.providers.base import BOOT_S, Node, NodeState

NOW = 1000.0
A = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)
B = Rental("m4.large", "us", "us-b", usd_per_hour=0.72)
LIMITS = WaitLimits(60.0, 600.0)
LENT = replace(A, spot=True)


def plan(*roles: RolePlan) -> ClusterPlan:
    return ClusterPlan("train", ("train",), "lab", roles or (RolePlan("worker", 2, (A, B)),))


def step(
    record: ClusterRecord,
    seen: Observation | None = None,
    now: float = NOW,
    scaling: Scaling | None = None,
    patience: WaitLimits = LIMITS,
    **wishes: bool,
) -> Decision:
    return decide_cluster(
        record,
        seen or Observation(),
        now,
        wanted=wishes.get("wanted", True),
        ending=wishes.get("ending", False),
        patience=patience,
        scaling=scaling,
    )


def node(name: str, state: NodeState = NodeState.READY, **more: object) -> Node:
    return Node(name, "c", "worker", state, zone="us-a", started_at=NOW, **more)  # type: ignore[arg-type]


def kinds(decision: Decision) -> list[ActionKind]:
    return [action.kind for action in decision.actions]


def rented(count: int = 2, rental: Rental = A) -> ClusterRecord:
    """A cluster whose machines have names: i-0, i-1, ..."""
    machines = tuple(
        Machine(f"worker-{n}", "worker", "worker-0", rental, f"i-{n}", started_at=NOW) for n in range(count)
    )
    return replace(
        new_record("run", plan(RolePlan("worker", count, (rental, replace(B, spot=rental.spot)))), "home"),
        state=ClusterState.ACTIVE,
        machines=machines,
        asked=1,
        asked_at=NOW,
    )


def nodes(record: ClusterRecord, **other: Node) -> dict[str, Node]:
    return {m.id: node(m.id) for m in record.rented} | {each.id: each for each in other.values()}


def test_nothing_is_rented_before_somebody_wants_it() -> None:
    assert not step(new_record("run", plan(), "home"), wanted=False).actions


def test_all_seats_of_a_role_are_asked_for_at_once_and_that_is_written_first() -> None:
    decision = step(new_record("run", plan(), "home"))
    (action,) = decision.actions
    assert action.kind is ActionKind.RENT
    assert [(m.seat, m.token, m.rental) for m in decision.record.machines] == [
        ("worker-0", action.token, A),
        ("worker-1", action.token, A),
    ]
    assert decision.record.state is ClusterState.ACTIVE


def test_a_request_that_was_cut_short_is_made_again_with_its_token() -> None:
    asked = step(new_record("run", plan(), "home")).record
    again = step(asked)
    assert [(a.kind, a.token) for a in again.actions] == [(ActionKind.RENT, "worker-0")]
    assert again.record == asked
    assert not step(asked, Observation(renting=frozenset({"worker-0"}))).actions


def test_what_a_request_brings_gets_the_seats_in_order() -> None:
    asked = step(new_record("run", plan(), "home")).record
    record = step(asked, Observation(rented={"worker-0": ("i-7", "i-8")})).record
    assert [(m.seat, m.id) for m in record.machines] == [("worker-0", "i-7"), ("worker-1", "i-8")]


def test_no_capacity_leads_to_the_next_place_and_never_straight_back() -> None:
    asked = step(new_record("run", plan(), "home")).record
    refused = Observation(refusals={"worker-0": Refusal(("us-a",), "none there")})
    second = step(asked, refused)
    assert {m.rental for m in second.record.live} == {B}
    third = step(second.record, Observation(refusals={"worker-1": Refusal(("us-b",), "none there")}))
    assert not third.record.live
    assert third.retry_at == pytest.approx(NOW + 600)
    assert not step(third.record, now=NOW + 599).record.live
    assert {m.rental for m in step(third.record, now=NOW + 601).record.live} == {A}


def test_a_refusal_or_an_answer_is_of_its_own_request_only() -> None:
    roles = plan(RolePlan("worker", 1, (A,)), RolePlan("parameter_server", 1, (B,)))
    asked = step(new_record("run", roles, "home")).record
    worker, server = asked.live
    assert worker.token != server.token
    refused = step(asked, Observation(refusals={worker.token: Refusal(("us-a",), "none there")})).record
    assert server in refused.live
    assert worker.token not in {m.token for m in refused.live}
    answered = step(asked, Observation(rented={server.token: ("i-7",)})).record
    assert [(m.seat, m.id) for m in answered.live] == [(worker.seat, ""), (server.seat, "i-7")]


def test_a_provider_that_is_away_is_asked_the_same_again() -> None:
    asked = step(new_record("run", plan(), "home")).record
    away = step(asked, Observation(refusals={"worker-0": Refusal(reason="away", is_capacity=False)}))
    assert away.record == asked
    assert kinds(away) == [ActionKind.RENT]


def test_a_final_refusal_ends_the_run() -> None:
    asked = step(new_record("run", plan(), "home")).record
    decision = step(asked, Observation(refusals={"worker-0": Refusal(reason="not allowed", is_final=True)}))
    assert (decision.fatal, decision.is_users) == ("not allowed", True)
    assert not decision.actions


def test_machines_that_run_are_prepared_and_form_one_cluster_when_all_are_ready() -> None:
    record = rented()
    first = step(record, Observation(nodes=nodes(record)))
    assert [(a.kind, a.ids) for a in first.actions] == [(ActionKind.PREPARE, ("i-0", "i-1"))]
    half = {"i-0": Stage.READY, "i-1": Stage.PREPARING}
    assert not step(record, Observation(nodes=nodes(record), stages=half)).actions
    ready = dict.fromkeys(("i-0", "i-1"), Stage.READY)
    formed = step(record, Observation(nodes=nodes(record), stages=ready))
    assert [(a.kind, a.ids) for a in formed.actions] == [(ActionKind.FORM, ("i-0", "i-1"))]
    assert not step(record, Observation(nodes=nodes(record), stages=ready, is_forming=True)).actions


def test_a_machine_on_demand_becomes_the_head() -> None:
    record = rented()
    lent = replace(record.machines[0], rental=LENT)
    record = record.changed([lent])
    ready = dict.fromkeys(("i-0", "i-1"), Stage.READY)
    (action,) = step(record, Observation(nodes=nodes(record), stages=ready)).actions
    assert action.ids == ("i-1", "i-0")


def test_how_long_it_took_until_its_engine_knew_all_machines_is_written_once() -> None:
    record, both = rented(), ("i-0", "i-1")
    joined = Observation(nodes=nodes(record), stages=dict.fromkeys(both, Stage.JOINED), is_formed=True)
    assert step(record, joined, now=NOW + 20).record.waited_s is None
    assert step(record, replace(joined, alive=frozenset(["i-0"])), now=NOW + 25).record.waited_s is None
    up = replace(joined, alive=frozenset(both))
    later = step(record, up, now=NOW + 30).record
    assert later.waited_s == 30
    assert step(later, up, now=NOW + 90).record.waited_s == 30


def test_a_machine_that_is_gone_is_replaced_with_a_new_token() -> None:
    record = rented()
    seen = Observation(
        nodes=nodes(record, gone=node("i-1", NodeState.GONE, ended_at=NOW + 5, reason="terminated")),
        stages=dict.fromkeys(("i-0", "i-1"), Stage.JOINED),
        is_formed=True,
    )
    decision = step(record, seen, now=NOW + 10)
    over = decision.record.machine("i-1")
    assert over is not None
    assert (over.is_over, over.ended_at, over.reason) == (True, NOW + 5, "terminated")
    assert kinds(decision) == [ActionKind.DROP, ActionKind.RENT]
    (successor,) = (m for m in decision.record.live if m.seat == "worker-1")
    assert (successor.id, successor.token) == ("", "worker-1")
    assert decision.losses == [
        "node-2 (i-1) is lost: terminated; what ran there goes on from its newest checkpoint, "
        "m4.large (us-a) is asked for in its place"
    ]
    assert not decision.notes, "one line tells all"


@pytest.mark.parametrize("had_joined", [True, False])
def test_a_machine_that_ends_together_with_its_driver_is_told_as_lost_if_it_was_a_node(
    had_joined: bool,
) -> None:
    """The next driver has it from the record only: it has seen no node yet."""
    record = rented()
    stage = Stage.JOINED if had_joined else Stage.READY
    before = step(
        record, Observation(nodes=nodes(record), stages={"i-0": Stage.JOINED, "i-1": stage}, is_formed=True)
    )
    row = before.record.as_row()
    found = ClusterRecord.of_row({name: getattr(row, name) for name in row.__slots__})
    gone = nodes(record, gone=node("i-1", NodeState.GONE, reason="terminated"))
    decision = step(found, Observation(nodes=gone))
    assert [line[:33] for line in decision.losses] == ["node-2 (i-1) is lost: terminated;"] * had_joined
    assert ("node-2 (i-1) is given up: terminated" in decision.notes) != had_joined
    assert not step(decision.record, Observation(nodes=gone)).losses, "told once"


def test_a_record_from_before_it_was_written_who_had_joined_is_read() -> None:
    row = rented().as_row()
    found = {name: getattr(row, name) for name in row.__slots__}
    earlier = json.loads(found["data"])
    for machine in earlier["machines"]:
        del machine["has_joined"]
    assert ClusterRecord.of_row({**found, "data": json.dumps(earlier)}) == rented()


def test_a_lost_machine_that_is_not_replaced_is_told_too() -> None:
    record = rented()
    gone = nodes(record, gone=node("i-1", NodeState.GONE, reason="terminated"))
    stages = dict.fromkeys(("i-0", "i-1"), Stage.JOINED)
    decision = step(record, Observation(nodes=gone, stages=stages, is_formed=True), wanted=False)
    assert decision.losses == ["node-2 (i-1) is lost: terminated"]


def test_a_spot_machine_that_is_taken_back_is_not_asked_for_in_that_zone_again() -> None:
    record = rented(rental=LENT)
    leaving = node("i-1", NodeState.LEAVING, leaves_at=NOW + 120, reason="outbid")
    decision = step(record, Observation(nodes=nodes(record, leaving=leaving)))
    assert ActionKind.DRAIN in kinds(decision)
    (successor,) = (m for m in decision.record.live if m.seat == "worker-1" and not m.is_leaving)
    assert successor.rental.zone == "us-b"
    (told,) = decision.losses
    assert told.startswith("node-2 (i-1) is taken back in 120 s (outbid); what ran there goes on")
    gone = node("i-1", NodeState.GONE, reason="interrupted")
    assert not step(decision.record, Observation(nodes=nodes(record, gone=gone))).losses, "told once"
    again = step(
        decision.record, Observation(nodes=nodes(record, leaving=leaving), renting=frozenset({"worker-1"}))
    )
    assert ActionKind.DRAIN not in kinds(again), "asked once"


def test_a_machine_whose_time_is_over_is_followed_by_one_of_the_same_kind_at_once() -> None:
    record = rented()
    leaving = node("i-1", NodeState.LEAVING, leaves_at=NOW + 120)
    decision = step(record, Observation(nodes=nodes(record, leaving=leaving)))
    (successor,) = (m for m in decision.record.live if m.seat == "worker-1" and not m.is_leaving)
    assert successor.rental == record.live[1].rental


def test_a_machine_that_answers_nobody_is_given_back_after_the_patience() -> None:
    record = rented()
    seen = Observation(nodes=nodes(record), stages={"i-0": Stage.JOINED, "i-1": Stage.JOINED}, is_formed=True)
    unresponsive = replace(seen, lost_since={"i-1": NOW})
    assert not step(record, unresponsive, now=NOW + 59).actions
    decision = step(record, unresponsive, now=NOW + 61)
    assert kinds(decision) == [ActionKind.DROP, ActionKind.GIVE_BACK, ActionKind.RENT]
    over = decision.record.machine("i-1")
    assert over is not None
    assert over.ended_at is None, "it costs until its provider says that it has ended"
    again = step(decision.record, replace(seen, renting=frozenset({"worker-1"})), now=NOW + 63)
    assert kinds(again) == [ActionKind.GIVE_BACK], "until it is so"
    gone = {**nodes(record), "i-1": node("i-1", NodeState.GONE, ended_at=NOW + 64)}
    settled = step(decision.record, replace(seen, nodes=gone), now=NOW + 65).record.machine("i-1")
    assert settled is not None
    assert settled.ended_at == NOW + 64


def test_a_machine_that_ray_has_lost_but_that_answers_joins_again() -> None:
    record = rented()
    seen = Observation(
        nodes=nodes(record),
        stages={"i-0": Stage.JOINED, "i-1": Stage.JOINED},
        disconnected=frozenset({"i-1"}),
        is_formed=True,
    )
    assert [(a.kind, a.ids) for a in step(record, seen).actions] == [(ActionKind.DROP, ("i-1",))]
    silent = replace(seen, lost_since={"i-1": NOW})
    assert not step(record, silent).actions, "what does not answer cannot join"
    ready = replace(seen, disconnected=frozenset(), stages={"i-0": Stage.JOINED, "i-1": Stage.READY})
    assert [(a.kind, a.ids) for a in step(record, ready).actions] == [(ActionKind.JOIN, ("i-1",))]


def test_a_machine_that_does_not_come_up_is_given_back() -> None:
    seen = Observation(nodes={"i-0": node("i-0", NodeState.STARTING)}, known_since={"i-0": NOW})
    assert ActionKind.GIVE_BACK in kinds(step(rented(1), seen, now=NOW + BOOT_S + 1))


@pytest.mark.parametrize("off_s", [-900.0, 900.0])
def test_a_machine_is_given_up_by_when_we_heard_of_it_whatever_its_provider_s_clock_says(
    off_s: float,
) -> None:
    """Nothing tells yet how far that is off; and the writer of the record may have had another clock."""
    record = rented(1).changed([replace(rented(1).machines[0], started_at=NOW + off_s)])
    boots = {"i-0": replace(node("i-0", NodeState.STARTING), started_at=NOW + off_s)}
    for listed, most_s in ((boots, BOOT_S), ({}, FORGOTTEN_S)):
        seen = Observation(nodes=listed, known_since={"i-0": NOW})
        assert not step(record, Observation(nodes=listed), now=NOW).actions, "new to this process"
        assert not step(record, seen, now=NOW + most_s).actions
        assert step(record, seen, now=NOW + most_s + 1).record.machines[0].is_over


@pytest.mark.parametrize("off_s", [-900.0, 900.0])
def test_a_record_that_was_written_by_another_clock_costs_what_its_provider_tells_now(off_s: float) -> None:
    hour = replace(A, usd_per_hour=3.6)
    record = replace(rented(2, hour), leased_until=NOW + 900).moved(off_s)
    away = step(record, Observation(known=nodes(record)), now=NOW + 100).record
    assert away.machines[0].started_at == NOW + off_s, "what was told before says nothing"
    told = step(record, Observation(nodes=nodes(record)), now=NOW + 100).record
    assert [machine.started_at for machine in told.machines] == [NOW, NOW]
    assert replace(told, leased_until=None).spent_usd(NOW + 100) == pytest.approx(0.2)
    ended = {name: node(name, NodeState.GONE, ended_at=NOW + 60) for name in ("i-0", "i-1")}
    over = step(record, Observation(nodes=ended), now=NOW + 100, wanted=False).record
    given_up = replace(record, machines=tuple(replace(m, is_over=True) for m in record.machines))
    for settled in (over, step(given_up, Observation(nodes=ended), now=NOW + 100, wanted=False).record):
        assert settled.spent_usd(NOW + 100) == pytest.approx(0.12)


@pytest.mark.parametrize("off_s", [-900.0, 900.0])
def test_a_machine_that_has_ended_costs_what_it_did_by_every_clock(off_s: float) -> None:
    hour = replace(A, usd_per_hour=3.6)
    over = Machine("worker-0", "worker", "t", hour, "i-0", started_at=NOW, ended_at=NOW + 100, is_over=True)
    record = replace(rented(1), machines=(over,), leased_until=NOW + 900).moved(off_s)
    assert record.spent_usd(NOW + 200) == pytest.approx(0.1)
    assert record.most_usd(NOW + 200, NOW + 300) == pytest.approx(0.1)


def test_machines_that_cannot_become_nodes_are_tried_a_few_times() -> None:
    record = rented(1)
    for number in range(BROKEN_MOST):
        name = record.rented[0].id
        broken = Observation(
            nodes={name: node(name)}, stages={name: Stage.BROKEN}, troubles={name: "no python"}
        )
        decision = step(record, broken, now=NOW + number)
        if number < BROKEN_MOST - 1:
            assert not decision.fatal
            record = step(
                decision.record, Observation(rented={f"worker-{number + 1}": (f"j-{number}",)})
            ).record
    assert "no python" in decision.fatal


def hosts(count: int, least: int) -> ClusterRecord:
    own = Rental(slots=2, is_rented=False)
    machines = tuple(Machine(f"worker-{n}", "worker", "worker-0", own, f"h{n}") for n in range(count))
    what = plan(RolePlan("worker", count, (own,), least=least))
    record = new_record("run", what, "home")
    return replace(record, state=ClusterState.ACTIVE, machines=machines, asked=1, asked_at=NOW)


def test_a_host_of_ones_own_that_cannot_be_used_is_left_out_if_the_rest_is_enough() -> None:
    there = {f"h{n}": Node(f"h{n}", "c", "worker", NodeState.READY) for n in range(3)}
    stages = {"h0": Stage.READY, "h1": Stage.BROKEN, "h2": Stage.READY}
    decision = step(hosts(3, least=1), Observation(nodes=there, stages=stages, troubles={"h1": "no room"}))
    assert (decision.fatal, kinds(decision)) == ("", [ActionKind.GIVE_BACK, ActionKind.FORM])
    assert decision.actions[1].ids == ("h0", "h2")
    assert not step(hosts(3, least=0), Observation(nodes=there)).fatal
    strict = step(hosts(3, least=0), Observation(nodes=there, stages=stages, troubles={"h1": "no room"}))
    assert "no room" in strict.fatal  # one that answers is somebody's to mend, any other is left for another
    silent = there | {"h1": replace(there["h1"], reason="does not answer: it is off")}
    other = step(hosts(3, least=0), Observation(nodes=silent, stages=stages, troubles={"h1": "it is off"}))
    assert (other.fatal, kinds(other)) == ("", [ActionKind.GIVE_BACK, ActionKind.RENT])


def test_the_end() -> None:
    record = rented()
    ending = step(record, Observation(nodes=nodes(record)), ending=True)
    assert (ending.record.state, kinds(ending)) == (ClusterState.ENDING, [ActionKind.RELEASE])
    assert kinds(step(ending.record, Observation(renting=frozenset({"x"})), ending=True)) == []
    gone = {m.id: node(m.id, NodeState.GONE, ended_at=NOW + 7) for m in record.rented}
    over = step(ending.record, Observation(nodes=gone, is_released=True), now=NOW + 9, ending=True)
    assert over.record.state is ClusterState.ENDED
    assert {m.ended_at for m in over.record.machines} == {NOW + 7}
    assert not step(over.record).actions


def test_what_was_never_asked_for_needs_no_release() -> None:
    decision = step(new_record("run", plan(), "home"), ending=True)
    assert (decision.record.state, decision.actions) == (ClusterState.ENDED, [])


def test_the_bill() -> None:
    hour = replace(A, usd_per_hour=3.6, minimum_s=60.0)
    record = replace(
        rented(),
        machines=(
            Machine("worker-0", "worker", "t", hour, "i-0", started_at=NOW, ended_at=NOW + 10, is_over=True),
            Machine("worker-1", "worker", "t", hour, "i-1", started_at=NOW),
            Machine("worker-1", "worker", "u", hour),
        ),
    )
    assert record.spent_usd(NOW + 100) == pytest.approx(0.06 + 0.1)
    assert record.usd_per_hour() == pytest.approx(3.6)
    warm = replace(record, paid_from=NOW + 90)
    assert warm.spent_usd(NOW + 100) == pytest.approx(0.01), "the run before has paid for the rest"


def test_the_bill_of_a_warm_cluster_stays_when_its_machines_have_ended() -> None:
    hour = replace(A, usd_per_hour=3.6, minimum_s=60.0)
    machine = Machine("worker-0", "worker", "t", hour, "i-0", started_at=NOW - 900)
    record = replace(rented(), machines=(machine,), paid_from=NOW)
    assert record.spent_usd(NOW + 100) == pytest.approx(0.1)
    ended = record.changed([replace(machine, ended_at=NOW + 100, is_over=True)])
    assert ended.spent_usd(NOW + 5000) == pytest.approx(0.1)
    assert record.changed([replace(machine, ended_at=NOW - 1, is_over=True)]).spent_usd(NOW) == 0


def test_nothing_is_asked_for_when_nothing_new_will_run() -> None:
    record = rented()
    gone = Observation(nodes=nodes(record, gone=node("i-1", NodeState.GONE, ended_at=NOW)))
    assert ActionKind.RENT in kinds(step(record, gone))
    assert ActionKind.RENT not in kinds(step(record, gone, wanted=False))
    asked = step(new_record("run", plan(), "home")).record
    assert not step(asked, wanted=False).actions


def test_a_record_survives_its_row() -> None:
    record = replace(rented(), kept_until=NOW, state=ClusterState.KEPT, waited_s=3.5)
    row = record.as_row()
    found = {name: getattr(row, name) for name in row.__slots__}
    assert ClusterRecord.of_row(found) == record


def test_who_does_not_answer_is_not_made_part_of_a_cluster() -> None:
    record = rented()
    ready = dict.fromkeys(("i-0", "i-1"), Stage.READY)
    unresponsive = Observation(nodes=nodes(record), stages=ready, lost_since={"i-1": NOW})
    assert not step(record, unresponsive).actions, "it may come back"
    formed = replace(unresponsive, stages={"i-0": Stage.JOINED, "i-1": Stage.READY}, is_formed=True)
    assert not step(record, formed).actions


def test_a_cluster_of_an_earlier_process_is_found_before_all_its_nodes_are_there() -> None:
    record = rented()
    half = {"i-0": Stage.PREPARING, "i-1": Stage.READY}
    assert not step(record, Observation(nodes=nodes(record), stages=half)).actions
    (action,) = step(record, Observation(nodes=nodes(record), stages=half, head="i-1")).actions
    assert (action.kind, action.ids) == (ActionKind.FORM, ("i-1",))
    ready = dict.fromkeys(("i-0", "i-1"), Stage.READY)
    (action,) = step(record, Observation(nodes=nodes(record), stages=ready, head="i-1")).actions
    assert action.ids == ("i-1", "i-0"), "it stays its head"


def test_a_machine_that_is_taken_back_is_out_of_the_cluster_when_nothing_works_there() -> None:
    record = rented(rental=LENT)
    leaving = node("i-1", NodeState.LEAVING, leaves_at=NOW + 120)
    seen = Observation(
        nodes=nodes(record, leaving=leaving),
        stages=dict.fromkeys(("i-0", "i-1"), Stage.JOINED),
        is_formed=True,
    )
    record = step(record, seen).record
    seen = replace(seen, renting=frozenset({"worker-1"}))
    assert not step(record, seen).actions
    vacant = replace(seen, vacant=frozenset({"i-1"}))
    assert [(a.kind, a.ids) for a in step(record, vacant).actions] == [(ActionKind.DROP, ("i-1",))]
    dropped = replace(vacant, stages={"i-0": Stage.JOINED, "i-1": Stage.READY})
    assert not step(record, dropped).actions, "and does not join again"


def test_machines_that_were_taken_back_do_not_count_as_those_that_cannot_be_used() -> None:
    record = rented(1)
    (machine,) = record.machines
    before = tuple(
        replace(machine, id=f"old-{n}", token=f"old-{n}", is_over=True, ended_at=NOW)
        for n in range(BROKEN_MOST)
    )
    record = replace(record, machines=(*before, machine))
    broken = Observation(nodes=nodes(record), stages={"i-0": Stage.BROKEN}, troubles={"i-0": "no python"})
    assert not step(record, broken).fatal


def test_what_its_provider_has_forgotten_has_ended_with_its_lease() -> None:
    record = replace(rented(1), leased_until=NOW + 900)
    later = step(record, Observation(nodes={}, known_since={"i-0": NOW}), now=NOW + 86_400)
    over = later.record.machine("i-0")
    assert over is not None
    assert over.ended_at == NOW + 900, "nobody pays for a day"
    assert ActionKind.GIVE_BACK not in kinds(later), "there is nothing to give back"
    ending = replace(record, state=ClusterState.ENDING)
    ended = step(ending, Observation(nodes={}, is_released=True), now=NOW + 86_400, ending=True).record
    assert ended.spent_usd(NOW + 90_000) == pytest.approx(0.09)


def test_what_is_being_started_on_hosts_of_ones_own_is_not_left_there() -> None:
    record = hosts(2, least=0)
    assert not step(record, Observation(is_forming=True), ending=True).actions
    assert kinds(step(record, Observation(), ending=True)) == [ActionKind.RELEASE]
    assert kinds(step(rented(), Observation(is_forming=True), ending=True)) == [ActionKind.RELEASE]


def test_what_was_rented_once_is_never_written_off_without_being_given_back() -> None:
    left = replace(rented(), state=ClusterState.PLANNED)
    assert kinds(step(left, Observation(), ending=True)) == [ActionKind.RELEASE]


def test_a_run_goes_on_with_what_it_has() -> None:
    planned = new_record("run", plan(), "home")
    taken = replace(rented(), id="earlier.train")
    assert resumed([planned, taken]) == [taken]
    assert resumed([taken, planned]) == [taken], "whatever the order of their names"
    over = replace(
        taken, state=ClusterState.ENDED, machines=tuple(replace(m, is_over=True) for m in taken.machines)
    )
    (again,) = resumed([planned, over])
    assert (again.id, again.state) == (over.id, ClusterState.PLANNED)
    assert again.machines == over.machines, "the bill goes on"


def test_what_was_being_given_back_is_looked_at_before_anything_is_rented() -> None:
    (left,) = resumed([replace(rented(), state=ClusterState.ENDING)])
    assert left.state is ClusterState.ACTIVE
    gone = {m.id: node(m.id, NodeState.GONE, ended_at=NOW + 3) for m in left.rented}
    decision = step(left, Observation(nodes=gone), now=NOW + 9)
    assert ActionKind.RENT in kinds(decision)
    assert {m.token for m in decision.record.live} == {"worker-1"}, "with another token"
    assert {m.ended_at for m in decision.record.machines if m.is_over} == {NOW + 3}


# --- some are enough ---------------------------------------------------------------------------------------


def some(count: int = 3, least: int = 1) -> ClusterRecord:
    """Hosts of one's own, asked for."""
    role = RolePlan("worker", count, (Rental(slots=2, is_rented=False),), least=least)
    return step(new_record("run", plan(role), "home")).record


def test_hosts_that_cannot_be_had_are_left_out_and_not_asked_for_again() -> None:
    record = step(some(), Observation(rented={"worker-0": ("a", "b")})).record
    assert [(m.seat, m.id) for m in record.live] == [("worker-0", "a"), ("worker-1", "b")]
    seen = Observation(nodes=nodes(record), stages=dict.fromkeys(("a", "b"), Stage.READY))
    decision = step(record, seen, NOW + 60)
    assert kinds(decision) == [ActionKind.FORM], "two of three are one cluster"
    assert [m.id for m in decision.record.live] == ["a", "b"]


def test_a_host_that_cannot_become_a_node_is_left_out_if_the_others_suffice() -> None:
    record = step(some(2, least=1), Observation(rented={"worker-0": ("a", "b")})).record
    stages = {"a": Stage.READY, "b": Stage.BROKEN}
    decision = step(
        record, Observation(nodes=nodes(record), stages=stages, troubles={"b": "it has no Python"})
    )
    assert not decision.fatal
    assert decision.notes == ["node-2 (b) is given up: it has no Python"]
    assert ActionKind.FORM in kinds(decision)
    strict = step(some(2, least=0), Observation(rented={"worker-0": ("a", "b")})).record
    stopped = step(
        strict, Observation(nodes=nodes(strict), stages=stages, troubles={"b": "it has no Python"})
    )
    assert stopped.fatal == "node-2 (b) cannot be used: it has no Python"


def test_for_what_a_run_waits_is_said() -> None:
    asked = step(new_record("run", plan(), "home")).record
    second = step(asked, Observation(refusals={"worker-0": Refusal(("us-a",), "none")}))
    assert not second.waits
    third = step(second.record, Observation(refusals={"worker-1": Refusal(("us-b",), "none")}))
    assert third.waits == "waits for 2 x m4.large (node-1, node-2): there are none in us-a, us-b"
    hosts = step(some(), Observation(refusals={"worker-0": Refusal((), "bob uses them")}))
    assert hosts.waits == ("waits for 3 x host (node-1, node-2, node-3): there are none free that are suited")


def test_what_it_costs_to_be_kept_warm() -> None:
    machines = tuple(replace(m, started_at=NOW - 3600) for m in rented().machines)
    record = replace(rented(), machines=machines, keep_s=600.0)
    assert record.idle_usd(NOW) == 0.0
    kept = replace(record, state=ClusterState.KEPT, kept_until=NOW + 600)
    assert kept.idle_usd(NOW) == pytest.approx(0.0)
    assert kept.idle_usd(NOW + 300) == pytest.approx(2 * 0.36 * 300 / 3600)
    assert kept.idle_usd(NOW + 9000) == pytest.approx(2 * 0.36 * 600 / 3600), "then it has ended itself"
    assert record.idle_usd(NOW, NOW - 60) == pytest.approx(2 * 0.36 * 60 / 3600), "its run could not end it"
    ended = record.changed(replace(m, ended_at=NOW - 30) for m in record.machines)
    assert ended.idle_usd(NOW, NOW - 60) == pytest.approx(2 * 0.36 * 30 / 3600)


def test_who_does_not_want_to_wait_any_longer_for_a_queue_is_not_made_to() -> None:
    asked = step(new_record("run", plan(), "home")).record
    record = asked.changed(replace(m, id=f"i-{n}") for n, m in enumerate(asked.machines))
    waits = replace(node("i-0", NodeState.STARTING, reason="job 7: Priority"), is_queued=True, started_at=0.0)
    seen, limits = Observation(nodes={"i-0": waits, "i-1": waits}), WaitLimits(60.0, 600.0, 3600.0)
    up = replace(seen, is_formed=True)
    for given, later, limit in ((seen, 3599, limits), (seen, 36000, LIMITS), (up, 3600, limits)):
        assert not step(record, given, NOW + later, patience=limit).fatal
    decision = step(record, seen, NOW + 3600, patience=limits)
    assert decision.fatal == "train has no machines after 1 h (budget.wait): job 7: Priority"


def test_a_cloud_without_capacity_is_waited_for_as_long() -> None:
    over = rented(1).changed([replace(rented(1).machines[0], is_over=True, has_joined=True, asked_at=NOW)])
    asked = step(over, now=NOW + 10)
    seen = Observation(refusals={asked.actions[0].token: Refusal(("us-a", "us-b"), "none")})
    told = [step(asked.record, seen, NOW + s, patience=WaitLimits(60.0, 600.0, 50.0)).fatal for s in (59, 60)]
    assert [bool(each) for each in told] == [False, True], told
