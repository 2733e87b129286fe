"""`ClusterLoop`: one cluster from its first request to the last machine given back, in a thread of its own.

It observes, decides (`decide_cluster`), writes down and acts, as the run's loop does. Whatever blocks is done
by further threads (`Tasks`). The run's loop looks at what is public here and says what it needs; nothing else
is shared. The row is written before anything is done: a successor goes on where this one was killed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from trainmaster.control.clusters.decide_cluster import (
    Action,
    ActionKind,
    Patience,
    Refusal,
    Seen,
    Stage,
    decide_cluster,
)
from trainmaster.control.clusters.record import ClusterRecord, ClusterState, Machine
from trainmaster.control.clusters.tasks import Tasks
from trainmaster.control.clusters.watching import Watch
from trainmaster.control.clusters.workplace import is_there, key_of, words
from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState, ProviderError
from trainmaster.spec.errors import LeaseLostError, TrainmasterError, UsageError

if TYPE_CHECKING:
    from trainmaster.control.clusters.node_access import NodeAccess
    from trainmaster.control.clusters.workplace import Workplace
    from trainmaster.executors.ray_cluster import RayCluster
    from trainmaster.providers.base import Provider

log = logging.getLogger(__name__)

_TICK_S: Final = 0.25
#: How often a provider is asked for its machines: a cloud's API, and hosts that are logged in to.
_LOOK_S: Final = 2.0
#: After a request that could not be sent, and after a cluster that could not be formed.
_AGAIN_S: Final = 3.0
_FORM_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Formation:
    """Nodes that are one cluster.

    Attributes:
        number: of the time that it was formed.
        ray: it.
        head: id of the machine that it stands or falls with.
    """

    number: int
    ray: RayCluster
    head: str


@dataclass(slots=True)
class _Memory:
    """What this process knows of the machines; nothing of it needs to survive."""

    nodes: dict[str, Node] | None = None
    stages: dict[str, Stage] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    rented: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    ask_at: dict[str, float] = field(default_factory=dict)
    form_at: float = 0.0
    form_failures: int = 0
    looked_at: float = 0.0
    is_released: bool = False


class ClusterLoop:
    """Takes care of one cluster; see above. The methods and attributes are for the run's loop.

    Args:
        record: as written.
        provider: who rents.
        workplace: makes nodes of machines.
        write: puts a record into the store. Raises `LeaseLostError` when somebody else drives the run.
        patience: how long to wait for what.
        clock: gives Unix seconds.

    Attributes:
        record: the cluster as it is written now.
        formation: where gangs are sent to; None while there is none.
        accesses: nodes by machine id, those that have gone too: what they left may be read for a while.
        leaving: when the provider takes machines back, Unix seconds, by private address.
        fatal: why the run cannot go on; None while it can.
    """

    def __init__(
        self,
        record: ClusterRecord,
        provider: Provider,
        workplace: Workplace,
        write: Callable[[ClusterRecord], None],
        patience: Patience | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.record = record
        self.formation: Formation | None = None
        self.accesses: dict[str, NodeAccess] = {}
        self.leaving: dict[str, float] = {}
        self.fatal: Exception | None = None
        self.patience = patience or Patience()
        self._provider = provider
        self._workplace = workplace
        self._write = write
        self._clock = clock
        self._wake = threading.Event()
        self._tasks = Tasks(self._wake)
        self._watch = Watch(workplace, clock)
        self._memory = _Memory()
        self._wanted = self._ending = self._closed = False
        self._broken: int | None = None
        self._alive: frozenset[str] = frozenset()
        self._alive_at: dict[str, float] = {}
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # --- for the run's loop ------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"cluster {self.record.id}", daemon=True)
            self._thread.start()

    def want(self) -> None:
        """Experiments of it run: it must have its machines."""
        if not self._wanted:
            self._wanted = True
            self._wake.set()

    def end(self) -> None:
        """It is needed no more: give all back. `is_over` tells when that is done."""
        if not self._ending:
            self._ending = True
            self._wake.set()

    def broken(self, number: int) -> None:
        """The cluster of that formation answers no more, though its head does: make it anew."""
        self._broken = number
        self._wake.set()

    def alive(self, keys: frozenset[str]) -> None:
        """Which nodes Ray takes to be alive."""
        now = self._clock()
        for key in keys:
            self._alive_at[key] = now
        self._alive = keys

    def is_gone(self, key: str) -> bool:
        """Second witness for a node that Ray cannot reach: whether it is no more."""
        machine = next(
            (m for m in self.record.machines if m.id and key_of(m.id) == key and not m.is_over), None
        )
        if machine is None:
            return True
        node = (self._memory.nodes or {}).get(machine.id)
        return node is not None and node.state is NodeState.GONE

    def notes(self) -> list[str]:
        """What the user is to be told, since the last call."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._notes.get_nowait())
        return found

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self.record.state is ClusterState.ENDED

    @property
    def is_kept(self) -> bool:
        """Whether it waits, warm, for another run."""
        return self.record.state is ClusterState.KEPT

    @property
    def head_answers(self) -> bool:
        """Whether the machine that the cluster stands or falls with answers us by SSH."""
        formation = self.formation
        return formation is not None and formation.head not in self._watch.lost_since()

    def reopen(self) -> None:
        """Look after it again after `close`."""
        self._closed = False
        self._thread = None
        self.start()

    def keep(self, keep_s: float, now: float) -> bool:
        """Leave it warm for another run instead of ending it; False if that is not possible."""
        self.close()
        if self.formation is None or self.record.state is not ClusterState.ACTIVE:
            return False
        for machine in self.record.rented:
            node = (self._memory.nodes or {}).get(machine.id)
            if node is None or machine.is_leaving:
                return False
            try:
                self._watch.renew(machine.id, node, keep_s)
            except (TrainmasterError, OSError) as error:
                self._notes.put(f"{machine.seat} cannot be kept: {words(error)}")
                return False
        self._provider.renew(self.record.id, keep_s)
        self.record = replace(self.record, state=ClusterState.KEPT, kept_until=now + keep_s)
        self._write(self.record)
        return True

    def close(self) -> None:
        """Stop looking after it; machines live on as long as their leases do."""
        self._closed = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10.0)
        self._watch.close()

    # --- the loop ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not (self._closed or self.is_over):
                self._turn()
                self._wake.wait(_TICK_S)
                self._wake.clear()
        except Exception as error:
            self.fatal = error
            if isinstance(error, LeaseLostError):  # somebody else looks after it now
                self.record = replace(self.record, state=ClusterState.ENDED)
                return
            log.exception("the loop of cluster %s has ended", self.record.id)
            with contextlib.suppress(Exception):  # what cannot be looked after must not cost money
                self._provider.release(self.record.id)
            self.record = replace(self.record, state=ClusterState.ENDED)

    def _turn(self) -> None:
        now = self._clock()
        for name, result in self._tasks.collect():
            self._take(name, result, now)
        if self.formation is not None and self.formation.number == self._broken:
            self._dissolve()
        self._look(now)
        decision = decide_cluster(
            self.record,
            self._seen(now),
            now,
            wanted=self._wanted,
            ending=self._ending,
            patience=self.patience,
        )
        if decision.record != self.record:
            self._write(decision.record)
            self.record = decision.record
        self._memory.rented.clear()
        self._memory.refusals.clear()
        for note in decision.notes:
            self._notes.put(note)
        if decision.fatal and self.fatal is None:
            self.fatal = ProviderError(decision.fatal, "Nothing runs on; what was rented is given back.")
        if self.fatal is not None and not self._ending:
            return
        for action in decision.actions:
            self._perform(action, now)

    def _look(self, now: float) -> None:
        """Ask the provider, and the machines themselves."""
        memory = self._memory
        if self.record.state is ClusterState.PLANNED:
            return
        if now - memory.looked_at >= _LOOK_S and not self._tasks.is_running("look"):
            memory.looked_at = now
            self._tasks.start("look", lambda: self._provider.nodes(self.record.id))
        lease_s = self._workplace.lease_s
        if self.record.state is ClusterState.ENDING:
            return
        for machine in self.record.rented:
            access, node = self.accesses.get(machine.id), (memory.nodes or {}).get(machine.id)
            if access is not None and node is not None and self._watch.is_due(machine.id, now):
                probe = partial(self._watch.probe, access, node, lease_s)
                self._tasks.start(f"probe {machine.id}", probe)
        if self._watch.renewal_is_due(now, lease_s):
            self._tasks.start("renew", lambda: self._provider.renew(self.record.id, lease_s))

    def _seen(self, now: float) -> Seen:
        memory = self._memory
        estranged: frozenset[str] = frozenset()
        if self.formation is not None and self._alive:
            estranged = frozenset(
                node
                for node, stage in memory.stages.items()
                if stage is Stage.JOINED
                and key_of(node) not in self._alive
                and now - self._alive_at.get(key_of(node), now) > _AGAIN_S
            )
        return Seen(
            nodes=memory.nodes,
            stages=memory.stages,
            troubles=memory.troubles,
            lost_since=self._watch.lost_since(),
            estranged=estranged,
            rented=dict(memory.rented),
            refusals=dict(memory.refusals),
            renting=frozenset(self._tasks.running("rent "))
            | frozenset(token for token, at in memory.ask_at.items() if now < at),
            is_formed=self.formation is not None,
            is_forming=self._tasks.is_running("form")
            or bool(self._tasks.running("join "))
            or bool(self._tasks.running("drop "))
            or now < memory.form_at,
            is_released=memory.is_released,
        )

    # --- results ----------------------------------------------------------------------------------------

    def _take(self, name: str, result: object, now: float) -> None:
        kind, _, what = name.partition(" ")
        memory = self._memory
        match kind:
            case "look":
                if isinstance(result, list):
                    memory.nodes = {node.id: node for node in result}
                    self.leaving = {
                        node.private_address: node.leaves_at
                        for node in result
                        if node.state is NodeState.LEAVING and node.leaves_at is not None
                    }
                elif isinstance(result, Exception):
                    memory.nodes = None  # the provider is away: nobody knows
                    log.info("%s: %s", self.record.id, words(result))
            case "rent":
                self._take_rented(what, result, now)
            case "prepare":
                self._take_prepared(what, result)
            case "form":
                self._take_formed(result, now)
            case "join":
                for node in what.split():
                    memory.stages[node] = Stage.READY if isinstance(result, Exception) else Stage.JOINED
                if isinstance(result, Exception):
                    memory.form_at = now + _AGAIN_S
                    log.info("%s: %s does not join: %s", self.record.id, what, words(result))
            case "release":
                if isinstance(result, Exception):
                    memory.ask_at["release"] = now + _AGAIN_S
                    self._notes.put(f"machines could not be given back: {words(result)}; it is tried again")
                else:
                    memory.is_released = True
            case _:
                if isinstance(result, Exception):
                    log.info("%s: %s: %s", self.record.id, name, words(result))

    def _take_rented(self, token: str, result: object, now: float) -> None:
        memory = self._memory
        if isinstance(result, list):
            memory.rented[token] = tuple(node.id for node in result)
            memory.nodes = {**(memory.nodes or {}), **{node.id: node for node in result}}
            return
        assert isinstance(result, Exception)
        if isinstance(result, NoCapacityError):
            memory.refusals[token] = Refusal(result.zones, Exception.__str__(result))
        elif isinstance(result, UsageError):
            memory.refusals[token] = Refusal(reason=words(result), is_final=True)
        else:
            memory.ask_at[token] = now + _AGAIN_S
            self._notes.put(f"{self._provider.name}: {words(result)}; it is asked again")

    def _take_prepared(self, node: str, result: object) -> None:
        memory = self._memory
        if isinstance(result, Exception):
            if memory.stages.get(node) is Stage.PREPARING:
                memory.stages[node] = Stage.BROKEN
                memory.troubles[node] = words(result)
            return
        self.accesses[node] = cast("NodeAccess", result)
        memory.stages[node] = Stage.READY
        self._watch.begin(node)

    def _take_formed(self, result: object, now: float) -> None:
        memory = self._memory
        if isinstance(result, Exception):
            memory.form_at = now + _AGAIN_S
            memory.form_failures += 1
            self._notes.put(f"the nodes do not become one cluster: {words(result)}")
            if memory.form_failures >= _FORM_TRIES:
                self.fatal = result
            return
        formation, accesses = cast("tuple[Formation, list[NodeAccess]]", result)
        memory.form_failures = 0
        many = "1 node is" if len(accesses) == 1 else f"{len(accesses)} nodes are"
        waited_s = now - (self.record.asked_at or now)
        self._notes.put(
            f"{many} ready" + (f" after {waited_s:.1f} s" if self.record.waited_s is None else "")
        )
        for access in accesses:
            self.accesses[access.id] = access
            memory.stages[access.id] = Stage.JOINED
        self.formation = formation

    # --- acting -----------------------------------------------------------------------------------------

    def _perform(self, action: Action, now: float) -> None:
        memory = self._memory
        match action.kind:
            case ActionKind.RENT:
                self._rent(action.token)
            case ActionKind.PREPARE:
                for node in action.ids:
                    machine = self.record.machine(node)
                    there = (memory.nodes or {}).get(node)
                    if machine is not None and there is not None and is_there(there):
                        memory.stages[node] = Stage.PREPARING
                        self._tasks.start(f"prepare {node}", partial(self._workplace.prepare, machine, there))
            case ActionKind.FORM:
                self._tasks.start("form", lambda: self._form(action.ids))
            case ActionKind.JOIN:
                formation = self.formation
                if formation is not None:
                    self._tasks.start(
                        "join " + " ".join(action.ids), lambda: self._join(formation, action.ids)
                    )
            case ActionKind.DROP:
                self._drop(action.ids)
            case ActionKind.VACATE:
                pass  # the run's loop reads `leaving`
            case ActionKind.GIVE_BACK:
                for node in action.ids:
                    memory.stages.pop(node, None)
                self._tasks.start(
                    "back " + " ".join(action.ids),
                    lambda: self._provider.release(self.record.id, list(action.ids)),
                )
            case ActionKind.RELEASE:
                if now >= memory.ask_at.get("release", 0.0):
                    self._tasks.start("release", self._release)

    def _rent(self, token: str) -> None:
        machines = [m for m in self.record.live if m.token == token and not m.id]
        if not machines:
            return
        first, role = machines[0], next(r for r in self.record.plan.roles if r.role == machines[0].role)
        request = NodeRequest(
            role=role.role,
            count=sum(m.token == token for m in self.record.machines),
            instance_type=first.rental.instance_type,
            region=first.rental.region,
            zone=first.rental.zone,
            spot=first.rental.spot,
            token=token,
            labels=dict(role.labels),
            lease_s=self._workplace.lease_s,
            require=dict(role.require),
            slots=role.host_slots,
            gpus=role.host_gpus,
            disk_bytes=role.disk_bytes,
        )
        if self._tasks.start(f"rent {token}", lambda: self._provider.acquire(self.record.id, request)):
            self._tasks.start("kits", self._workplace.warm_up)

    def _members(self, ids: tuple[str, ...]) -> list[tuple[Machine, NodeAccess]]:
        found = []
        for node in ids:
            machine, access = self.record.machine(node), self.accesses.get(node)
            if machine is not None and access is not None:
                found.append((machine, access))
        return found

    def _form(self, ids: tuple[str, ...]) -> tuple[Formation, list[NodeAccess]]:
        members = self._members(ids)
        record = self.record
        accesses = self._workplace.give_keys(record, [access for _, access in members])
        ray = self._workplace.form(
            record, [(machine, access) for (machine, _), access in zip(members, accesses, strict=True)]
        )
        return Formation(record.formed, ray, members[0][0].id), accesses

    def _join(self, formation: Formation, ids: tuple[str, ...]) -> None:
        members = self._members(ids)
        everybody = [
            self.accesses[m.id]
            for m in self.record.rented
            if self._memory.stages.get(m.id) in (Stage.JOINED, Stage.READY) and m.id in self.accesses
        ]
        for access in self._workplace.give_keys(self.record, everybody):
            self.accesses[access.id] = access
        self._workplace.join(self.record, formation.ray, members)

    def _drop(self, ids: tuple[str, ...]) -> None:
        formation = self.formation
        for node in ids:
            machine = self.record.machine(node)
            is_over = machine is None or machine.is_over
            self._memory.stages[node] = Stage.BROKEN if is_over else Stage.READY
            if is_over:
                self._memory.stages.pop(node)
                self._watch.end(node)
        if formation is None:
            return
        if formation.head in ids:
            self._dissolve()
            return

        def drop() -> None:
            for node in ids:
                formation.ray.remove(key_of(node))

        self._tasks.start("drop " + " ".join(ids), drop)

    def _dissolve(self) -> None:
        """The head is lost, and with it all that the cluster knew: its nodes form another one."""
        formation, self.formation = self.formation, None
        if formation is None:
            return
        self.record = replace(self.record, formed=self.record.formed + 1)
        self._write(self.record)
        for node, stage in self._memory.stages.items():
            if stage is Stage.JOINED:
                self._memory.stages[node] = Stage.READY
        self._alive = frozenset()

        def stop() -> None:
            with contextlib.suppress(TrainmasterError):  # its head cannot be reached: the others are
                formation.ray.stop()

        self._tasks.start(f"drop formation-{formation.number}", stop)

    def _release(self) -> None:
        formation, self.formation = self.formation, None
        accesses = list(self.accesses.values())
        self._workplace.take_back(self.record, formation.ray if formation else None, accesses)
        self._provider.release(self.record.id)
        with contextlib.suppress(TrainmasterError):  # when they ended is for the bill
            self._memory.nodes = {node.id: node for node in self._provider.nodes(self.record.id)}
