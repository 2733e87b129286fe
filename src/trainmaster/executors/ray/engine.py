"""Ray as an engine: its node table, one actor per node, placement groups; asked on the head, see `head`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.executors.gangs.stream_agent import StreamAgent
from trainmaster.executors.ray.reservations import PlacementGroups
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

#: So long it is waited for on a head that answers no more, and while Ray is being imported there.
_MUTE_S = 20.0
_BEGIN_S = 60.0


class RayEngine:
    """See `Engine`.

    Args:
        stream: to a `Head`.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._head = StreamAgent("of the head", lambda: stream)
        self._has_spoken = False
        self._left: set[str] = set()

    async def alive(self) -> Sequence[LiveNode]:
        """Those of our nodes that Ray takes to be alive."""
        patience_s = _MUTE_S if self._has_spoken else _BEGIN_S
        try:
            async with asyncio.timeout(patience_s):
                if not self._has_spoken:
                    await self._head.connect()
                rows = [LiveNode(*row) for row in await self._head.call("alive")]
        except TimeoutError:
            raise ExecutorError(
                f"what speaks with Ray on the cluster's head has said nothing for {patience_s:.0f} s",
                "It is started again.",
            ) from None
        self._has_spoken = True
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
        """See `NodeAgent`; its answer is not waited for."""
        self._head.tell("call", self._node_id, "detach", [token])
