"""`LedgerProvider`: what providers share that write down what they ask for, and look for it afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import Node, NodeRequest, NodeState, ProviderPlace
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine, MachineLedger
from trainmaster.spec.errors import UsageError


@dataclass(frozen=True, slots=True)
class ListedMachine:
    """A machine that has not ended. state, reason, leaves_at, is_queued, way: as in `Node`."""

    state: NodeState
    reason: str = ""
    leaves_at: float | None = None
    is_queued: bool = False
    way: str = ""


class LedgerProvider(ABC):
    """See `Provider`. What is asked for is written down first: who is killed before the answer finds it.

    Args:
        place: of the home.
        hint: what to do when what was written down is damaged.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: of the provider.
    """

    name: str

    def __init__(self, place: ProviderPlace, hint: str, clock: Callable[[], float]) -> None:
        self._home, self._clock = place.identity, clock
        self._memory = MachineLedger(place.directory(self.name), place.saved, hint)

    def check_settings(self) -> None:  # noqa: B027 - it is what most need
        """Nothing is left to check: the settings have been read."""

    def close(self) -> None:  # noqa: B027 - the same
        """Nothing is kept open; machines stay as they are."""

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`: it is not kept."""
        del cluster, id
        return ""

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """See `Provider`."""
        with self._memory.alone(cluster):
            known = self._known(cluster)
            made = {token for token, asked in known.asked.items() if asked.is_made}
            if request.token not in made:
                self._make(known, request, [each for each in request.together if each.token not in made])
                known = self._memory.of(cluster)
            nodes = self._looked(known)
            mine = self._memory.of(cluster).asked[request.token].machines
            return [node for node in nodes if node.id in mine]

    def nodes(self, cluster: str) -> list[Node]:
        """See `Provider`. What is gone was ended or is not listed any more; silence means nothing."""
        if not self._known(cluster).asked:
            return []
        with self._memory.alone(cluster):
            return self._looked(self._memory.of(cluster))

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """See `Provider`. All: what has the cluster's name, whether this home knows it or not."""
        with self._memory.alone(cluster):
            known = self._known(cluster)
            if ids is None:
                self._end(known)
                self._memory.forget(cluster)
                return
            for asked in known.asked.values():
                if gone := [id for id in asked.machines if id in ids]:
                    known = known.with_ended(gone, self._clock(), "it was given back")
                    self._give_back(known, asked, gone)
            if known.asked:
                self._memory.put(known)

    def _known(self, cluster: str) -> KnownCluster:
        """What is known of a cluster."""
        return self._memory.of(cluster)

    def _looked(self, known: KnownCluster) -> list[Node]:
        """Every machine of a cluster, with what its place says now written down."""
        before, (known, seen) = known, self._look(known)
        if known != before:
            self._memory.put(known)
        return [
            self._node(known, asked, id, machine, told)
            for asked, id, machine in known.machines
            if (told := ListedMachine(NodeState.GONE, machine.reason) if machine.ended_at else seen.get(id))
        ]

    def _node(
        self, known: KnownCluster, asked: AskedMachines, id: str, machine: KnownMachine, seen: ListedMachine
    ) -> Node:
        node = Node(
            id=id,
            cluster=known.cluster,
            role=asked.role,
            state=seen.state,
            address=machine.address,
            private_address=machine.private_address,
            instance_type=asked.machine,
            zone=machine.where,
            started_at=machine.started_at,
            leaves_at=seen.leaves_at,
            labels=asked.labels,
            reason=seen.reason,
            ended_at=(machine.ended_at or None) if machine.started_at else None,
            way=seen.way,
            is_queued=seen.is_queued,
        )
        return self._reached(node, known, asked, machine)

    @abstractmethod
    def _reached(self, node: Node, known: KnownCluster, asked: AskedMachines, machine: KnownMachine) -> Node:
        """A machine, of which all is said that is known everywhere, with how it is reached at its place."""

    @abstractmethod
    def _make(self, known: KnownCluster, request: NodeRequest, group: Sequence[NodeRequest]) -> None:
        """Have the machines of a request, all or none, and write them down.

        One that was sent once, and whose answer is not known, is found again.

        Args:
            known: of its cluster.
            request: that is asked for.
            group: with those beside it that are not made yet, for a place that gives all of them or none.
        """

    @abstractmethod
    def _look(self, known: KnownCluster) -> tuple[KnownCluster, Mapping[str, ListedMachine]]:
        """What is known of a cluster after a look, and how far those of its machines are that were seen."""

    @abstractmethod
    def _give_back(self, known: KnownCluster, asked: AskedMachines, ids: Collection[str]) -> None:
        """End some machines of a request. known: what is left then. asked: as it was before."""

    @abstractmethod
    def _end(self, known: KnownCluster) -> None:
        """End all of a cluster."""


def check_requests(provider: str, requests: Sequence[NodeRequest]) -> None:
    """Refuse no machines, and spot machines where there are none.

    Raises:
        UsageError: what is wrong.
    """
    can = capabilities_of(provider)
    for request in requests:
        if request.count < 1:
            raise UsageError(f"{request.role}: {request.count} machines", "Ask for 1 or more.")
        if request.spot and not can.spot:
            raise UsageError(
                f"provider {provider} rents no spot machines: {can.no_spot}", "Leave out `spot`."
            )
