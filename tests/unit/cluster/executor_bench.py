"""Clusters of a test, and the executor that gangs are sent to."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from trainmaster.cluster.cluster_executor import ClusterExecutor
from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.member_places import MemberPlaces
from trainmaster.cluster.observed import Scaling
from trainmaster.executors.base import Capacity, GangRequest, GangStatus, MemberRequest, MemberStatus, Phase
from trainmaster.spec.errors import ExecutorError, LeaseLostError

ONE, TWO = "run/train/0/1", "run/train/1/1"


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeLoop:
    """A cluster whose formation and notices the test sets."""

    formation: Any = None
    leaving: dict[str, float] = field(default_factory=dict)
    leaves_at: float = math.inf
    gone: frozenset[str] = frozenset()
    is_sought: bool = False
    head_answers: bool = True
    head_address: str = "10.0.0.1"
    first_address: str = "10.0.0.1"
    accesses: dict[str, Any] = field(default_factory=dict)
    told_broken: list[int] = field(default_factory=list)
    told_idle: frozenset[str] = frozenset()
    told_spare: frozenset[str] = frozenset()
    befell: dict[str, str] = field(default_factory=dict)
    used_up: dict[str, Any] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling)
    awaits: bool = False
    wanted: bool = False
    record: Any = field(default_factory=lambda: SimpleNamespace(id="c", machines=(), provider="lab"))
    said: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    fatal: Exception | None = None
    is_running: bool = True
    is_over: bool = False
    ended: bool = False
    present = ClusterLoop.present

    def start(self) -> None:
        self.is_running = True

    def end(self) -> None:
        self.ended = True

    def close(self) -> None: ...
    def want(self) -> None:
        self.wanted = True

    def ends_on(self, machines):
        self.ends_on_machines = list(machines)

    def unwant(self) -> None:
        self.wanted = False

    def alive(self, keys: frozenset[str]) -> None: ...

    def troubles(self, since: float) -> dict[str, str]:
        return self.befell

    def overused(self) -> dict[str, Any]:
        return self.used_up

    def notes(self) -> list[str]:
        said, self.said = self.said, []
        return said

    def losses(self) -> list[str]:
        lost, self.lost = self.lost, []
        return lost

    def idle(self, addresses: frozenset[str]) -> None:
        self.told_idle = addresses

    def unused(self, addresses: frozenset[str]) -> None:
        self.told_spare = addresses

    def broken(self, number: int) -> None:
        self.told_broken.append(number)

    def form(self, number: int) -> None:
        self.formation = SimpleNamespace(number=number)


@dataclass
class FakeCluster:
    """What runs on a cluster, whatever is connected to it."""

    gangs: dict[str, GangStatus] = field(default_factory=dict)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=lambda: {"a": "10.0.0.1", "b": "10.0.0.2"})
    is_cut: bool = False
    is_slow: threading.Event | None = None
    is_lost: bool = False
    answers_in_s: float = 0.0
    newest_token: int = 0

    def runs(self, attempt: str, address: str = "10.0.0.2") -> None:
        self.gangs[attempt] = GangStatus(
            attempt,
            Phase.RUNNING,
            (MemberStatus("worker-0", 7, 1001.0),),
            started_at=1001.0,
            addresses={"worker-0": address},
        )

    def runs_on_two(self, attempt: str) -> None:
        self.gangs[attempt] = GangStatus(
            attempt,
            Phase.RUNNING,
            (MemberStatus("worker-0", 7, 1001.0), MemberStatus("worker-1", 8, 1001.0)),
            started_at=1001.0,
            addresses={"worker-0": "10.0.0.1", "worker-1": "10.0.0.2"},
        )

    def fails_on_two(self, attempt: str, phase: Phase = Phase.EXITED, **other: Any) -> None:
        """The first member fails by itself, and the other one is stopped because of that."""
        known = self.gangs[attempt]
        first = replace(known.members[0], ended_at=1009.0, exit_code=1)
        how = other or {"exit_code": 143, "stopped": True}
        second = known.members[1]
        if phase is Phase.EXITED:
            second = replace(second, ended_at=1010.0, **how)
        self.gangs[attempt] = replace(known, phase=phase, members=(first, second), ended_at=1010.0)

    def goes_on_without(self, attempt: str, **how: Any) -> None:
        """The second member has ended, and the first one needs no others."""
        known = self.gangs[attempt]
        second = replace(known.members[1], ended_at=1009.0, **how)
        self.gangs[attempt] = replace(known, members=(known.members[0], second))

    def fails_later(self, attempt: str) -> None:
        """So does the first member, by itself."""
        known = self.gangs[attempt]
        first = replace(known.members[0], ended_at=1060.0, exit_code=1)
        members = (first, known.members[1])
        self.gangs[attempt] = replace(known, phase=Phase.EXITED, members=members, ended_at=1060.0)

    def exits(self, attempt: str) -> None:
        known = self.gangs[attempt]
        members = tuple(replace(m, ended_at=1009.0, exit_code=0) for m in known.members)
        self.gangs[attempt] = replace(known, phase=Phase.EXITED, members=members, ended_at=1009.0)


class FakeExecutor:
    """A connection to it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._told: dict[str, GangStatus] = {}
        self._patience_s = 30.0

    def hurry(self) -> None:
        self._patience_s = 8.0

    @property
    def is_lost(self) -> bool:
        return self._cluster.is_lost

    def nodes(self) -> list[Any]:
        return [SimpleNamespace(key=key, address=at) for key, at in self._cluster.nodes.items()]

    def waits(self) -> dict[str, str]:
        return {}

    def _reach(self, *what: Any) -> None:
        if self._cluster.is_cut:
            raise ExecutorError("cut off")
        self._cluster.asked.append(what)

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        if token < self._cluster.newest_token:
            raise LeaseLostError.of(run)
        if self._cluster.is_slow is not None:
            self._cluster.is_slow.wait(10)
        self._reach("open", run)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        self._reach("submit", *(gang.attempt for gang in gangs))
        for gang in gangs:
            self._cluster.gangs.setdefault(gang.attempt, GangStatus(gang.attempt, Phase.QUEUED))

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        self._reach("launch", attempt)

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        self._reach("observe", *attempts)
        if self._cluster.answers_in_s > self._patience_s:
            raise ExecutorError("no answer")
        return [self._cluster.gangs.get(each, GangStatus(each, Phase.UNKNOWN)) for each in attempts]

    def changes(self, timeout_s: float) -> list[GangStatus]:
        self._reach("changes")
        new = [status for status in self._cluster.gangs.values() if self._told.get(status.attempt) != status]
        self._told.update({status.attempt: status for status in new})
        return new

    def output(self) -> list[tuple[str, str]]:
        return []

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        self._reach("stop", attempt, grace_s)

    def forget(self, attempts: Sequence[str]) -> None:
        self._reach("forget", *attempts)

    def close(self) -> None: ...


class FakeFailureDetector:
    """Machines answer as the test says."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, str]] = set()
        self.answered: dict[str, bool] = {}
        self.forgotten: list[str] = []

    def suspect(self, attempt: str, nodes: Iterable[Any]) -> None:
        self.asked |= {(attempt, node.id) for node in nodes}

    def answers(self, attempt: str, node: str) -> bool | None:
        return self.answered.get(node) if (attempt, node) in self.asked else None

    def forget(self, attempt: str) -> None:
        self.asked = {key for key in self.asked if key[0] != attempt}
        self.forgotten.append(attempt)


@dataclass
class Bench:
    clock: Clock
    loop: FakeLoop
    clusters: dict[int, FakeCluster]
    cluster_executor: ClusterExecutor
    place: Path
    detector: FakeFailureDetector

    def rent(self, machine: str, address: str) -> None:
        """A machine becomes a node; an earlier one with its address stays known."""
        self.loop.record.machines += (SimpleNamespace(id=machine),)
        self.loop.accesses[machine] = SimpleNamespace(id=machine, address=address)

    def where(self, attempt: str = ONE) -> list[tuple[str, str]]:
        """Members and the ids of their nodes."""
        return [(name, node.id) for name, node in self.cluster_executor.nodes_of(attempt)]

    def succeeded(self) -> Bench:
        """Its driver was killed, and the next one knows what is written and what the cluster says."""
        found = made(self.clock, self.loop, self.clusters, self.place)
        found.loop.formation = None
        found.loop.form(0)
        found.until(lambda: found.cluster_executor.find([ONE]))
        found.cluster_executor.observe([ONE])
        return found

    def until(self, condition: Callable[[], bool]) -> list[GangStatus]:
        """Listen until something is so; connecting takes a thread's time."""
        found = []
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline
            found += self.cluster_executor.changes(0.01)
        return found + self.cluster_executor.changes(0.0)

    def pass_time(self, seconds: float) -> list[GangStatus]:
        """What changes within that time, the last of each attempt."""
        found: dict[str, GangStatus] = {}
        for _ in range(int(seconds * 4)):
            self.clock.now += 0.25
            found |= {status.attempt: status for status in self.cluster_executor.changes(0.01)}
        return list(found.values())

    def asked(self, *what: Any, number: int = 0) -> bool:
        return what in self.clusters[number].asked


def made(clock: Clock, loop: FakeLoop, clusters: dict[int, FakeCluster], place: Path) -> Bench:
    detector = FakeFailureDetector()
    cluster_executor = ClusterExecutor(
        {"train": cast("Any", loop)},
        lambda _, formation: cast("Any", FakeExecutor(clusters[formation.number])),
        lambda _: None,
        MemberPlaces(place.joinpath),
        clock,
        detector=detector,
    )
    cluster_executor.open("run", Capacity(2), {}, 3)
    return Bench(clock, loop, clusters, cluster_executor, place, detector)


def gang(attempt: str = ONE) -> GangRequest:
    return GangRequest(attempt, "/d", (MemberRequest("worker-0", "true", "/"),), 1, "g", 2, grace_s=9.0)


def phases(statuses: Sequence[GangStatus]) -> dict[str, Phase]:
    return {status.attempt: status.phase for status in statuses}


def running(bench: Bench, attempt: str = ONE, address: str = "10.0.0.2") -> None:
    bench.loop.form(0)
    bench.cluster_executor.submit([gang(attempt)])
    bench.until(lambda: bench.asked("submit", attempt))
    bench.clusters[0].runs(attempt, address)
    assert phases(bench.cluster_executor.changes(0.0))[attempt] is Phase.RUNNING
