"""What a run's clusters cost at most, how long their leases are, and how long they may be kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.cluster.cluster_connection import ClusterConnection
from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.decide_cluster import decide_cluster
from trainmaster.cluster.decision import ActionKind, Decision, Observation, WaitLimits
from trainmaster.cluster.member_places import MemberPlaces
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, elsewhere, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.decide.budget import BOOTING_S, SWITCH_OFF_S, Meter
from trainmaster.providers.base import Node, NodeState
from trainmaster.spec.states import State

PRICED = Rental("m4.large", usd_per_hour=3.6, minimum_s=60.0)


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Leases:
    """Of a cluster: those of its machines are over then."""

    lease_s: float = 900.0
    until: float = 0.0

    def last_until(self, record: Any) -> float:
        return self.until


@dataclass
class Loop:
    """A cluster of which only the record and the leases count."""

    record: Any = None
    formation: Any = None
    accesses: dict[str, Any] = field(default_factory=dict)
    fatal: Exception | None = None
    leases: Leases = field(default_factory=Leases)
    is_over: bool = False
    is_kept: bool = False
    is_running: bool = True
    stays: bool = False
    is_wanted: bool = True
    affords: Any = None
    why_unpaid: Any = None
    leaves_at: float = math.inf
    keep: Any = None

    def ends_on(self, machines):
        self.ends_on_machines = list(machines)

    def unwant(self) -> None:
        self.is_wanted = False

    def start(self) -> None: ...
    def close(self) -> None: ...

    def end(self) -> None:
        self.is_over = True

    def notes(self) -> list[str]:
        return []

    def losses(self) -> list[str]:
        return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def clusters(loop: Loop, clock: Clock) -> ClusterExecutor:
    places = cast("MemberPlaces", SimpleNamespace())
    return ClusterExecutor({"train": cast("Any", loop)}, cast("Any", None), lambda _: None, places, clock)


RUNS = SimpleNamespace(name="train", state=State.RUNNING, serves=None, created=0, total=9)
RUNNING: Any = SimpleNamespace(
    experiments={"train": RUNS},
    state=State.RUNNING,
    live_tasks=lambda: [RUNS] * 9,
    held_by_people=set,
    awaited_approval=lambda: None,
)


def rented(loop: Loop, rental: Rental, **more: Any) -> None:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 1, (rental,)),))
    machine = Machine("worker-0", "worker", "t", rental, "i-0", started_at=1000.0)
    loop.record = replace(new_record("run", plan, "home", 1800.0), machines=(machine,), **more)


def test_a_spot_machine_counts_at_the_price_that_it_may_come_to(
    clusters: ClusterExecutor, loop: Loop
) -> None:
    """Expected are 3.6 dollars an hour; at most it costs 7.2."""
    rented(loop, replace(PRICED, spot=True, most_usd_per_hour=7.2))
    meter = Meter(cap_usd=1.0)
    clusters.look(RUNNING, meter, 1200.0)
    assert clusters.costs.spent_usd(1200.0) == pytest.approx(0.2)
    assert meter.bill(1200.0) == pytest.approx(0.4)
    assert not meter.must_end(1200.0)
    assert meter.must_end(1000.0 + 500.0 - meter.ending_s + 1.0)


def test_leases_become_shorter_with_the_money(clusters: ClusterExecutor, loop: Loop) -> None:
    rented(loop, PRICED)
    meter = Meter(cap_usd=1.0, usual_lease_s=900.0)
    clusters.look(RUNNING, Meter(usual_lease_s=900.0), 1010.0)
    assert loop.leases.lease_s == 900.0
    for now in (1010.0, 1500.0, 1700.0):
        clusters.look(RUNNING, meter, now)
        assert loop.leases.lease_s == pytest.approx(min(900.0, 2000.0 - SWITCH_OFF_S - now), abs=2)


def test_what_was_asked_for_and_not_seen_yet_counts(clusters: ClusterExecutor, loop: Loop) -> None:
    rented(loop, PRICED)
    coming = Machine("worker-1", "worker", "u", PRICED)
    loop.record = replace(loop.record, machines=(*loop.record.machines, coming))
    assert clusters.costs.most_usd(1100.0, 1100.0) == pytest.approx(0.1 + BOOTING_S / 1000)
    assert clusters.costs.spent_usd(1100.0) == pytest.approx(0.1)


def test_who_slept_is_not_billed_for_what_was_not_there(clusters: ClusterExecutor, loop: Loop) -> None:
    rented(loop, PRICED, leased_until=1900.0)
    meter = Meter(cap_usd=2.0, usual_lease_s=900.0)
    clusters.look(RUNNING, meter, 37_000.0)
    assert not meter.must_end(37_000.0), "they ended themselves at 1900, which costs 0.9 dollars"
    assert meter.bill(37_100.0) == pytest.approx(1.0), "if they had not, they would be billed from now on"


def test_more_machines_wait_until_those_that_are_there_have_short_leases(
    clusters: ClusterExecutor, loop: Loop, clock: Clock
) -> None:
    rented(loop, PRICED)
    clock.now = 1010.0
    meter = Meter(cap_usd=1.2, usual_lease_s=900.0)
    clusters.look(RUNNING, meter, 1010.0)
    coming = Machine("worker-1", "worker", "u", PRICED)
    loop.record = replace(loop.record, machines=(*loop.record.machines, coming))
    loop.leases.until = 1910.0
    assert not loop.affords()
    clusters.look(RUNNING, meter, 1011.0)
    loop.leases.until = 1011.0 + loop.leases.lease_s
    clock.now = 1011.0
    assert loop.affords()
    assert not meter.must_end(1011.0)


@pytest.mark.parametrize(
    ("cap_usd", "why", "limit", "kept_s"),
    [
        (math.inf, "", "", 1800.0),
        (5.0, "", "", 1800.0),
        (1.0, "", "budget.total", 780.0),
        (0.25, "", "budget.total", None),
        (1.0, "of the month's budget there were only $1.00 for it", "the month's budget", 780.0),
    ],
)
def test_machines_are_kept_as_long_as_the_cap_pays_for(
    clusters: ClusterExecutor,
    loop: Loop,
    clock: Clock,
    cap_usd: float,
    why: str,
    limit: str,
    kept_s: float | None,
) -> None:
    rented(loop, PRICED, state=ClusterState.ACTIVE)
    clock.now = 1110.0
    clusters.look(RUNNING, Meter(cap_usd=cap_usd, usual_lease_s=900.0, why=why), 1110.0)
    kept: list[float] = []

    def keep(keep_s: float, now: float) -> bool:
        kept.append(keep_s)
        loop.record = replace(loop.record, state=ClusterState.KEPT, keep_s=keep_s, kept_until=now + keep_s)
        loop.is_kept = True
        return True

    loop.keep = keep
    told: list[str] = []
    clusters.finish(told.append, keep=True, patience_s=0.0)
    if kept_s is None:
        assert not kept
        assert f"{limit} leaves no money" in told[0]
        return
    assert kept == [pytest.approx(kept_s, abs=2)]
    assert (f"because of {limit}" in told[0]) == (kept_s < 1800.0)


def beside_hosts(loop: Loop, clock: Clock, hosts: Rental) -> ClusterExecutor:
    """A run whose tasks spread over such machines and over one that is rented."""
    plan = ClusterPlan("train", ("train",), "hosts", (RolePlan("worker", 1, (hosts,)),))
    first = Loop(replace(new_record("run", plan, "home"), state=ClusterState.ACTIVE))
    places = cast("MemberPlaces", SimpleNamespace())
    loops = {"train": (cast("Any", first), cast("Any", loop))}
    return ClusterExecutor(loops, cast("Any", None), lambda _: None, places, clock)


def test_what_the_money_does_not_suffice_for_is_neither_asked_for_nor_written() -> None:
    """Written it would count as if it were there, and end a run that goes on elsewhere."""
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 2, (PRICED,)),))
    record, asked = new_record("run", plan, "home"), list[ClusterRecord]()

    def why_unpaid(wanted: ClusterRecord, _is_least: object) -> str:
        asked.append(wanted)
        return "it may cost $1"

    decision = decide_cluster(
        record, Observation(), 1.0, wanted=True, ending=False, patience=WaitLimits(), why_unpaid=why_unpaid
    )
    assert [len(each.live) for each in asked] == [2, 2, 1]
    assert (decision.record.state, decision.record.machines, decision.actions) == (record.state, (), [])
    assert not decision.fatal, "there may be more money later"
    assert decision.unpaid == (
        "train goes on without machines of lab: 2 x m4.large (node-1, node-2) not asked for: it may cost $1"
    )


def wanting(record: ClusterRecord, most: int, *, is_formed: bool = True) -> Decision:
    """What is decided where the money suffices for so many machines."""
    return decide_cluster(
        record, Observation(is_formed=is_formed), 1.0, wanted=True, ending=False, patience=WaitLimits(),
        why_unpaid=lambda it, _: "too much" if len(it.live) > most else "",
    )  # fmt: skip


def seats(record: ClusterRecord) -> list[str]:
    return [machine.seat for machine in record.live]


def test_as_many_are_asked_for_as_can_be_paid_if_they_are_enough() -> None:
    roles = (RolePlan("worker", 3, (PRICED,), least=1), RolePlan("ps", 1, (PRICED,)))
    one = new_record("run", ClusterPlan("train", ("train",), "lab", roles[:1]), "home")
    both = new_record("run", ClusterPlan("train", ("train",), "lab", roles), "home")
    assert len(seats(wanting(one, 2, is_formed=False).record)) == 2
    decision = wanting(both, 1, is_formed=False)
    assert (seats(decision.record), decision.actions) == ([], []), "nothing could run without the other role"
    found = wanting(both, 3, is_formed=False)
    assert seats(found.record) == ["worker-0", "worker-1", "ps-0"], "rather than a third worker"
    assert "1 x m4.large (node-3) not asked for: too much" in found.unpaid
    assert len(seats(wanting(both, 4, is_formed=False).record)) == 4


def test_the_others_go_on_where_the_successor_of_one_cannot_be_paid(loop: Loop) -> None:
    rented(loop, PRICED, state=ClusterState.ACTIVE)
    plan = replace(loop.record.plan, roles=(RolePlan("worker", 2, (PRICED,)),))
    decision = wanting(replace(loop.record, plan=plan), 1)
    assert (decision.fatal, len(decision.record.live)) == ("", 1)
    assert decision.unpaid == (
        "train goes on with 1 of its machines: 1 x m4.large (node-2) not asked for: too much"
    )


def test_a_slow_machine_stays_if_another_one_cannot_be_paid(loop: Loop) -> None:
    rented(loop, PRICED, state=ClusterState.ACTIVE)
    slow = replace(loop.record.machines[0], is_slow=True, has_joined=True)
    decision = wanting(replace(loop.record, machines=(slow,)), 1)
    assert not any(machine.is_slow for machine in decision.record.machines)
    assert (decision.notes, decision.unpaid) == (["node-1 (i-0) stays, though it is slow: too much"], "")


def noticed(loop: Loop, least: int, *, cap_usd: float) -> Decision:
    """What follows when one of two machines is taken back and the cap is near."""
    rented(loop, replace(PRICED, spot=True), state=ClusterState.ACTIVE, leased_until=9000.0)
    plan = replace(loop.record.plan, roles=(RolePlan("worker", 2, (PRICED,), least=least),))
    machines = tuple(
        replace(loop.record.machines[0], seat=f"worker-{i}", id=f"i-{i}", has_joined=True) for i in (0, 1)
    )
    loop.record = replace(loop.record, plan=plan, machines=machines)
    nodes = {
        f"i-{i}": Node(f"i-{i}", "c", "worker", state, started_at=1000.0, leaves_at=1720.0)
        for i, state in enumerate((NodeState.READY, NodeState.LEAVING))
    }
    places = cast("MemberPlaces", SimpleNamespace())
    clusters = ClusterExecutor(
        {"train": cast("Any", loop)}, cast("Any", None), lambda _: None, places, lambda: 1600.0
    )
    clusters.look(RUNNING, meter := Meter(cap_usd=cap_usd, usual_lease_s=900.0), 1600.0)
    assert not meter.must_end(1600.0)
    decision = decide_cluster(
        loop.record, Observation(nodes, nodes, is_formed=True), 1600.0, wanted=True, ending=False,
        patience=WaitLimits(), why_unpaid=loop.why_unpaid,
    )  # fmt: skip
    loop.record = decision.record
    clusters.look(RUNNING, meter, 1600.0)
    assert meter.must_end(1600.0) is (least == 2 and cap_usd < 5)
    assert loop.affords() is not meter.must_end(1600.0)
    return decision


def test_a_machine_that_is_taken_back_near_the_cap_ends_no_run_that_goes_on_without_it(loop: Loop) -> None:
    """The successor was written down as asked for: that alone would have cost more than there was."""
    decision = noticed(loop, 1, cap_usd=1.7)
    assert ActionKind.RENT not in {action.kind for action in decision.actions}
    assert decision.losses == [
        "node-2 (i-1) is taken back in 120 s; what ran there goes on from its newest checkpoint"
    ]
    assert decision.unpaid.startswith("train goes on with 1 of its machines: 1 x m4.large (node-2) not asked")
    assert "is asked for in its place" in noticed(loop, 1, cap_usd=9.0).losses[0]


def test_what_the_cap_ends_is_not_asked_for(loop: Loop) -> None:
    """A successor that nothing goes on without; it was rented, and given back when the run had ended."""
    noticed(loop, 2, cap_usd=1.7)
    noticed(loop, 2, cap_usd=9.0)


OWN = Rental(is_rented=False)


@pytest.mark.parametrize(
    ("hosts", "cap_usd", "is_asked"), [(OWN, 0.4, False), (OWN, 0.41, True), (PRICED, 0.4, True)]
)
def test_what_costs_is_not_asked_for_if_the_cap_would_end_a_run_that_goes_on_for_nothing(
    loop: Loop, clock: Clock, hosts: Rental, cap_usd: float, *, is_asked: bool
) -> None:
    """Its boot, a lease and an end, and 85 s to leave are 405 s. Without free hosts the cap ends the run."""
    rented(loop, PRICED)
    asked, loop.record = loop.record, replace(loop.record, machines=())
    asked = replace(asked, machines=(Machine("worker-0", "worker", "t", PRICED, asked_at=clock.now),))
    clusters = beside_hosts(loop, clock, hosts)
    clusters.look(RUNNING, Meter(cap_usd=cap_usd, usual_lease_s=900.0), clock.now)
    why = loop.why_unpaid(asked, is_least=True)
    assert (why == "") is is_asked
    assert is_asked or why == ("from their start to their end the run could come to $0.41; it may cost $0.40")


def test_a_run_whose_machines_were_not_seen_is_not_said_to_have_cost_what_they_may(
    loop: Loop, clock: Clock
) -> None:
    """`status` says $0 of it."""
    rented(loop, PRICED)
    unseen = Machine("worker-0", "worker", "t", PRICED, asked_at=clock.now)
    loop.record = replace(loop.record, machines=(unseen,))
    clusters, meter = beside_hosts(loop, clock, OWN), Meter(cap_usd=0.2, usual_lease_s=900.0)
    clusters.costs.pay_by(meter, clock.now)
    said = meter.why_over(clock.now)
    assert "; it is known to have cost $0, and may have cost up to $0.12, and with 200 s more" in said
    loop.record = replace(loop.record, machines=(replace(unseen, id="i-1", started_at=clock.now - 100.0),))
    clusters.costs.pay_by(meter, clock.now)
    assert "; it has cost $0.10, and" in meter.why_over(clock.now)


def test_what_costs_is_given_back_before_the_cap_ends_a_run_that_goes_on_for_nothing(
    loop: Loop, clock: Clock
) -> None:
    rented(loop, PRICED, leased_until=9000.0)
    clusters, meter = beside_hosts(loop, clock, OWN), Meter(cap_usd=1.0, usual_lease_s=900.0)
    told: list[str] = []
    for clock.now in range(1600, 2400, 5):
        told += [note.message for note in clusters.look(RUNNING, meter, clock.now)]
        assert not meter.must_end(clock.now)
        if loop.is_over and loop.record.machines[0].ended_at is None:
            ended = replace(loop.record.machines[0], is_over=True, ended_at=float(clock.now))
            loop.record = replace(loop.record, machines=(ended,))
    (line,) = told
    assert line.startswith("train gives back the machines of lab: it may cost $1.00; it has cost $0.81, ")
    assert not loop.is_wanted
    assert loop.record.machines[0].ended_at == pytest.approx(1715.0, abs=10.0), "nothing was on it"


def test_what_is_given_back_for_its_price_has_time_to_save_and_no_longer_lease(
    loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rented(loop, PRICED, leased_until=9000.0)
    clusters, meter = beside_hosts(loop, clock, OWN), Meter(cap_usd=1.0, usual_lease_s=900.0)
    monkeypatch.setattr(ClusterConnection, "is_in_use", True)
    over = []
    for clock.now in range(1705, 1900, 5):
        clusters.look(RUNNING, meter, clock.now)
        assert not meter.must_end(clock.now)
        over += [clock.now] * loop.is_over
        if not loop.is_over:
            assert clock.now + loop.leases.lease_s + SWITCH_OFF_S <= 2000.0, "its driver may die"
    assert over[0] == pytest.approx(1795, abs=10), "75 s later, and 200 before all is used up"


def used(loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> ClusterExecutor:
    rented(loop, PRICED, leased_until=9000.0)
    monkeypatch.setattr(ClusterConnection, "is_in_use", True)
    return beside_hosts(loop, clock, OWN)


def test_a_run_goes_on_without_what_costs_if_its_cap_falls_or_its_end_takes_longer(
    loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As also for the next driver, who knows nothing of what has begun to leave."""
    clusters, meter = used(loop, clock, monkeypatch), Meter(cap_usd=2.0, usual_lease_s=900.0)
    clusters.look(RUNNING, meter, 1700.0)
    meter.publishing.learn(1000.0)
    assert meter.must_end(1700.0)
    clusters.look(RUNNING, meter, 1700.0)
    assert not meter.must_end(1700.0)
    assert loop.leaves_at == pytest.approx(2800.0, abs=1)
    meter.cap_usd = 1.0
    clusters.look(RUNNING, meter, 1705.0)
    assert not meter.must_end(1705.0)
    assert loop.leaves_at == pytest.approx(1800.0, abs=1), "200 s before all is used up"
    meter.cap_usd = 0.5
    clusters.look(RUNNING, meter, 1710.0)
    assert not meter.must_end(1710.0), "an end would save nothing"
    clusters.look(RUNNING, meter, 1711.0)
    assert loop.is_over


def test_what_has_left_counts_until_its_last_lease_is_over_while_nobody_says_that_it_has_ended(
    loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its switch may end it so late; others would have spent that money when its provider answers again."""
    clusters, meter = used(loop, clock, monkeypatch), Meter(cap_usd=1.0, usual_lease_s=900.0)
    clusters.look(RUNNING, meter, 1725.0)
    left_at = loop.leaves_at
    loop.record = replace(loop.record, leased_until=left_at + 30.0)  # a third of its last lease
    for later_s in (50.0, 150.0, 250.0, 7200.0):
        clusters.look(RUNNING, meter, left_at + later_s)
        until = loop.record.machines[0].started_at + 1000.0 * meter.bill(left_at + later_s + 200.0)
        assert until == pytest.approx(left_at + 200.0, abs=1)
    assert not meter.must_end(left_at + 7200.0)


def test_nothing_is_given_back_for_its_price_in_a_run_that_ends(
    loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = used(loop, clock, monkeypatch)
    stopping: Any = SimpleNamespace(**{**vars(RUNNING), "state": State.STOPPING})
    assert not clusters.look(stopping, Meter(cap_usd=0.5, usual_lease_s=900.0), 1700.0)
    assert loop.leaves_at == math.inf


def test_the_dearest_is_given_back_first_and_its_provider_has_one_lease(
    loop: Loop, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear, plan = Loop(), ClusterPlan("train", ("train",), "hosts", (RolePlan("worker", 1, (OWN,)),))
    rented(loop, PRICED, leased_until=9000.0)
    rented(dear, replace(PRICED, usd_per_hour=36.0), leased_until=9000.0)
    own = Loop(replace(new_record("run", plan, "home"), state=ClusterState.ACTIVE))
    loops = {"train": cast("Any", (own, loop, dear))}
    places = cast("MemberPlaces", SimpleNamespace())
    clusters = ClusterExecutor(loops, cast("Any", None), lambda _: None, places, clock)
    monkeypatch.setattr(ClusterConnection, "is_in_use", True)
    clusters.look(RUNNING, Meter(cap_usd=11.0 * 1.075 - 0.01, usual_lease_s=900.0), 1790.0)
    assert (loop.leaves_at, dear.leaves_at) == (math.inf, pytest.approx(1863, abs=4))
    assert loop.leases.lease_s == dear.leases.lease_s
    clusters.look(RUNNING, Meter(cap_usd=11.0, usual_lease_s=900.0), 1790.0)
    assert loop.leaves_at < math.inf


def test_what_is_only_kept_warm_is_given_back_before_the_cap_ends_a_run_that_goes_on_elsewhere(
    loop: Loop, clock: Clock
) -> None:
    rented(loop, PRICED, leased_until=9000.0)
    plan = ClusterPlan("more", ("more",), "hosts", (RolePlan("worker", 1, (OWN,)),))
    own = Loop(replace(new_record("run", plan, "home"), state=ClusterState.ACTIVE))
    loops = {"train": cast("Any", loop), "more": cast("Any", own)}
    places = cast("MemberPlaces", SimpleNamespace())
    clusters = ClusterExecutor(loops, cast("Any", None), lambda _: None, places, clock)
    done = SimpleNamespace(**{**vars(RUNS), "state": State.DONE})
    more = SimpleNamespace(**{**vars(RUNS), "name": "more"})
    running: Any = SimpleNamespace(**{**vars(RUNNING), "experiments": {"train": done, "more": more}})
    meter = Meter(cap_usd=1.0, usual_lease_s=900.0)
    assert not clusters.look(running, meter, 1600.0)
    assert not loop.is_over
    (line,) = (note.message for note in clusters.look(running, meter, 1725.0))
    assert line.startswith("train gives back the machines of lab: it may cost $1.00")
    assert not meter.must_end(1725.0)
    clusters.look(running, meter, 1730.0)
    assert loop.is_over


def test_saves_that_have_to_wait_for_each_other_are_set_aside(clusters: ClusterExecutor, loop: Loop) -> None:
    rented(loop, PRICED)
    meter = Meter(cap_usd=100.0)
    clusters.look(RUNNING, meter, 1010.0)
    assert meter.publishing.rounds == 3, "nine tasks, four at a time"


def test_what_is_renewed_first_after_a_takeover_lasts_no_longer_than_the_money(
    clusters: ClusterExecutor, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    rented(loop, PRICED)
    begun_with = []
    monkeypatch.setattr(loop, "start", lambda: begun_with.append(loop.leases.lease_s))
    clusters.costs.pay_by(Meter(cap_usd=1.0, usual_lease_s=900.0), 1700.0)
    clusters.open("run", cast("Any", None), {})
    assert begun_with == [pytest.approx(300.0 - SWITCH_OFF_S, abs=2)]


def test_only_what_is_rented_is_kept_warm() -> None:
    own, aws = (
        ClusterPlan("train", ("train",), "lab", (RolePlan("worker", 2, (rental,)),))
        for rental in (Rental(slots=2, is_rented=False), PRICED)
    )
    there = new_record("run", own, "home", keep_s=60.0)
    assert there.keepable_s == 0, "hosts would never be free of us"
    assert elsewhere(there, aws).keepable_s == 60, "what it moves to can be kept"
