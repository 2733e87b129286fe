"""A machine that is slow works until another one has taken its place, one step at a time."""

from __future__ import annotations

from dataclasses import asdict, replace

from test_decide_cluster import NOW, A, node, nodes, plan, rented, step

from trainmaster.cluster.decision import ActionKind, Observation, Refusal, Stage
from trainmaster.cluster.record import ClusterRecord, Machine, marked_slow, swapped
from trainmaster.cluster.renting.plan import Rental, RolePlan
from trainmaster.providers.base import NodeState


def test_a_slow_machine_works_until_another_one_has_taken_its_place() -> None:
    record = marked_slow(rented(), "i-1", "it is slow", 2.0, NOW)
    slow = record.machine("i-1")
    assert slow is not None
    assert (slow.is_slow, slow.slow_at, slow.slow_why, slow.slowdown) == (True, NOW, "it is slow", 2.0)
    assert marked_slow(record, "i-1", "again", 3.0, NOW + 5) == record
    stages = {"i-0": Stage.JOINED, "i-1": Stage.JOINED}
    seen = Observation(nodes=nodes(record), known=nodes(record), stages=stages, is_formed=True)
    asked = step(record, seen)
    assert [a.kind for a in asked.actions] == [ActionKind.RENT]
    assert [m.seat for m in asked.record.live] == ["worker-0", "worker-1", "worker-1"]
    assert not step(asked.record, replace(seen, renting=frozenset({"worker-1"}))).actions
    there = step(asked.record, replace(seen, rented={"worker-1": ("i-2",)})).record
    assert there.successor(slow) == there.machine("i-2")
    known = nodes(there)
    all_there = Observation(nodes=known, known=known, stages={**stages, "i-2": Stage.JOINED}, is_formed=True)
    still = step(there, all_there)
    assert not still.actions
    going = swapped(still.record, "i-1", keep=False)
    assert swapped(going, "i-1", keep=False) == going
    over = step(going, replace(all_there, vacant=frozenset({"i-1"})))
    assert {a.kind for a in over.actions} == {ActionKind.DROP, ActionKind.GIVE_BACK}
    assert [m.id for m in over.record.live] == ["i-0", "i-2"]
    assert not over.losses
    assert over.record.machine("i-1").reason == "another one has taken its place"  # type: ignore[union-attr]


def test_where_a_change_pays_no_more_the_new_machine_goes_and_the_slow_one_is_not_asked_about_again() -> None:
    record = marked_slow(rented(), "i-1", "it is slow", 2.0, NOW)
    new = Machine("worker-1", "worker", "worker-1", A, "i-2", started_at=NOW, has_joined=True)
    record = swapped(replace(record, machines=(*record.machines, new)), "i-1", keep=True)
    assert [(m.id, m.is_slow, m.is_leaving, m.is_surplus) for m in record.live] == [
        ("i-0", False, False, False),
        ("i-1", False, False, False),
        ("i-2", False, True, True),
    ]
    assert marked_slow(record, "i-1", "again", 2.0, NOW + 99) == record
    stages = dict.fromkeys(("i-0", "i-1", "i-2"), Stage.JOINED)
    known = nodes(record)
    seen = Observation(nodes=known, known=known, stages=stages, is_formed=True, vacant=frozenset({"i-2"}))
    assert [m.id for m in step(record, seen).record.live] == ["i-0", "i-1"]


def test_a_slow_machine_that_is_lost_has_its_successor_already() -> None:
    record = marked_slow(rented(), "i-1", "it is slow", 2.0, NOW)
    new = Machine("worker-1", "worker", "worker-1", A, "i-2", started_at=NOW)
    record = replace(record, machines=(*record.machines, new))
    known = {**nodes(record), "i-1": node("i-1", NodeState.GONE)}
    after = step(record, Observation(nodes=known, known=known, is_formed=True)).record
    assert [m.id for m in after.live] == ["i-0", "i-2"]


def test_what_was_decided_of_a_slow_machine_is_in_its_row() -> None:
    record = marked_slow(rented(), "i-1", "it is slow", 2.0, NOW)
    assert ClusterRecord.of_row(asdict(record.as_row())) == record


def test_a_slow_host_stays_where_no_other_one_is_free() -> None:
    host = Rental("", "", "", is_rented=False)
    hosts = replace(rented(rental=host), plan=plan(RolePlan("worker", 2, (host,))))
    record = marked_slow(hosts, "i-1", "it is slow", 2.0, NOW)
    stages = {"i-0": Stage.JOINED, "i-1": Stage.JOINED}
    seen = Observation(nodes=nodes(record), known=nodes(record), stages=stages, is_formed=True)
    asked = step(record, seen)
    (action,) = asked.actions
    assert action.kind is ActionKind.RENT
    refused = step(asked.record, replace(seen, refusals={action.token: Refusal(reason="none is free")}))
    assert refused.notes[-1] == "node-2 (i-1) stays, though it is slow"
    assert [(m.id, m.holds_seat) for m in refused.record.live] == [("i-0", True), ("i-1", True)]
    assert not step(refused.record, seen, NOW + 3600).actions


def test_a_slow_machine_stays_where_another_one_is_refused_for_good() -> None:
    """Nothing ends, and it is not asked for again."""
    record = marked_slow(rented(), "i-1", "it is slow", 2.0, NOW)
    stages = {"i-0": Stage.JOINED, "i-1": Stage.JOINED}
    seen = Observation(nodes=nodes(record), known=nodes(record), stages=stages, is_formed=True)
    asked = step(record, seen)
    (action,) = asked.actions
    refusal = Refusal(reason="no such node", is_final=True, is_capacity=False)
    refused = step(asked.record, replace(seen, refusals={action.token: refusal}))
    assert not refused.fatal
    assert refused.notes == ["node-2 (i-1) stays, though it is slow: no such node"]
    assert [(m.id, m.holds_seat) for m in refused.record.live] == [("i-0", True), ("i-1", True)]
    assert not step(refused.record, seen, NOW + 3600).actions
