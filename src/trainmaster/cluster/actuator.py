"""`Actuator`: does what was decided about a cluster, in threads of its own; all may be repeated."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from trainmaster.cluster.decision import Action, ActionKind, Stage
from trainmaster.cluster.node_access import NodeAccess
from trainmaster.cluster.node_provisioner import NodeProvisioner, is_there, key_of, words
from trainmaster.cluster.observed import Formation, ObservedCluster
from trainmaster.cluster.record import ClusterRecord, Machine
from trainmaster.cluster.renting.plan import RolePlan
from trainmaster.providers.base import Node, NodeRequest, Provider, ProviderGoneError
from trainmaster.spec.errors import TrainmasterError

#: A machine that is not gone yet is given back once more after so long.
_BACK_S: Final = 5.0
#: Of one kind, the first word of a name: fifty machines that log in must not hold up everything else.
_MOST_OF_A_KIND: Final = 32


class Actuator:
    """Acts for one cluster's loop.

    Args:
        provider: that rents them.
        provisioner: makes nodes of machines.
        tasks: where work is done; results reach `ObservedCluster`.
        observed: what is known.
        content: what is to be on its machines, by hash: they may start from an image that has it.
    """

    def __init__(
        self,
        provider: Provider,
        provisioner: NodeProvisioner,
        tasks: Threads,
        observed: ObservedCluster,
        content: tuple[str, ...] = (),
    ) -> None:
        self._content = content
        self._provider = provider
        self._provisioner = provisioner
        self._tasks = tasks
        self._observed = observed
        self._changing = threading.Lock()  # what changes a cluster is done one after the other
        self._back_at: dict[str, float] = {}

    def perform(self, record: ClusterRecord, action: Action, now: float) -> None:
        """Begin to do one thing."""
        match action.kind:
            case ActionKind.RENT:
                self._rent(record, action.token)
            case ActionKind.PREPARE:
                for machine in action.ids:
                    self._prepare(record, machine)
            case ActionKind.FORM:
                self._tasks.start("form", partial(self._form, record, action.ids))
            case ActionKind.JOIN:
                self._join(record, action.ids)
            case ActionKind.DROP:
                self._drop(record, action.ids)
            case ActionKind.DRAIN:
                pass  # what sends gangs there sees `ObservedCluster.leaving`
            case ActionKind.GIVE_BACK:
                self._give_back(record, list(action.ids), now)
            case ActionKind.RELEASE:
                if now >= self._observed.ask_at.get("release", 0.0):
                    self._tasks.start("release", partial(self._release, record))

    def dissolve(self, record: ClusterRecord) -> None:
        """The head is lost, and with it all that the cluster knew: its nodes are free to form another one."""
        formation, self._observed.formation = self._observed.formation, None
        if formation is None:
            return
        stages = self._observed.stages
        stages.update({m: Stage.READY for m, stage in stages.items() if stage is Stage.JOINED})
        here = {key_of(machine.id) for machine in record.rented}
        gone = {node.key for node in formation.cluster.nodes} - here

        def stop() -> None:
            # One out of reach is given up soon.
            with self._changing, contextlib.suppress(TrainmasterError):
                formation.cluster.stop(gone)

        self._tasks.start(f"drop formation-{formation.number}", stop)

    # --- private -----------------------------------------------------------------------------------

    def _give_back(self, record: ClusterRecord, ids: list[str], now: float) -> None:
        due = [name for name in ids if now >= self._back_at.get(name, 0.0)]
        release = partial(self._provider.release, record.id, due)
        if due and self._tasks.start(f"back {' '.join(due)}", release):
            self._back_at.update(dict.fromkeys(due, now + _BACK_S))

    def _rent(self, record: ClusterRecord, token: str) -> None:
        # Those that are not answered yet: some providers give all of them or none.
        others = dict.fromkeys(m.token for m in record.live if not m.id and m.token != token)
        beside = tuple(self._request(record, other) for other in others)
        request = replace(self._request(record, token), beside=beside)
        if self._tasks.start(f"rent {token}", partial(self._provider.acquire, record.id, request)):
            self._tasks.start("packages", self._provisioner.warm_up)

    def _request(self, record: ClusterRecord, token: str) -> NodeRequest:
        asked = [machine for machine in record.machines if machine.token == token]
        role = next(role for role in record.plan.roles if role.role == asked[0].role)
        return replace(
            role.request(asked[0].rental, token),
            count=len(asked),
            lease_s=self._provisioner.lease_s,
            least=_least(record, role, token),
            content=self._content,
        )

    def _prepare(self, record: ClusterRecord, name: str) -> None:
        machine, node = record.machine(name), self._observed.node(name)
        if machine is None or node is None or not is_there(node):
            return
        if self._tasks.start(f"prepare {name}", partial(self._provisioner.prepare, machine, node)):
            self._observed.stages[name] = Stage.PREPARING

    def _members(self, record: ClusterRecord, ids: tuple[str, ...]) -> list[tuple[Machine, NodeAccess]]:
        found = [(record.machine(name), self._observed.accesses.get(name)) for name in ids]
        return [(machine, access) for machine, access in found if machine is not None and access is not None]

    def _form(self, record: ClusterRecord, ids: tuple[str, ...]) -> tuple[Formation, list[NodeAccess]]:
        members = self._members(record, ids)
        machines = [machine for machine, _ in members]
        accesses = self._provisioner.give_keys(record, [access for _, access in members])
        with self._changing:
            cluster = self._provisioner.form(record, list(zip(machines, accesses, strict=True)))
        key = cluster.nodes[0].key
        first = next((m.id for m in machines if key_of(m.id) == key), machines[0].id)
        return Formation(record.formed, cluster, first if cluster.head else "", first), accesses

    def _join(self, record: ClusterRecord, ids: tuple[str, ...]) -> None:
        formation = self._observed.formation
        if formation is None:
            return

        def join() -> dict[str, str]:
            everybody = [
                self._observed.accesses[machine.id]
                for machine in record.rented
                if machine.id in self._observed.accesses
                and self._observed.stages.get(machine.id) in (Stage.JOINED, Stage.READY)
            ]
            for access in self._provisioner.give_keys(record, everybody):
                self._observed.accesses[access.id] = access
            members = self._members(record, ids)
            with self._changing:
                try:
                    self._provisioner.join(record, formation.cluster, members)
                except TrainmasterError as error:
                    if len(members) == 1:
                        return {ids[0]: words(error)}
                    return self._join_singly(record, formation, members)
            return {}

        self._tasks.start(f"join {' '.join(ids)}", join)

    def _join_singly(
        self, record: ClusterRecord, formation: Formation, members: list[tuple[Machine, NodeAccess]]
    ) -> dict[str, str]:
        """Find out which of several nodes cannot join; why, by machine id."""
        failed = {}
        for member in members:
            try:
                self._provisioner.join(record, formation.cluster, [member])
            except TrainmasterError as error:
                failed[member[0].id] = words(error)
        return failed

    def _drop(self, record: ClusterRecord, ids: tuple[str, ...]) -> None:
        gone = set()
        for name in ids:
            machine = record.machine(name)
            if machine is None or machine.is_over:
                gone.add(name)
                self._observed.stages.pop(name, None)
            else:  # it is well, but the engine has lost it: it joins again
                self._observed.stages[name] = Stage.READY
        formation = self._observed.formation
        if formation is None:
            return
        if formation.head in ids:
            self.dissolve(record)
            return

        def drop() -> None:
            with self._changing:
                for name in ids:
                    formation.cluster.remove(key_of(name), is_gone=name in gone)

        self._tasks.start(f"drop {' '.join(ids)}", drop)

    def _release(self, record: ClusterRecord) -> list[Node] | None:
        # Killed half-way, what is left of it may become a cluster again: it is to be looked at again.
        self._provisioner.memory(record.id).clear()
        formation, self._observed.formation = self._observed.formation, None
        accesses = list(self._observed.accesses.values())
        if not any(machine.rental.is_rented for machine in record.machines):
            # Hosts of one's own go on without us. Of rented ones nothing is asked, so nothing is waited for
            # that is still being done to a cluster: of machines that are gone it may take minutes.
            with self._changing:
                self._provisioner.take_back(
                    record, formation.cluster if formation else None, accesses, self._observed.nodes
                )
        try:
            self._provider.release(record.id)
        except ProviderGoneError:  # nothing of it is left
            pass
        except TrainmasterError:
            self._provisioner.end_machines(accesses, self._observed.nodes)
            raise
        self._provisioner.forget(record, accesses)
        try:
            return self._provider.nodes(record.id)  # when they ended is for the bill
        except TrainmasterError:
            return None


def _least(record: ClusterRecord, role: RolePlan, token: str) -> int:
    """How many of the machines of a request will do; 0: all of them."""
    others = sum(m.role == role.role and m.token != token and bool(m.id) for m in record.live)
    return max(1, role.needed - others) if role.least else 0


class Threads:
    """Work in daemon threads; results are collected by the loop that asked for them.

    Args:
        wake: is set whenever something has ended.
    """

    def __init__(self, wake: threading.Event) -> None:
        self._wake = wake
        self._running: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()

    def start(self, name: str, work: Callable[[], object]) -> bool:
        """Begin a piece of work; False if one of that name, or too many of its kind, are under way."""
        kind = name.partition(" ")[0]
        alike = sum(other.partition(" ")[0] == kind for other in self._running)
        if name in self._running or alike >= _MOST_OF_A_KIND:
            return False
        self._running.add(name)
        self._begin(name, work)
        return True

    def _begin(self, name: str, work: Callable[[], object]) -> None:
        threading.Thread(target=self._do, args=(name, work), name=name, daemon=True).start()

    def _do(self, name: str, work: Callable[[], object]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - what collects it knows what it means
            result = error
        self._done.put((name, result))
        self._wake.set()

    def is_running(self, name: str) -> bool:
        """Whether it is under way."""
        return name in self._running

    def running(self, prefix: str) -> set[str]:
        """What is under way of those whose names begin so, without that beginning."""
        return {name.removeprefix(prefix) for name in self._running if name.startswith(prefix)}

    def collect(self) -> list[tuple[str, object]]:
        """What has ended, with its result or exception."""
        found: list[tuple[str, object]] = []
        while True:
            try:
                name, result = self._done.get_nowait()
            except queue.Empty:
                return found
            self._running.discard(name)
            found.append((name, result))
