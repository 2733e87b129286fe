"""What an engine is: which machines are members of a cluster, how each is reached, and where there is room.

All else about gangs (whose turn it is, parts, files, what drivers are told) is the same for all engines.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trainmaster.executors.gangs.cluster_node import ClusterNode

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from trainmaster.executors.base import GangStatus
    from trainmaster.executors.gangs.mirror import Piece
    from trainmaster.executors.gangs.placement import LiveNode, Placement
    from trainmaster.executors.wire import Message

#: Runs a command on a node with this standard input; gives its standard output. Raises `ExecutorError`
#: when the node cannot be reached or the command fails.
Runner = Callable[[ClusterNode, Sequence[str], bytes], bytes]
#: Starts a command on a node; gives the stream that is its standard input and output.
Opener = Callable[[ClusterNode, Sequence[str]], socket.socket]
#: Directory, members and bytes that the driver has, by part.
Follow = dict[str, tuple[str, "Sequence[str]", "Mapping[str, int]"]]


class Attached(NamedTuple):
    """What a node's agent says of it when it begins to serve a gateway.

    Attributes:
        statuses: of the parts that were asked for, and of those that have a record there.
        records: of the gangs that have parts there, see `PlacedGang.record`.
    """

    statuses: list[GangStatus]
    records: list[Message]


class News(NamedTuple):
    """What has happened on a node.

    Attributes:
        statuses: of parts that have changed.
        output: (part, member) of those that wrote something.
        pieces: of files that are followed, by part.
        behind: parts of which there is more to read.
    """

    statuses: list[GangStatus]
    output: list[tuple[str, str]]
    pieces: list[tuple[str, Piece]]
    behind: set[str]


class NodeAgent(Protocol):
    """A node's `Agent`, from elsewhere; see there. Any error means that the node cannot be reached now."""

    async def attach(self, token: str, attempts: Sequence[str]) -> Attached:
        """Have it serve this gateway from now on."""

    async def do(
        self, token: str, commands: Sequence[Message]
    ) -> tuple[dict[str, bool], list[tuple[int, GangStatus]]]:
        """Have it carry out commands, in their order."""

    async def poll(self, token: str, timeout_s: float, follow: Follow) -> News:
        """Wait for news."""

    def detach(self, token: str) -> None:
        """This gateway ends."""


class Reservations(Protocol):
    """Room for gangs: all of a gang's bundles, or none."""

    @property
    def used(self) -> float:
        """Slots of all that are held or waited for."""

    @property
    def held(self) -> float:
        """Slots of those that are held."""

    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """Reserve room; ``ready`` is told when it is there, perhaps at once."""

    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """The gang needs it no more, or never will."""

    def hand_over(self, attempt: str, following: str) -> None:
        """Another gang holds it from now on."""

    def id_of(self, attempt: str) -> str:
        """Of the reservation that a gang holds, empty if none."""

    def adopt(self, attempt: str, reservation: str, nodes: list[str]) -> None:
        """A gang of an earlier gateway holds it."""

    def remove_others(self, kept: Iterable[str]) -> None:
        """Remove what an earlier gateway has left, but for these ids."""

    def has_idle(self, plan: Placement) -> bool:
        """One of that shape may be there at once."""

    def is_late(self, attempt: str, patience_s: float) -> bool:
        """No room has been found for it for so long."""

    def stuck(self) -> bool:
        """One waits for longer than it should: later ones are held back."""

    def tick(self) -> float | None:
        """Look what has become ready; seconds until the next look, None when there is nothing to look at."""


class Engine(Protocol):
    """What the gateway asks of an engine."""

    async def members(self) -> Sequence[LiveNode]:
        """Nodes that belong to the cluster and are not known to be dead. Unreachable is not dead."""

    def agent(self, node: LiveNode) -> NodeAgent:
        """The way to a node's agent, which is started if there is none."""

    def reservations(
        self, ready: Callable[[str, list[str]], None], rooms: Callable[[], Sequence[LiveNode]], /
    ) -> Reservations:
        """Where there is room for gangs, on nodes that can be reached, which ``rooms`` gives.

        ``ready`` is told the attempt and the node of each bundle.
        """
