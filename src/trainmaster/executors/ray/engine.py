"""Ray as an engine: its node table, one actor per node, placement groups; asked on the head, see `head`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.executors.gangs.stream_agent import StreamAgent
from trainmaster.executors.ray.reservations import PlacementGroups

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence


class RayEngine:
    """See `Engine`.

    Args:
        stream: to a `Head`.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._head = StreamAgent("of the head", lambda: stream)
        self._connecting: asyncio.Task[None] | None = None
        self._left: set[str] = set()

    async def alive(self) -> Sequence[LiveNode]:
        """Those of our nodes that Ray takes to be alive."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._head.connect())
        await asyncio.shield(self._connecting)
        rows = [LiveNode(*row) for row in await self._head.call("alive")]
        return [node for node in rows if node.node_id not in self._left]

    def leave(self, node: LiveNode) -> None:
        """See `Engine`."""
        self._left.add(node.node_id)

    def agent(self, node: LiveNode) -> RayAgent:
        """See `Engine`."""
        return RayAgent(node.node_id, self._head)

    def reservations(
        self, ready: Callable[..., None], _rooms: Callable[[], Sequence[LiveNode]]
    ) -> PlacementGroups:
        """See `Engine`."""
        return PlacementGroups(ready, self._head.call)


class RayAgent:
    """See `NodeAgent`; a detached actor.

    Args:
        node_id: Ray's.
        head: the way to the head.
    """

    def __init__(self, node_id: str, head: StreamAgent) -> None:
        self._node_id = node_id
        self._head = head

    async def connect(self) -> None:
        """See `NodeAgent`."""
        await self._head.call("connect", self._node_id)

    async def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """See `NodeAgent`."""
        return await self._head.call("call", self._node_id, name, arguments)

    def detach(self, token: str) -> None:
        """See `NodeAgent`; that nobody waits for the answer is as good."""
        self._head.tell("call", self._node_id, "detach", [token])
