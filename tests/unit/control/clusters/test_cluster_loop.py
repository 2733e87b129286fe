"""One cluster's loop, a turn at a time: a provider and a workplace that do what the test says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainmaster.control.clusters.cluster_loop import ClusterLoop
from trainmaster.control.clusters.decision import Patience
from trainmaster.control.clusters.plan import ClusterPlan, Rental, RolePlan
from trainmaster.control.clusters.record import ClusterRecord, ClusterState, new_record
from trainmaster.control.clusters.tasks import Tasks
from trainmaster.control.clusters.watching import Watch
from trainmaster.providers.base import (
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    ProviderError,
    ProviderGoneError,
)
from trainmaster.spec.errors import ExecutorError, LeaseLostError, UsageError

NOW = 1000.0


@dataclass
class Clock:
    now: float = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeProvider:
    """A cloud in memory: machines are READY at once."""

    clock: Clock
    machines: dict[str, Node] = field(default_factory=dict)
    by_token: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[Exception] = field(default_factory=list)
    given_back: list[object] = field(default_factory=list)
    kept_s: float = 0.0
    is_away: bool = False

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        if self.refusals:
            raise self.refusals.pop(0)
        if request.token not in self.by_token:
            names = [f"i-{len(self.machines) + n}" for n in range(request.count)]
            self.by_token[request.token] = names
            for name in names:
                address = f"10.0.0.{name[2:]}"
                self.machines[name] = Node(
                    name,
                    cluster,
                    request.role,
                    NodeState.READY,
                    address,
                    address,
                    instance_type="m4.large",
                    started_at=self.clock.now,
                )
        return [self.machines[name] for name in self.by_token[request.token]]

    def nodes(self, cluster: str) -> list[Node]:
        if self.is_away:
            raise ProviderError("away")
        return list(self.machines.values())

    def renew(self, cluster: str, lease_s: float) -> None:
        self.kept_s = lease_s

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        if self.is_away:
            raise ProviderError("away")
        self.given_back.append(ids)
        for name in list(self.machines) if ids is None else ids:
            self.end(name)

    def end(self, name: str, state: NodeState = NodeState.GONE) -> None:
        self.machines[name] = replace(
            self.machines[name], state=state, ended_at=self.clock.now, reason="ended"
        )

    @property
    def live(self) -> set[str]:
        return {name for name, node in self.machines.items() if node.state is NodeState.READY}


class FakeRay:
    """Which nodes it has, and whether two do something to it at once."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.nodes = [SimpleNamespace(key=key, address=f"10.0.0.{key[2:]}") for key in keys]
        self.stopped: set[str] | None = None
        self.removed: list[tuple[str, bool]] = []

    @property
    def head(self) -> Any:
        return self.nodes[0]

    def stop(self, gone: Sequence[str] = ()) -> None:
        self.stopped = set(gone)

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        self.removed.append((key, is_gone))


class FakeConnection:
    is_closed = False

    def __init__(self, answers: Callable[[], bool]) -> None:
        self._answers = answers

    def run(self, _: str, timeout_s: float = 0.0) -> None:
        if not self._answers():
            raise ProviderError("nobody answers")

    def close(self) -> None: ...


@dataclass
class FakeWorkplace:
    """Makes nodes of machines; `cannot` says of which it cannot, and why."""

    clock: Clock
    lease_s: float = 900.0
    switched: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    not_joining: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    form_errors: list[Exception] = field(default_factory=list)
    head: str = ""
    rays: list[FakeRay] = field(default_factory=list)
    forgotten: int = 0
    hold: threading.Event | None = None
    done: list[str] = field(default_factory=list)
    known: Callable[[list[str]], dict[str, Node] | None] = lambda _: None
    ssh: Any = field(default_factory=lambda: SimpleNamespace(connect=lambda _: FakeConnection(lambda: True)))

    def head_of(self, _: ClusterRecord) -> str:
        return self.head

    def warm_up(self) -> None: ...

    def prepare(self, machine: Any, node: Node) -> Any:
        if self.hold is not None:
            self.hold.wait(10)
        if machine.id in self.cannot:
            raise ProviderError(self.cannot[machine.id])
        return SimpleNamespace(
            id=machine.id,
            address=node.private_address,
            connect=lambda: FakeConnection(lambda: machine.id not in self.mute),
        )

    def give_keys(self, _: ClusterRecord, accesses: list[Any]) -> list[Any]:
        return accesses

    def form(self, _: ClusterRecord, nodes: list[Any]) -> FakeRay:
        if self.form_errors:
            raise self.form_errors.pop(0)
        self.rays.append(FakeRay([machine.id for machine, _ in nodes]))
        return self.rays[-1]

    def join(self, _: ClusterRecord, ray: FakeRay, nodes: list[Any]) -> None:
        if any(machine.id in self.not_joining for machine, _ in nodes):
            raise ExecutorError("no port is free")
        ray.nodes += [SimpleNamespace(key=m.id, address=a.address) for m, a in nodes]

    def set_switch(self, connection: FakeConnection, node: Node, lease_s: float) -> None:
        connection.run("renew")
        self.switched.setdefault(node.id, []).append((self.clock(), lease_s))

    def memory(self, _: str) -> Any:
        return SimpleNamespace(
            nodes=lambda machines: self.known(list(machines)), clear=lambda: self.done.append("forget nodes")
        )

    def take_back(self, *_: Any) -> None:
        self.done.append("take back")

    def forget(self, *_: Any) -> None:
        self.forgotten += 1


class Bench:
    """A loop that is turned by hand."""

    def __init__(self, record: ClusterRecord, head: str = "", patience: Patience | None = None) -> None:
        self.clock = Clock()
        self.patience = patience or Patience(20.0, 60.0)
        self.provider = FakeProvider(self.clock)
        self.workplace = FakeWorkplace(self.clock, head=head)
        self.written: list[ClusterRecord] = []
        self.loop = self.make(record)

    def make(self, record: ClusterRecord, tasks: Callable[[threading.Event], Tasks] = Tasks) -> ClusterLoop:
        return ClusterLoop(
            record,
            cast("Any", self.provider),
            cast("Any", self.workplace),
            self.written.append,
            self.patience,
            self.clock,
            tasks=tasks,
        )

    def turn(self) -> None:
        """One turn, and what it has begun."""
        self.loop._turn()
        deadline = time.monotonic() + 5
        while any(thread.name.split()[0] in KINDS for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def until(self, condition: Callable[[], Any], most_s: float = 100) -> Any:
        until = self.clock.now + most_s
        while not (found := condition()):
            assert self.clock.now < until, self.loop.record
            self.turn()
            self.clock.now += 0.5
            formation = self.loop.formation
            if formation is not None:
                live = self.provider.live | set()
                self.loop.alive(frozenset(n.key for n in formation.ray.nodes if n.key in live))
        return found


KINDS = {
    *("look", "rent", "prepare", "form", "join", "drop", "back", "release"),
    *("probe", "search", "renew", "kits"),
}
WORKER = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)


def record(count: int = 2, rental: Rental = WORKER) -> ClusterRecord:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", count, (rental,)),))
    return new_record("run", plan, "home")


@pytest.fixture
def bench() -> Bench:
    made = Bench(record())
    made.loop.want()
    return made


def test_from_nothing_to_a_cluster_and_back(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    assert [node.key for node in bench.workplace.rays[0].nodes] == ["i-0", "i-1"]
    assert bench.written[0].machines[0].token, "written before it was asked for"
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)
    assert (bench.provider.live, bench.workplace.forgotten) == (set(), 1)
    assert bench.written[-1].state is ClusterState.ENDED


def test_a_lost_head_has_the_others_form_anew(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.provider.end("i-0")
    second = bench.until(lambda: bench.loop.formation and bench.loop.formation.number == 1)
    assert second
    first = bench.workplace.rays[0]
    assert first.stopped == {"i-0"}, "who is no more is not asked"
    assert {node.key for node in bench.workplace.rays[1].nodes} == {"i-1", "i-2"}
    assert bench.loop.record.formed == 1


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
    ray = bench.workplace.rays[0]
    ray.nodes = [node for node in ray.nodes if node.key != "i-1"]  # its raylet died at once
    bench.until(lambda: any(node.key == "i-1" for node in ray.nodes), 60)
    assert ray.removed == [("i-1", False)]


def test_a_node_that_never_joins_is_replaced(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.workplace.not_joining = {"i-2"}
    bench.provider.end("i-1")
    bench.until(lambda: "i-3" in {node.key for node in bench.workplace.rays[0].nodes})
    assert bench.provider.live == {"i-0", "i-3"}
    assert any("no port is free" in note for note in bench.loop.notes())


def test_nodes_that_do_not_become_one_are_tried_for_a_while(bench: Bench) -> None:
    bench.workplace.form_errors = [ExecutorError("i-1 is cut off") for _ in range(8)]
    bench.until(lambda: bench.loop.formation)
    assert bench.loop.fatal is None
    assert sum("i-1 is cut off" in note for note in bench.loop.notes()) == 1, "said once"


def test_nodes_that_never_become_one_end_the_run(bench: Bench) -> None:
    bench.workplace.form_errors = [ExecutorError("no") for _ in range(1000)]
    bench.until(lambda: bench.loop.fatal, 200)


def test_one_that_answers_nobody_is_replaced(bench: Bench) -> None:
    bench.until(lambda: bench.loop.formation)
    bench.workplace.mute = {"i-1"}
    bench.until(lambda: "i-1" not in bench.provider.live)
    bench.until(lambda: "i-2" in {node.key for node in bench.workplace.rays[0].nodes})
    assert ("i-1", True) in bench.workplace.rays[0].removed, "nobody waits for its answer"


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
    bench.provider.refusals = [UsageError("not allowed")]
    bench.until(lambda: bench.loop.fatal)
    bench.loop.end()
    bench.until(lambda: bench.loop.is_over)


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
    assert bench.workplace.done == ["forget nodes", "take back"]


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
    bench.loop._sight.nodes = {"i-0": one}
    assert bench.loop.gone == frozenset()
    bench.loop._sight.nodes = {"i-0": one, "i-1": replace(other, state=NodeState.GONE)}
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
        record(), cast("Any", bench.provider), cast("Any", bench.workplace), refuse, clock=bench.clock
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
        record(), cast("Any", bench.provider), cast("Any", bench.workplace), fail, clock=bench.clock
    )
    loop.want()
    loop._run()
    assert isinstance(loop.fatal, ProviderError)


def test_more_machines_than_are_prepared_at_once_all_get_their_turn() -> None:
    bench = Bench(record(count=40))
    bench.loop.want()
    hold = bench.workplace.hold = threading.Event()
    deadline = time.monotonic() + 5
    while sum(t.name.startswith("prepare") for t in threading.enumerate()) < 32:
        assert time.monotonic() < deadline
        bench.loop._turn()
        time.sleep(0.01)
    hold.set()
    bench.until(lambda: bench.loop.formation)
    assert len(bench.workplace.rays[0].nodes) == 40


def test_tasks_of_one_kind_do_not_hold_up_others() -> None:
    tasks, hold = Tasks(threading.Event()), threading.Event()
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
    assert told[0].startswith("train waits for 2 x m4.large (worker-0, worker-1): there are none in us-a; ")
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
    bench.workplace.known = lambda machines: {name: bench.provider.machines[name] for name in machines}
    bench.workplace.head = "i-0"
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


def assert_alive(bench: Bench) -> None:
    """No machine's own switch has ended it: between two renewals there was never more than its lease."""
    for machine in bench.provider.live:
        times = bench.workplace.switched[machine]
        ends = [at + lease_s for at, lease_s in times]
        assert all(at <= end for (at, _), end in zip(times[1:], ends[:-1], strict=True)), (machine, times)
        assert bench.clock.now <= ends[-1], f"{machine} has ended itself"


def let(bench: Bench, seconds: float, step_s: float = 0.5) -> None:
    """Time passes."""
    until = bench.clock.now + seconds
    while bench.clock.now < until:
        bench.turn()
        bench.clock.now += step_s
        if bench.loop.formation is not None:
            keys = (node.key for node in bench.loop.formation.ray.nodes)
            bench.loop.alive(frozenset(key for key in keys if key in bench.provider.live))


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


class TimedTasks(Tasks):
    """Work takes its time by the bench's clock: as long as `takes_s` says, by the last word of its name."""

    def __init__(self, wake: threading.Event, clock: Clock, takes_s: Callable[[str], float]) -> None:
        super().__init__(wake)
        self._clock = clock
        self._takes_s = takes_s
        self._under_way: list[tuple[float, str, Callable[[], object]]] = []

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        self._under_way.append((self._clock() + self._takes_s(name.split()[-1]), name, work))

    def collect(self) -> list[tuple[str, object]]:
        over = [each for each in self._under_way if each[0] <= self._clock()]
        self._under_way = [each for each in self._under_way if each[0] > self._clock()]
        for _, name, work in over:
            self._do(name, work)
        return super().collect()


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
