"""How many machines of a cluster are needed, awaited and surplus."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from cluster_bench import Bench, let
from cluster_bench import record as recorded
from test_decide_cluster import NOW, A, kinds, nodes, plan, rented, step

from trainmaster.cluster.decision import ActionKind, Observation, Stage
from trainmaster.cluster.observed import Scaling
from trainmaster.cluster.record import ClusterState, Machine, new_record
from trainmaster.cluster.renting.plan import RolePlan


def scaled(workers: int | None, unused: frozenset[str] = frozenset()) -> Scaling:
    return Scaling(None if workers is None else {"worker": workers}, unused)


def test_the_newest_machines_on_which_nothing_works_are_to_spare() -> None:
    record = rented(4)
    stages = dict.fromkeys(("i-1", "i-2"), Stage.JOINED) | {"i-0": Stage.JOINED, "i-3": Stage.READY}
    unused = frozenset({"i-1", "i-2", "i-3"})

    def surplus(needed: int | None) -> list[str]:
        return [machine.id for machine in scaled(needed, unused).surplus(record, stages)]

    assert (surplus(None), surplus(4), surplus(3), surplus(2), surplus(0)) == (
        [],
        [],
        ["i-2"],
        ["i-2", "i-1"],
        ["i-2", "i-1"],
    )
    leaving = record.changed([replace(record.machines[2], is_leaving=True)])
    assert not scaled(3, unused).surplus(leaving, stages), "three stay"


def test_machines_are_awaited_until_as_many_have_joined_as_are_needed() -> None:
    record = rented(2)
    stages = {"i-0": Stage.JOINED, "i-1": Stage.READY}
    assert not Scaling().awaits(record, stages)
    assert not scaled(1).awaits(record, stages)
    assert scaled(2).awaits(record, stages)
    joined = dict.fromkeys(stages, Stage.JOINED)
    assert not scaled(9).awaits(record, joined), "there are no more seats"
    assert scaled(2).awaits(record.changed([replace(record.machines[1], is_leaving=True)]), joined)


#: Workers and servers that there are, and that are to be; what is asked for, and what goes once it is unused.
OF_ROLES = {
    "workers from servers": ((4, 2), (8, 1), {"worker": 4}, {"ps": 1}),
    "as many in all": ((8, 2), (6, 4), {"ps": 2}, {"worker": 2}),
    "fewer workers": ((8, 2), (4, 2), {}, {"worker": 4}),
}


@pytest.mark.parametrize("name", OF_ROLES)
def test_each_role_has_the_machines_that_it_needs(name: str) -> None:
    before, after, asked, spare = OF_ROLES[name]
    names = ("worker", "ps")
    roles = [RolePlan(role, max(two), (A,)) for role, *two in zip(names, before, after, strict=True)]
    machines = tuple(
        Machine(f"{role}-{n}", role, f"{role}-0", A, f"{role}-{n}", started_at=NOW)
        for role, count in zip(names, before, strict=True)
        for n in range(count)
    )
    record = replace(
        new_record("run", plan(*roles), "home"), state=ClusterState.ACTIVE, machines=machines, asked_at=NOW
    )
    stages = dict.fromkeys((m.id for m in machines), Stage.JOINED)
    scaling = Scaling(dict(zip(names, after, strict=True)))
    assert scaling.awaits(record, stages) == bool(asked)
    seen = Observation(nodes=nodes(record), stages=stages, is_formed=True)
    record = step(record, seen, scaling=scaling).record
    new = [m for m in record.live if not m.id]
    assert Counter(m.role for m in new) == asked
    record = record.changed([replace(m, id=m.seat, started_at=NOW) for m in new])
    stages |= dict.fromkeys((m.seat for m in new), Stage.JOINED)
    assert not scaling.awaits(record, stages)
    idle = replace(scaling, unused=frozenset(stages))
    assert Counter(m.role for m in idle.surplus(record, stages)) == spare


def test_a_cluster_grows_and_shrinks_with_what_is_needed() -> None:
    bench = Bench(recorded(2))
    loop = bench.loop
    loop.scaling.needed = {"worker": 1}
    loop.want()
    bench.until(lambda: loop.formation)
    assert (len(bench.provider.live), loop.awaits) == (1, False)
    loop.scaling.needed = {"worker": 2}
    assert loop.awaits
    bench.until(lambda: not loop.awaits)
    assert len(bench.provider.live) == 2
    loop.scaling.needed = {"worker": 1}
    head = loop.head_address
    others = frozenset(access.address for access in loop.accesses.values()) - {head}
    loop.unused(others)
    bench.until(lambda: loop.leaving)
    loop.idle(others)
    bench.until(lambda: len(bench.provider.live) == 1)
    assert loop.head_address == head


def test_a_cluster_that_needs_no_machine_has_none_and_is_formed_anew_when_it_does() -> None:
    bench = Bench(recorded(2))
    loop = bench.loop
    loop.want()
    first = bench.until(lambda: loop.formation)
    everybody = frozenset(access.address for access in loop.accesses.values())
    loop.scaling.needed = {"worker": 0}
    loop.unused(everybody)
    bench.until(lambda: loop.leaving)
    assert len(bench.provider.live) == 2, "until it is known that nothing was sent there"
    loop.idle(everybody)
    bench.until(lambda: not bench.provider.live)
    assert loop.formation is None
    assert not loop.losses()
    let(bench, 60.0)
    assert not bench.provider.live
    loop.scaling.needed = {"worker": 1}
    again = bench.until(lambda: loop.formation)
    assert (len(bench.provider.live), again.number) == (1, first.number + 1)
    assert again.head != first.head


def test_a_service_that_needs_fewer_machines_gives_one_back_when_nothing_works_there() -> None:
    record = rented(3)
    stages = dict.fromkeys(("i-0", "i-1", "i-2"), Stage.JOINED)
    seen = Observation(nodes=nodes(record), stages=stages, is_formed=True)
    record = step(record, seen).record
    assert step(record, seen, scaling=scaled(2)).record == record, "something works on all of them"
    spare = scaled(2, frozenset({"i-1"}))
    assert step(record, seen, scaling=replace(spare, needed=None)).record == record, (
        "nobody said that fewer are enough"
    )
    decision = step(record, seen, scaling=spare)
    assert decision.notes == ["node-2 (i-1) is given back: it is not needed now"]
    assert kinds(decision) == [ActionKind.DRAIN]
    record = decision.record
    assert not step(record, seen, scaling=spare).actions, "until it is known that nothing was sent there"
    decision = step(record, replace(seen, vacant=frozenset({"i-1"})), scaling=spare)
    assert {ActionKind.DROP, ActionKind.GIVE_BACK} <= set(kinds(decision))
    assert [m.id for m in decision.record.live] == ["i-0", "i-2"]
    assert not decision.losses
    kept = json.loads(decision.record.as_row().data)["machines"]
    assert [each.get("is_surplus") for each in kept] == [None, True, None]
    record = decision.record
    ended = replace(seen, nodes=nodes(record), stages={"i-0": Stage.JOINED, "i-2": Stage.JOINED})
    assert not step(record, ended, scaling=spare).actions
    again = step(record, ended, scaling=scaled(3))
    assert [m.seat for m in again.record.live if not m.id] == ["worker-1"], "asked for again"


def test_a_service_begins_with_as_many_machines_as_it_needs() -> None:
    record = new_record("run", plan(), "home")
    decision = step(record, scaling=scaled(1))
    (machine,) = decision.record.machines
    record = decision.record.changed([replace(machine, id="i-0", started_at=NOW)])
    formed = step(record, Observation(nodes=nodes(record), stages={"i-0": Stage.READY}), scaling=scaled(1))
    assert ActionKind.FORM in kinds(formed)
