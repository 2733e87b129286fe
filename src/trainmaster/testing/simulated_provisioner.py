"""`SimulatedProvisioner`: logins to machines in simulated time, and what makes nodes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from trainmaster.cluster.node_provisioner import NodeProvisioner, key_of
from trainmaster.dataclass import dataclass
from trainmaster.providers.dead_man_switch import end_command
from trainmaster.spec.errors import ExecutorError, ProviderError
from trainmaster.testing.simulated_ray import RayNode, SimulatedRay

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord, Machine
    from trainmaster.providers.base import Node
    from trainmaster.testing.simulated_cloud import SimulatedCloud
    from trainmaster.transport.base import Target


@dataclass(slots=True)
class SimulatedLogin:
    """An SSH connection to a machine."""

    cloud: SimulatedCloud
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
class SimulatedAccess:
    """What `NodeAccess` is, as far as it is needed."""

    id: str
    address: str
    cloud: SimulatedCloud
    target: Any
    was_silent: bool = False

    def connect(self) -> SimulatedLogin:
        """See `NodeAccess.connect`."""
        if self.cloud.reaches(self.id) is None:
            raise ProviderError(f"{self.id} does not answer")
        return SimulatedLogin(self.cloud, self.id)


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
        cloud: SimulatedCloud,
        rays: dict[str, SimulatedRay],
        make: Callable[[Sequence[RayNode]], SimulatedRay],
        lease_s: float,
        memories: dict[str, dict[str, Node]],
    ) -> None:
        self._memories = memories
        self.lease_s = lease_s
        self.transport = SimpleNamespace(connect=self._connect)
        self._cloud = cloud
        self._rays = rays
        self._has_switch = True
        self._make = make

    def _connect(self, target: Target) -> SimulatedLogin:
        found = next(one.id for one in self._cloud.instances.values() if one.address == target.address)
        return SimulatedAccess(found, target.address, self._cloud, target).connect()

    def head_of(self, record: ClusterRecord) -> str:
        """See `NodeProvisioner.head_of`."""
        ray = self._rays.get(record.id)
        rented = {machine.id for machine in record.rented}
        return ray.head.machine if ray is not None and ray.head.machine in rented else ""

    def warm_up(self) -> None:
        """See `NodeProvisioner.warm_up`."""

    def prepare(self, machine: Machine, node: Node) -> SimulatedAccess:
        """See `NodeProvisioner.prepare`: a machine without a switch is no node of ours."""
        access = SimulatedAccess(
            machine.id, node.private_address, self._cloud, SimpleNamespace(id=machine.id)
        )
        self.set_switch(access.connect(), node, self.lease_s)
        self._memories.setdefault(node.cluster, {})[machine.id] = node
        return access

    def set_switch(
        self, connection: SimulatedLogin, node: Node, lease_s: float, *, patient: bool = False
    ) -> None:
        """The real one."""
        NodeProvisioner.set_switch(cast("Any", self), cast("Any", connection), node, lease_s, patient=patient)

    def give_keys(self, _: ClusterRecord, accesses: list[SimulatedAccess]) -> list[SimulatedAccess]:
        """See `NodeProvisioner.give_keys`."""
        return accesses

    def form(self, record: ClusterRecord, nodes: Sequence[tuple[Machine, SimulatedAccess]]) -> SimulatedRay:
        """See `NodeProvisioner.form`: finds the one that is there, if its head is."""
        members = [RayNode(key_of(machine.id), access.address, machine.id) for machine, access in nodes]
        for member in members:
            SimulatedAccess(member.machine, member.address, self._cloud, None).connect()
        old = self._rays.get(record.id)
        if old is not None and not old.is_lost and old.head.machine in {m.machine for m in members}:
            known = {node.machine for node in old.nodes}
            old.nodes += [member for member in members if member.machine not in known]
            return old
        if old is not None:
            old.stop_all()
        ray = self._rays[record.id] = self._make(members)
        return ray

    def join(
        self, _: ClusterRecord, ray: SimulatedRay, nodes: Sequence[tuple[Machine, SimulatedAccess]]
    ) -> None:
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

    def end_machines(self, accesses: Sequence[SimulatedAccess], machines: Mapping[str, Node]) -> None:
        """See `NodeProvisioner.end_machines`."""
        for access in accesses:
            if access.id in machines and self._cloud.reaches(access.id) is not None:
                access.connect().run(end_command())

    def forget(self, *_: object) -> None:
        """See `NodeProvisioner.forget`."""
