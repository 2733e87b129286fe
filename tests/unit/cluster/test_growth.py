"""After one ran out of memory: machines with more of it, the next size, within the budget."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cluster_bench import Bench

from trainmaster.advisor.market.memory_floor import Memory
from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.decide_cluster import decide_cluster
from trainmaster.cluster.decision import ActionKind, Observation, Stage, WaitLimits
from trainmaster.cluster.record import ClusterRecord, ClusterState, Machine, new_record
from trainmaster.cluster.renting.growth import grown, growth
from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.cluster.renting.plan_clusters import plan_clusters
from trainmaster.control.decide.budget import Meter
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.providers.base import Node, NodeState
from trainmaster.providers.inventory import InventoryHost
from trainmaster.spec import read_recipe

NOW = 1000.0
GIB = 2**30
SMALL = Rental("small", "us", "us-a", usd_per_hour=0.1, slots=2, memory_bytes=4 * GIB)
MIDDLE = Rental("middle", "us", "us-a", usd_per_hour=0.15, slots=2, memory_bytes=8 * GIB)
LARGE = Rental("large", "us", "us-a", usd_per_hour=0.4, slots=8, memory_bytes=16 * GIB)
ATTEMPT = "run/train/3/1"


def record(
    *rentals: Rental, larger: tuple[Rental, ...] = (MIDDLE, LARGE), on: Rental = SMALL
) -> ClusterRecord:
    role = RolePlan("worker", 2, rentals or (SMALL,), larger=larger)
    machines = tuple(
        Machine(f"worker-{n}", "worker", "worker-0", on, f"i-{n}", started_at=NOW) for n in range(2)
    )
    made = new_record("run", ClusterPlan("train", ("train",), "lab", (role,)), "home")
    return replace(made, state=ClusterState.ACTIVE, machines=machines, asked=1, asked_at=NOW)


def gang(*out: str) -> GangStatus:
    members = (MemberStatus(name, oom=name in out) for name in ("ps-0", "worker-0", "worker-1"))
    return GangStatus(ATTEMPT, Phase.EXITED, tuple(members))


def test_the_next_size_with_as_many_processes_on_it():
    found = growth(record(), ["i-1"], gang("worker-1"), "worker-1: killed: out of memory")
    assert found is not None
    assert [way.instance_type for way in found.after.rentals] == ["middle"], "large is 2.7 times as dear"
    assert found.after.larger == (LARGE,), "for the attempt after that"
    assert not found.is_planned
    assert found.words(ATTEMPT) == (
        "train/3 ran out of memory on small (us-a) with 4 GiB: its next attempt gets 2 x middle (us-a) with "
        "8 GiB, $0.15 per hour each instead of $0.1"
    )
    whole = grown(record().plan, [growth(record(), [], gang(), "").after])
    (second,) = whole.roles
    assert growth(replace(record(), plan=whole), ["i-1"], gang("worker-1"), "").is_planned, "asked once"
    third = growth(replace(record(on=MIDDLE), plan=whole), ["i-1"], gang("worker-1"), "")
    assert [way.instance_type for way in third.after.rentals] == ["large"]
    assert third.after.rentals[0].slots == 2, "more processes would need more memory again"
    assert second.count == 2


def test_what_is_planned_for_want_of_capacity_counts_by_its_own_memory():
    """It ran on what was not the first choice: that one is large enough to ask what comes after it."""
    found = growth(record(SMALL, MIDDLE, larger=(LARGE,), on=MIDDLE), ["i-0"], gang("worker-0"), "")
    assert [way.instance_type for way in found.after.rentals] == ["large"]


@pytest.mark.parametrize(
    "of", [record(larger=()), record(replace(SMALL, memory_bytes=0), on=replace(SMALL, memory_bytes=0))]
)
def test_nothing_follows_where_no_larger_one_is_known(of):
    assert growth(of, ["i-0"], gang("worker-0"), "") is None


def test_the_memory_of_a_gpu_is_another_one():
    t4 = replace(SMALL, gpus=1, gpu_memory_bytes=16 * GIB)
    more_main = replace(t4, instance_type="main", memory_bytes=64 * GIB, usd_per_hour=0.15)
    a10 = replace(t4, instance_type="a10", memory_bytes=16 * GIB, gpu_memory_bytes=24 * GIB, usd_per_hour=0.3)
    of = record(t4, larger=(more_main, a10), on=t4)
    cuda = "worker-0 ran out of memory: torch.OutOfMemoryError: CUDA out of memory"
    found = growth(of, ["i-0"], gang(), cuda)
    assert [way.instance_type for way in found.after.rentals] == ["a10"]
    assert "24 GiB per GPU" in found.words(ATTEMPT)
    found = growth(of, ["i-0"], gang("worker-0"), "worker-0: killed: out of memory")
    assert [way.instance_type for way in found.after.rentals] == ["main", "a10"]


def test_parameter_servers_with_machines_of_their_own_grow_alone():
    of = record()
    server = RolePlan("ps", 1, (SMALL,), larger=(MIDDLE,))
    of = replace(of, plan=replace(of.plan, roles=(*of.plan.roles, server)))
    assert growth(of, [], gang("ps-0"), "").after.role == "ps"
    assert growth(of, [], gang("ps-0", "worker-0"), "").after.role == "worker"


# --- the cluster ------------------------------------------------------------------------------------------


def bigger() -> ClusterRecord:
    of = record()
    return replace(of, plan=grown(of.plan, [growth(of, [], gang(), "").after]))


def decide(of: ClusterRecord, seen: Observation):
    return decide_cluster(of, seen, NOW, wanted=True, ending=False, patience=WaitLimits(60.0, 600.0))


def seen(of: ClusterRecord, **more: Any) -> Observation:
    nodes = {m.id: Node(m.id, "c", "worker", NodeState.READY, started_at=NOW) for m in of.rented}
    return Observation(
        nodes=nodes, known=nodes, is_formed=True, stages=dict.fromkeys(nodes, Stage.JOINED), **more
    )


def test_smaller_ones_go_when_nothing_works_on_them_and_larger_ones_are_asked_for_at_once():
    of = bigger()
    first = decide(of, seen(of))
    asked = [m for m in first.record.live if not m.id]
    assert [m.rental.instance_type for m in asked] == ["middle", "middle"]
    kinds = [action.kind for action in first.actions]
    assert ActionKind.GIVE_BACK not in kinds, "their members stop in order first"
    assert not first.record.failures, "the zone has done nothing wrong"
    there = replace(first.record, machines=first.record.machines[:2])
    second = decide(there, seen(there, vacant=frozenset({"i-1"})))
    back = [action.ids for action in second.actions if action.kind is ActionKind.GIVE_BACK]
    assert back == [("i-1",)]
    assert not [line for line in (*second.losses, *second.notes) if "i-1" in line], "why it goes was told"
    assert second.record.machine("i-0") in second.record.live
    kept = [json.loads(each.as_row().data)["machines"] for each in (of, second.record)]
    too_small = [[machine.get("is_too_small") for machine in each] for each in kept]
    assert too_small == [[None, None], [True, True, None, None]], "quotes do not count it as a loss"


def test_a_cluster_grows_in_its_loop():
    bench = Bench(replace(record(), state=ClusterState.PLANNED, machines=(), asked=0, asked_at=None))
    bench.loop.want()
    bench.until(lambda: bench.loop.formation)
    assert {m.rental.instance_type for m in bench.loop.record.rented} == {"small"}
    old = {m.id for m in bench.loop.record.rented}
    bench.loop.grow(growth(bench.loop.record, [], gang(), "").after)
    bench.turn()
    assert set(bench.loop.leaving) == {"10.0.0.0", "10.0.0.1"}
    assert set(bench.loop.leaving.values()) == {math.inf}
    bench.loop.idle(frozenset(bench.loop.leaving))
    bench.until(lambda: not old & bench.provider.live and bench.loop.formation)
    assert {m.rental.instance_type for m in bench.loop.record.rented} == {"middle"}
    assert not bench.loop.leaving
    assert bench.written[-1].plan.roles[0].rentals[0].instance_type == "middle", "a resume goes on with it"


# --- the budget ---------------------------------------------------------------------------------------------


def clusters(of: ClusterRecord, **limits: float) -> tuple[ClusterExecutor, list[RolePlan]]:
    taken: list[RolePlan] = []
    loop = SimpleNamespace(record=of, present={}, grow=taken.append, leaves_at=math.inf)
    places = SimpleNamespace(machines=lambda *_: [("worker-1", "i-1")])
    made = ClusterExecutor(
        {"train": cast("Any", loop)},
        cast("Any", None),
        lambda _: None,
        cast("Any", places),
        lambda: NOW,
        **limits,
    )
    return made, taken


def test_larger_machines_are_taken_once():
    made, taken = clusters(record())
    more = made.more_memory(gang("worker-1"), "")
    assert (more.is_allowed, more.is_planned) == (True, False)
    made.enlarge(gang("worker-1"), "")
    assert [role.rentals[0].instance_type for role in taken] == ["middle"]
    made, taken = clusters(bigger())
    assert made.more_memory(gang("worker-1"), "").is_planned
    made.enlarge(gang("worker-1"), "")
    assert not taken


def test_the_budget_per_hour_forbids_what_is_dearer():
    made, _ = clusters(record(), per_hour_usd=0.25)
    more = made.more_memory(gang("worker-1"), "")
    assert not more.is_allowed
    assert more.words == (
        "train/3 ran out of memory on small (us-a) with 4 GiB and is not tried again there: the next larger "
        "machine is middle (us-a) with 8 GiB at $0.15 per hour, and budget.per_hour of $0.25 does not allow "
        "$0.3"
    )
    assert clusters(record(), per_hour_usd=0.3)[0].more_memory(gang("worker-1"), "").is_allowed


@pytest.mark.parametrize(("cap_usd", "is_allowed"), [(0.03, False), (10.0, True)])
def test_what_is_left_of_the_budget_must_pay_for_them(cap_usd, is_allowed):
    made, _ = clusters(record())
    made.costs._meter = Meter(cap_usd=cap_usd)
    more = made.more_memory(gang("worker-1"), "")
    assert more.is_allowed is is_allowed
    assert is_allowed or "of budget.total no more than $0.0" in more.words


# --- hosts of one's own -------------------------------------------------------------------------------------


def test_hosts_are_asked_for_the_memory_that_was_measured(tmp_path):
    path = tmp_path / "recipe.yaml"
    gang = {"distributed": {"strategy": "allreduce", "workers": 4, "per_node": 2}, "framework": "plain"}
    path.write_text(
        json.dumps({"name": "job", "provider": "hosts", "experiments": {"a": {"command": "true", **gang}}})
    )
    hosts = tuple(InventoryHost(name=f"h{n}", address=f"10.0.0.{n}", slots=4) for n in range(3))
    available = AvailableOffers("hosts", hosts=hosts, source="hosts.yaml", memory={"a": Memory(4.6e9)})
    (plan,) = plan_clusters(read_recipe(path), available)
    assert plan.roles[0].memory_bytes == pytest.approx(10e9), "two on each, and 8 % stay free"
    (plan,) = plan_clusters(read_recipe(path), replace(available, memory={}))
    assert plan.roles[0].memory_bytes == 0
