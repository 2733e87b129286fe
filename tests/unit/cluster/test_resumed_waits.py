"""How long a run waits for machines (`budget.wait`), also when another driver goes on with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_decide_cluster import NOW, node, plan, some, step

from trainmaster.cluster.decision import Observation, Refusal, WaitLimits
from trainmaster.cluster.record import ClusterRecord, ClusterState, new_record, resumed
from trainmaster.providers.base import NodeState

LIMITS = WaitLimits(60.0, 600.0, 3600.0)
QUEUED = replace(node("i-0", NodeState.STARTING, reason="job 7: Priority"), is_queued=True, started_at=0.0)


def asked(record: ClusterRecord, now: float) -> ClusterRecord:
    found = step(record, now=now, patience=LIMITS).record
    return found.changed(replace(m, id=f"{m.token}-{m.seat}") for m in found.live)


def queued(record: ClusterRecord) -> Observation:
    return Observation(nodes={m.id: replace(QUEUED, id=m.id) for m in record.rented})


def test_a_run_that_was_resumed_waits_anew() -> None:
    record = asked(new_record("run", plan(), "home"), NOW)
    first = step(record, queued(record), NOW + 3600, patience=LIMITS)
    assert first.fatal
    over = first.record.changed(replace(m, is_over=True) for m in first.record.machines)
    later = NOW + 3601
    (planned,) = resumed([replace(over, state=ClusterState.ENDED)])
    again = asked(planned, later)
    assert not step(again, queued(again), later + 3599, patience=LIMITS).fatal
    assert step(again, queued(again), later + 3600, patience=LIMITS).fatal


def test_who_goes_on_with_a_living_cluster_has_waited_as_long() -> None:
    record = asked(new_record("run", plan(), "home"), NOW)
    (same,) = resumed([record])
    assert step(same, queued(same), NOW + 3600, patience=LIMITS).fatal


def test_a_cluster_that_was_up_is_waited_for_anew() -> None:
    record = asked(new_record("run", plan(), "home"), NOW)
    up = step(record, replace(queued(record), is_formed=True), NOW + 5000, patience=LIMITS).record
    lost = step(up, queued(up), NOW + 9000, patience=LIMITS)
    assert not lost.fatal
    assert step(lost.record, queued(up), NOW + 12600, patience=LIMITS).fatal


def test_what_waits_in_a_queue_for_long_sets_no_more_money_aside_than_what_was_just_asked_for() -> None:
    asked = step(new_record("run", plan(), "home")).record
    record = asked.changed(replace(m, id=f"i-{n}") for n, m in enumerate(asked.machines))
    just_usd, waits = record.most_usd(NOW, NOW + 300), {}
    for name in ("i-0", "i-1"):
        waits[name] = replace(node(name, NodeState.STARTING), is_queued=True, started_at=0.0)
    later = step(record, Observation(nodes=waits), NOW + 7200).record
    assert later.most_usd(NOW + 7200, NOW + 7500) == pytest.approx(just_usd)
    assert step(later, Observation(nodes=waits), NOW + 7210).record == later, "it is not written in each turn"
    assert later.asked_at == record.asked_at, "nor does it wait for less long"
    unseen = step(record, Observation(), NOW + 7200).record
    assert unseen.most_usd(NOW + 7200, NOW + 7500) > just_usd, "what nothing is heard of may be there"


def test_a_place_with_a_queue_that_refuses_is_asked_again_soon() -> None:
    """Nodes of a Ray whose head was started anew come back one by one."""
    asked = replace(step(new_record("run", plan(), "home")).record, provider="ray")
    record = step(asked, Observation(refusals={"worker-0": Refusal(("us-a", "us-b"), "no room")})).record
    assert step(record).retry_at == pytest.approx(NOW + 60)
    assert step(record, now=NOW + 60).actions


def test_another_place_is_asked_where_the_recipe_names_one() -> None:
    """At once where nothing has machines; after a while where they wait in a queue, and only then."""
    limits = WaitLimits(60.0, 600.0, 3600.0, elsewhere_s=900.0)
    first = step(new_record("run", plan(), "home"))
    refused = Observation(refusals={first.actions[0].token: Refusal(("us-a", "us-b"), "none")})
    decision = step(first.record, refused, NOW, patience=limits)
    assert (bool(decision.elsewhere), decision.fatal) == (True, "")
    assert not step(first.record, refused, NOW, patience=LIMITS).elsewhere

    record = first.record.changed(replace(m, id=f"i-{n}") for n, m in enumerate(first.record.machines))
    waits = replace(node("i-0", NodeState.STARTING, reason="job 7: Priority"), is_queued=True, started_at=0.0)
    seen = Observation(nodes={"i-0": waits, "i-1": waits})
    told = [step(record, seen, NOW + s, patience=limits).elsewhere for s in (1, 899, 900, 36000)]
    assert told == ["", "", "job 7: Priority", "job 7: Priority"]
    assert not step(record, replace(seen, is_formed=True), NOW + 900, patience=limits).elsewhere


def test_while_any_machine_is_there_no_other_place_is_asked_and_waiting_ends() -> None:
    limits = WaitLimits(60.0, 600.0, 3600.0, elsewhere_s=900.0)
    first = step(new_record("run", plan(), "home"))
    record = first.record.changed(replace(m, id=f"i-{n}") for n, m in enumerate(first.record.machines))
    one = Observation(nodes={"i-0": node("i-0"), "i-1": replace(QUEUED, id="i-1")})
    told = [step(record, one, NOW + s, patience=limits) for s in (900, 3599, 3600)]
    assert [each.elsewhere for each in told] == ["", "", ""]
    assert [bool(each.fatal) for each in told] == [False, False, True]


@pytest.mark.parametrize("was_asked", [False, True])
def test_waiting_ends_once_no_other_place_would_do(*, was_asked: bool) -> None:
    limits = WaitLimits(60.0, 600.0, 300.0, elsewhere_s=300.0, was_asked=was_asked)
    record = asked(new_record("run", plan(), "home"), NOW)
    at_last = step(record, queued(record), NOW + 300, patience=limits)
    assert (bool(at_last.elsewhere), bool(at_last.fatal)) == (not was_asked, was_asked)

    first = step(new_record("run", plan(), "home"))
    refused = Observation(refusals={first.actions[0].token: Refusal(("us-a", "us-b"), "none")})
    assert step(first.record, refused, NOW, patience=limits).elsewhere, "also again, before waiting is over"


def test_hosts_that_others_use_are_waited_for_until_some_are_given_and_anew_once_they_are_lost() -> None:
    first = some()
    assert not first.held
    refused = step(first, Observation(refusals={"worker-0": Refusal((), "bob uses them")})).record
    again = step(refused, now=NOW + 60)
    assert (refused.held, again.record.held) == ("bob uses them", "bob uses them"), "also while asked again"
    assert again.actions
    (token,) = {machine.token for machine in again.record.live}
    same, other = (
        step(again.record, Observation(refusals={token: Refusal((), why)}), NOW + 61).notes
        for why in ("bob uses them", "amy uses them")
    )
    assert (again.notes, same) == ([], []), "it was said when it began to wait"
    assert other == ["no capacity for 3 host: amy uses them"]
    given = step(again.record, Observation(rented={token: ("a", "b")}), NOW + 60).record
    assert (len(given.rented), given.held) == (2, ""), "one is left out"
    lost = given.changed(replace(m, is_over=True, reason="it is gone") for m in given.live)
    assert lost.held == ""
    rented = step(new_record("run", plan(), "home"))
    none = Observation(refusals={rented.actions[0].token: Refusal(("us-a", "us-b"), "none")})
    assert step(rented.record, none).record.held == "", "what is rented is waited for as its place says"


def test_a_resumed_run_says_anew_what_it_asks_for_and_is_not_queued_for_what_was_wrong_before() -> None:
    wrong = Observation(refusals={"worker-0": Refusal((), "the key of a is refused", is_final=True)})
    ended = step(some(), wrong)
    assert ended.fatal
    (planned,) = resumed([replace(ended.record, state=ClusterState.ENDED)])
    again = step(planned, now=NOW + 100)
    assert again.actions
    assert again.record.held == ""
    assert again.notes == ["3 x host for node-1, node-2, node-3"]


def test_what_is_written_does_not_grow_while_hosts_are_waited_for() -> None:
    record, now = some(), NOW
    for _ in range(20):
        refusals = {m.token: Refusal((), "bob uses them") for m in record.live if not m.id}
        record = step(record, Observation(refusals=refusals), now).record
        now += 15.5
        record = step(record, now=now).record
    assert record.asked == 21
    assert [m.token for m in record.machines if m.seat == "worker-0"] == [
        "worker-0", "worker-19", "worker-20"
    ]  # fmt: skip
    assert record.held == "bob uses them"
