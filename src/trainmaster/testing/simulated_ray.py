"""`SimulatedRay`: a Ray on machines in simulated time, and `RayClient`, the executor of a driver on it.

Members of a gang react to each other: when a machine is lost, those on others end within half a minute, with
an exit code, by a signal, or well if they were done; or they hang. The loss is noticed at some time
meanwhile, or it is not: a machine that is switched off ends its processes first, and tells how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.gang_ends import REACTION_S
from trainmaster.dataclass import dataclass
from trainmaster.executors.base import Capacity, GangRequest, GangStatus, Phase
from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.spec.errors import ExecutorError
from trainmaster.testing.simulated_executor import SimulatedExecutor
from trainmaster.testing.simulated_node import Ending, SimulatedGang, SimulatedMember, SimulatedNode

if TYPE_CHECKING:
    from trainmaster.testing.simulated_cloud import SimulatedCloud


#: So soon at least and so late at most a loss is noticed.
NOTICED_S: Final = (0.5, 6.0)
#: Part of the machines that end their processes before they are gone.
_SWITCHED_OFF: Final = 0.3
#: How a member ends whose peer was lost; None hangs.
_REACTIONS: Final = (Ending(0.0, 1), Ending(0.0, None, 6), Ending(0.0, 0), None)


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
        cloud: SimulatedCloud,
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
        self.blameless: set[str] = set()

    @property
    def is_lost(self) -> bool:
        """Its head is gone, or it was stopped."""
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
            here = {name for name, node in self._placed(gang).items() if node.machine == machine}
            if not here or gang.phase is Phase.EXITED:
                continue
            if gang.phase is not Phase.RUNNING:
                self._drop(gang)
                continue
            gone = [member for member in gang.members if member.name in here and member.ended_at is None]
            if not gone:
                continue
            self._react(gang, here)
            if self.world.chance(_SWITCHED_OFF):
                for member in gone:
                    self._exit(gang, member, Ending(0.0, None, 15))
                continue
            for member in gone:
                member.is_gone = True
            self.world.after(
                self.world.rng.uniform(*NOTICED_S),
                lambda gang=gang, gone=gone: self._notice(gang, gone),  # type: ignore[misc]
            )

    def _react(self, gang: SimulatedGang, here: set[str]) -> None:
        """Members on other machines see that they have lost some."""
        if not any(member.ended_at is not None and member.exit_code != 0 for member in gang.members):
            self.blameless.add(gang.request.attempt)
        for member in gang.members:
            ending = self.world.rng.choice(_REACTIONS)
            if member.name not in here and member.ended_at is None and ending is not None:
                self.world.after(
                    self.world.rng.uniform(0, REACTION_S),
                    lambda member=member, ending=ending: self._exit(gang, member, ending),  # type: ignore[misc]
                )

    def _notice(self, gang: SimulatedGang, gone: Sequence[SimulatedMember]) -> None:
        """It is known that a machine is gone."""
        if gang.orphaned or gang.phase is not Phase.RUNNING:
            return
        for member in gone:
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
    """A driver's executor of a formation; see `NodesExecutor`."""

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
        """See `OneClusterExecutor.is_lost`."""
        return self._ray.is_lost

    def nodes(self) -> list[LiveNode]:
        """See `OneClusterExecutor.nodes`."""
        return [LiveNode(each.key, each.machine, each.address, 0.0, 0, {}) for each in self._ray.alive()]

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

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """See `Executor.stop`."""
        self._require()
        super().stop(attempt, grace_s, stacks=stacks)

    def forget(self, attempts: Sequence[str]) -> None:
        """See `Executor.forget`."""
        self._require()
        super().forget(attempts)

    def _require(self) -> None:
        if self._ray.is_lost:
            raise ExecutorError("the head does not answer")


@contextmanager
def instant_calls(call: type) -> Iterator[None]:
    """In the body, connecting to a cluster takes no time."""
    begin = call.begin  # type: ignore[attr-defined]
    call.begin = lambda self: self._work()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        call.begin = begin  # type: ignore[attr-defined]
