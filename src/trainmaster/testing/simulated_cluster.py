"""Nodes of machines in simulated time: a Ray on them, logins, and a cluster's loop that is stepped.

`ClusterLoop`, `Observed`, `NodeWatch`, `Actuator` and `decide_cluster` are the real ones; what they
have threads do happens here at some later moment, one thing after the other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from trainmaster.cluster.cluster_loop import ClusterLoop
from trainmaster.cluster.node_provisioner import NodeProvisioner, key_of
from trainmaster.cluster.tasks import Tasks
from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase
from trainmaster.providers.dead_man_switch import end_command
from trainmaster.spec.errors import ExecutorError, ProviderError, TrainmasterError
from trainmaster.testing.simulated_executor import SimulatedExecutor
from trainmaster.testing.simulated_node import Ending, SimulatedGang, SimulatedNode

if TYPE_CHECKING:
    from trainmaster.cluster.decision import Patience
    from trainmaster.cluster.record import ClusterRecord, Machine
    from trainmaster.providers.base import Node, Provider
    from trainmaster.testing.simulated_cloud import Cloud
    from trainmaster.testing.simulated_host import Process
    from trainmaster.transport import Target

#: How long what the loop has others do takes at least and at most, seconds, by the first word of its name.
_TAKES_S: Final = {
    "look": (0.3, 1.0), "rent": (1.0, 5.0), "prepare": (5.0, 40.0), "form": (4.0, 12.0), "join": (3.0, 10.0),
    "probe": (0.1, 0.3), "renew": (0.3, 1.0), "packages": (0.1, 0.1), "drop": (0.5, 2.0), "back": (0.5, 2.0),
    "release": (5.0, 20.0), "search": (0.1, 0.5),
}  # fmt: skip
#: A machine that answers nobody is waited for so long.
_UNRESPONSIVE_S: Final = 9.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray names it."""

    key: str
    address: str
    machine: str


class SimulatedRay(SimulatedNode):
    """One Ray on some machines: gangs run on them, and end with them.

    Args:
        cloud: that the machines are of.
        slots: of each machine.
        nodes: the head first.
        behave, on_start: see `SimulatedNode`.
    """

    def __init__(
        self,
        cloud: Cloud,
        slots: int,
        nodes: Sequence[RayNode],
        behave: Callable[[GangRequest], list[Ending]],
        on_start: Callable[[str], None],
    ) -> None:
        super().__init__(cloud.world, slots, behave, on_start)
        self._cloud = cloud
        self._each = slots
        self.nodes = list(nodes)
        self.head = self.nodes[0]
        self.is_stopped = False
        self.places: dict[str, dict[str, RayNode]] = {}

    @property
    def is_lost(self) -> bool:
        """Its head is no more, or it was stopped."""
        return self.is_stopped or self._cloud.instances[self.head.machine].ended_at is not None

    def alive(self) -> list[RayNode]:
        """Nodes whose machines are there."""
        if self.is_lost:
            return []
        return [node for node in self.nodes if self._cloud.instances[node.machine].ended_at is None]

    def status(self, attempt: str) -> GangStatus:
        """With addresses; see `SimulatedNode.status`."""
        found = super().status(attempt)
        if found.phase in (Phase.UNKNOWN, Phase.QUEUED):
            return found
        addresses = {name: node.address for name, node in self.places.get(attempt, {}).items()}
        return replace(found, addresses=addresses)

    def grant(self) -> None:
        """Gangs are only placed on nodes that are there."""
        self.slots = self._each * len(self.alive())
        if self.slots:
            super().grant()

    def machine_ended(self, machine: str) -> None:
        """What ran there is lost, and with the head everything."""
        if machine == self.head.machine:
            for gang in self.gangs.values():
                gang.orphaned = True
            return
        self.nodes = [node for node in self.nodes if node.machine != machine]
        for gang in list(self.gangs.values()):
            here = [name for name, node in self._placed(gang).items() if node.machine == machine]
            if not here or gang.phase is Phase.EXITED:
                continue
            if gang.phase is not Phase.RUNNING:
                self._drop(gang)
                continue
            for member in gang.members:
                if member.name in here and member.ended_at is None:
                    member.lost, member.ended_at = True, self.world.now
            if all(member.ended_at is not None for member in gang.members):
                self._end(gang)
            else:
                self._changed(gang.request.attempt)
                self._terminate(gang, gang.request.grace_s)

    def stop_all(self) -> None:
        """`ray stop` on each of its nodes."""
        self.is_stopped = True
        for gang in self.gangs.values():
            gang.orphaned = True

    # --- as `RayCluster` ---------------------------------------------------------------------------

    def stop(self, attempt: str | Collection[str] = (), grace_s: float | None = None) -> None:
        """Of a gang, see `SimulatedNode.stop`; of all, see `RayCluster.stop`."""
        if isinstance(attempt, str) and grace_s is not None:
            super().stop(attempt, grace_s)
        else:
            self.stop_all()

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        """See `RayCluster.remove`."""
        found = next((node for node in self.nodes if node.key == key), None)
        if found is not None and not is_gone:
            self.machine_ended(found.machine)

    def _placed(self, gang: SimulatedGang) -> dict[str, RayNode]:
        attempt = gang.request.attempt
        if attempt not in self.places and gang.phase in (Phase.GRANTED, Phase.RUNNING):
            alive = self.alive()
            names = [member.name for member in gang.request.members]
            first = self.world.rng.randrange(len(alive)) if alive else 0
            self.places[attempt] = {
                name: alive[(first + number // self._each) % len(alive)] for number, name in enumerate(names)
            }
        return self.places.get(attempt, {})

    def _changed(self, attempt: str) -> None:
        gang = self.gangs.get(attempt)
        if gang is None or gang.phase is Phase.QUEUED:
            self.places.pop(attempt, None)
        else:
            self._placed(gang)
        super()._changed(attempt)


class RayClient(SimulatedExecutor):
    """A driver's executor of a formation; see `RayExecutor`."""

    def __init__(
        self,
        ray: SimulatedRay,
        step: Callable[[str], None],
        slow: float,
        wait: Callable[[RayClient], None],
    ) -> None:
        super().__init__(ray, step, slow)
        self._ray = ray
        self._wait = wait

    @property
    def is_lost(self) -> bool:
        """See `ClusterEngine.is_lost`."""
        return self._ray.is_lost

    def nodes(self) -> list[RayNode]:
        """See `ClusterEngine.nodes`."""
        return self._ray.alive()

    def waits(self) -> dict[str, str]:
        """There is room for everything here."""
        return {}

    def hurry(self) -> None:
        """Its answers take no time."""

    @property
    def has_news(self) -> bool:
        """Whether `changes` has something to tell."""
        return bool(self._news) and not self.is_lost

    def open(self, run: str, capacity: Capacity, env: Mapping[str, str], token: int = 0) -> None:
        """See `Executor.open`."""
        self._require()
        super().open(run, capacity, env, token)

    def submit(self, gangs: Sequence[GangRequest]) -> None:
        """See `Executor.submit`."""
        self._require()
        super().submit(gangs)

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """See `Executor.launch`."""
        self._require()
        super().launch(attempt, env)

    def observe(self, attempts: Sequence[str]) -> list[GangStatus]:
        """See `Executor.observe`."""
        self._require()
        return super().observe(attempts)

    def changes(self, timeout_s: float) -> list[GangStatus]:
        """See `Executor.changes`."""
        if timeout_s > 0:
            self._wait(self)
        return [] if self.is_lost else super().changes(0.0)

    def stop(self, attempt: str, grace_s: float) -> None:
        """See `Executor.stop`."""
        self._require()
        super().stop(attempt, grace_s)

    def forget(self, attempts: Sequence[str]) -> None:
        """See `Executor.forget`."""
        self._require()
        super().forget(attempts)

    def _require(self) -> None:
        if self._ray.is_lost:
            raise ExecutorError("the head does not answer")


@dataclass(slots=True)
class Login:
    """An SSH connection to a machine."""

    cloud: Cloud
    machine: str
    is_closed: bool = False

    def run(self, command: str, timeout_s: float = 0.0) -> SimpleNamespace:
        """See `Connection.run`."""
        answer = self.cloud.command(self.machine, command)
        if answer is None:
            raise ProviderError(f"{self.machine} does not answer")
        return answer

    def close(self) -> None:
        """Hang up."""
        self.is_closed = True


@dataclass(frozen=True, slots=True)
class Access:
    """What `NodeAccess` is, as far as it is needed."""

    id: str
    address: str
    cloud: Cloud
    target: Any

    def connect(self) -> Login:
        """See `NodeAccess.connect`."""
        if self.cloud.reaches(self.id) is None:
            raise ProviderError(f"{self.id} does not answer")
        return Login(self.cloud, self.id)


class SimulatedProvisioner:
    """Stands in for `NodeProvisioner`: makes nodes of machines, and finds the Ray of an earlier driver.

    Args:
        cloud: that they are of.
        rays: all Rays that there ever were, by cluster; they outlive their driver.
        make: a Ray of nodes.
        lease_s: of machines.
        memories: nodes by cluster and machine, as the home keeps them.
    """

    def __init__(
        self,
        cloud: Cloud,
        rays: dict[str, SimulatedRay],
        make: Callable[[Sequence[RayNode]], SimulatedRay],
        lease_s: float,
        memories: dict[str, dict[str, Node]],
    ) -> None:
        self._memories = memories
        self.lease_s = lease_s
        self.ssh = SimpleNamespace(connect=self._connect)
        self._cloud = cloud
        self._rays = rays
        self._has_switch = True
        self._make = make

    def _connect(self, target: Target) -> Login:
        found = next(one.id for one in self._cloud.instances.values() if one.address == target.address)
        return Access(found, target.address, self._cloud, target).connect()

    def head_of(self, record: ClusterRecord) -> str:
        """See `NodeProvisioner.head_of`."""
        ray = self._rays.get(record.id)
        rented = {machine.id for machine in record.rented}
        return ray.head.machine if ray is not None and ray.head.machine in rented else ""

    def warm_up(self) -> None:
        """See `NodeProvisioner.warm_up`."""

    def prepare(self, machine: Machine, node: Node) -> Access:
        """See `NodeProvisioner.prepare`: a machine without a switch is no node of ours."""
        access = Access(machine.id, node.private_address, self._cloud, SimpleNamespace(id=machine.id))
        self.set_switch(access.connect(), node, self.lease_s)
        self._memories.setdefault(node.cluster, {})[machine.id] = node
        return access

    def set_switch(self, connection: Login, node: Node, lease_s: float, *, patient: bool = False) -> None:
        """The real one."""
        NodeProvisioner.set_switch(cast("Any", self), cast("Any", connection), node, lease_s, patient=patient)

    def give_keys(self, _: ClusterRecord, accesses: list[Access]) -> list[Access]:
        """See `NodeProvisioner.give_keys`."""
        return accesses

    def form(self, record: ClusterRecord, nodes: Sequence[tuple[Machine, Access]]) -> SimulatedRay:
        """See `NodeProvisioner.form`: finds the one that is there, if its head is."""
        members = [RayNode(key_of(machine.id), access.address, machine.id) for machine, access in nodes]
        for member in members:
            Access(member.machine, member.address, self._cloud, None).connect()
        old = self._rays.get(record.id)
        if old is not None and not old.is_lost and old.head.machine in {m.machine for m in members}:
            known = {node.machine for node in old.nodes}
            old.nodes += [member for member in members if member.machine not in known]
            return old
        if old is not None:
            old.stop_all()
        ray = self._rays[record.id] = self._make(members)
        return ray

    def join(self, _: ClusterRecord, ray: SimulatedRay, nodes: Sequence[tuple[Machine, Access]]) -> None:
        """See `NodeProvisioner.join`."""
        for machine, access in nodes:
            access.connect()
            if ray.is_lost:
                raise ExecutorError("the head does not answer")
            if all(node.machine != machine.id for node in ray.nodes):
                ray.nodes.append(RayNode(key_of(machine.id), access.address, machine.id))
        ray.grant()

    def memory(self, cluster: str) -> SimpleNamespace:
        """See `NodeProvisioner.memory`: nodes that were made in this home."""
        known = self._memories.setdefault(cluster, {})
        return SimpleNamespace(
            nodes=lambda machines: {name: known[name] for name in machines if name in known},
            clear=known.clear,
        )

    def take_back(self, record: ClusterRecord, ray: SimulatedRay | None, *_: object) -> None:
        """See `NodeProvisioner.take_back`."""
        if (found := ray or self._rays.get(record.id)) is not None:
            found.stop_all()

    def end_machines(self, accesses: Sequence[Access], machines: Mapping[str, Node]) -> None:
        """See `NodeProvisioner.end_machines`."""
        for access in accesses:
            if access.id in machines and self._cloud.reaches(access.id) is not None:
                access.connect().run(end_command())

    def forget(self, *_: object) -> None:
        """See `NodeProvisioner.forget`."""


class _TurnIsOver(BaseException):
    """The loop would wait now."""


class _Wake:
    """What the loop waits for: the next step comes when it is due."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, _: float = 0.0) -> bool:
        raise _TurnIsOver


class SteppedTasks(Tasks):
    """`Tasks` whose work is done at some later moment of the simulation.

    Args:
        wake: of the loop; unused, as the loop is told by `ended`.
        process: that does it.
        step: called before and after: it may be killed there.
        ended: called when something has ended.
    """

    def __init__(
        self,
        wake: threading.Event,
        process: Process,
        step: Callable[[str], None],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(wake)
        self._process = process
        self._step = step
        self._ended = ended

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        kind = name.partition(" ")[0]
        least, most = _TAKES_S[kind]
        quiet = kind in ("probe", "look")

        def stepped() -> object:
            try:
                return work()
            except Exception as error:
                if not isinstance(error, TrainmasterError | OSError):
                    self._process.world.fail(f"{name}: {type(error).__name__}: {error}")
                elif not quiet:
                    self._process.world.note(f"{self._process.name}: {name}: {error}")
                raise

        def happen() -> None:
            if not quiet:
                self._step(f"before {name}")
            self._do(name, stepped)
            if not quiet:
                self._step(f"after {name}")
            if kind != "probe":  # the next turn is soon enough
                self._ended()

        self._process.after(self._process.world.rng.uniform(least, most), happen)


class SteppedLoop(ClusterLoop):
    """The real loop, a turn at a time.

    Args:
        record, provider, provisioner, write, patience: see `ClusterLoop`.
        process: that it is of.
        step: called at each write and effect.
        pause_s: how long it waits at most when nothing happens.
        wake: called when something has happened that the run's loop looks at.
    """

    def __init__(
        self,
        record: ClusterRecord,
        provider: Provider,
        provisioner: SimulatedProvisioner,
        write: Callable[[ClusterRecord], None],
        patience: Patience,
        *,
        process: Process,
        step: Callable[[str], None],
        pause_s: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(
            record,
            provider,
            cast("Any", provisioner),
            write,
            patience,
            tasks=lambda _: SteppedTasks(cast("Any", _Wake()), process, step, self._soon),
            **process.clocks_of(ClusterLoop),
        )
        self._process = process
        self._pause_s = pause_s
        self._tell_run = wake
        self._is_stepped = False
        self._next = 0
        self._wake = cast("Any", _Wake())

    @property
    def is_running(self) -> bool:
        """See `ClusterLoop.is_running`."""
        return self._is_stepped

    def start(self) -> None:
        """See `ClusterLoop.start`."""
        self._closed = False
        self._outage.paused()
        if not self._is_stepped:
            self._is_stepped = True
            self._soon()

    def want(self) -> None:
        """See `ClusterLoop.want`."""
        if not self._wanted:
            super().want()
            self._soon()

    def end(self) -> None:
        """See `ClusterLoop.end`."""
        if not self._ending:
            super().end()
            self._soon()

    def broken(self, number: int) -> None:
        """See `ClusterLoop.broken`."""
        super().broken(number)
        self._soon()

    def close(self) -> None:
        """See `ClusterLoop.close`."""
        self._closed = True
        self._is_stepped = False
        self._next += 1
        self._watch.close()

    def _soon(self, delay_s: float = 0.0) -> None:
        if self._is_stepped:
            self._next += 1
            number = self._next
            self._process.after(delay_s, lambda: self._step(number))

    def _step(self, number: int) -> None:
        if number != self._next or not self._is_stepped:
            return
        before = self.record
        try:
            self._run()
        except _TurnIsOver:
            if self.record is not before:
                self._tell_run()
            rng = self._process.world.rng
            busy = self._observed.formation is None and rng.random() < 0.5
            self._soon(2.0 if busy else self._pause_s() * rng.uniform(0.5, 1.0))
        else:
            self._is_stepped = False
            self._tell_run()


@contextmanager
def instant_calls(call: type) -> Iterator[None]:
    """In the body, connecting to a cluster takes no time."""
    begin = call.begin  # type: ignore[attr-defined]
    call.begin = lambda self: self._work()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        call.begin = begin  # type: ignore[attr-defined]


def is_ours(cluster: str, run: str) -> bool:
    """Whether a cluster's id is of a run.

    >>> is_ours("sim-1.train", "sim-1"), is_ours("sim-12.train", "sim-1")
    (True, False)
    """
    return re.fullmatch(rf"{re.escape(run)}\..*", cluster) is not None
