"""One cluster's loop, a turn at a time: a provider and a workplace that do what the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from trainmaster.cluster.actuator import Threads
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.decision import WaitLimits
from trainmaster.cluster.record import ClusterRecord, new_record
from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan
from trainmaster.providers.base import Node, NodeRequest, NodeState
from trainmaster.spec.errors import ExecutorError, ProviderError
from trainmaster.testing.waits import until

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
    #: Answers every request; credentials that have expired, say.
    refuses: Exception | None = None

    def _check(self) -> None:
        if self.is_away:
            raise ProviderError("away")
        if self.refuses is not None:
            raise self.refuses

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        self._check()
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
        self._check()
        return list(self.machines.values())

    def renew(self, cluster: str, lease_s: float) -> None:
        self._check()
        self.kept_s = lease_s

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        self._check()
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
    """Makes nodes of machines; `cannot` says of which it cannot, and why; `late` were silent at first."""

    clock: Clock
    lease_s: float = 900.0
    switched: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    cannot: dict[str, str] = field(default_factory=dict)
    not_joining: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    unresponsive: set[str] = field(default_factory=set)
    form_errors: list[Exception] = field(default_factory=list)
    head: str = ""
    rays: list[FakeRay] = field(default_factory=list)
    forgotten: int = 0
    hold: threading.Event | None = None
    done: list[str] = field(default_factory=list)
    known: Callable[[list[str]], dict[str, Node]] = lambda _: {}
    transport: Any = field(
        default_factory=lambda: SimpleNamespace(connect=lambda _: FakeConnection(lambda: True))
    )

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
            was_silent=machine.id in self.late,
            connect=lambda: self._connect(machine.id),
        )

    def _connect(self, machine: str) -> FakeConnection:
        if machine in self.unresponsive:
            raise ProviderError("nobody answers")
        return FakeConnection(lambda: machine not in self.unresponsive)

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

    def end_machines(self, accesses: Sequence[Any], _: Any) -> None:
        self.done += [f"end {access.id}" for access in accesses]

    def forget(self, *_: Any) -> None:
        self.forgotten += 1


class Bench:
    """A loop that is turned by hand."""

    def __init__(self, record: ClusterRecord, head: str = "", patience: WaitLimits | None = None) -> None:
        self.clock = Clock()
        self.patience = patience or WaitLimits(20.0, 60.0)
        self.provider = FakeProvider(self.clock)
        self.provisioner = FakeWorkplace(self.clock, head=head)
        self.written: list[ClusterRecord] = []
        self.loop = self.make(record)

    def make(
        self, record: ClusterRecord, tasks: Callable[[threading.Event], Threads] = Threads
    ) -> ClusterLoop:
        return ClusterLoop(
            record,
            cast("Any", self.provider),
            cast("Any", self.provisioner),
            self.written.append,
            self.patience,
            self.clock,
            self.clock,
            tasks,
        )

    def turn(self) -> None:
        """One turn, and what it has begun."""
        self.loop._turn()
        until(
            lambda: not any(thread.name.split()[0] in KINDS for thread in threading.enumerate()),
            "all that the turn has begun is done",
        )

    def until(self, condition: Callable[[], Any], most_s: float = 100) -> Any:
        until = self.clock.now + most_s
        while not (found := condition()):
            assert self.clock.now < until, self.loop.record
            self.turn()
            self.clock.now += 0.5
            formation = self.loop.formation
            if formation is not None:
                live = self.provider.live
                self.loop.alive(frozenset(n.key for n in formation.cluster.nodes if n.key in live))
        return found


KINDS = {
    *("look", "rent", "prepare", "form", "join", "drop", "back", "release"),
    *("probe", "search", "renew", "packages"),
}
WORKER = Rental("m4.large", "us", "us-a", usd_per_hour=0.36)


def record(count: int = 2, rental: Rental = WORKER) -> ClusterRecord:
    plan = ClusterPlan("train", ("train",), "lab", (RolePlan("worker", count, (rental,)),))
    return new_record("run", plan, "home")


def assert_alive(bench: Bench) -> None:
    """No machine's own switch has ended it: between two renewals there was never more than its lease."""
    for machine in bench.provider.live:
        times = bench.provisioner.switched[machine]
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
            keys = (node.key for node in bench.loop.formation.cluster.nodes)
            bench.loop.alive(frozenset(keys) & bench.provider.live)


class TimedTasks(Threads):
    """Work takes its time by the bench's clock: as long as `takes_s` says, by the last word of its name."""

    def __init__(self, wake: threading.Event, clock: Clock, takes_s: Callable[[str], float]) -> None:
        super().__init__(wake)
        self._clock = clock
        self._takes_s = takes_s
        self._under_way: list[tuple[float, str, Callable[[], object]]] = []

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        if name == "look":  # what it says was true when it was asked
            nodes = work()
            self._under_way.append((self._clock() + self._takes_s(name), name, lambda: nodes))
            return
        self._under_way.append((self._clock() + self._takes_s(name.split()[-1]), name, work))

    def collect(self) -> list[tuple[str, object]]:
        over = [each for each in self._under_way if each[0] <= self._clock()]
        self._under_way = [each for each in self._under_way if each[0] > self._clock()]
        for _, name, work in over:
            self._do(name, work)
        return super().collect()
