"""Ray as an engine: its node table, one actor per node, placement groups; asked on the head, see `head`.

A placement group outlives the driver, and the next one finds it again by its name. One that a gang has given
back is kept for a moment for the next gang of the same shape: making one takes Ray 2 ms, but up to a second
when another has just been removed on the same node.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

from trainmaster.executors.gangs.engine import StreamAgent
from trainmaster.executors.gangs.placement import LiveNode, Placement, Reservation, Reservations
from trainmaster.executors.gangs.silence import MUTE_S
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Container, Iterable, Sequence


#: While Ray is being imported on the head.
_BEGIN_S = 60.0


class RayEngine:
    """See `Engine`.

    Args:
        stream: to a `RayHead`.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._head = StreamAgent("of the head", lambda: stream)
        self._has_spoken = False
        self._left: set[str] = set()

    async def alive(self) -> Sequence[LiveNode]:
        """Those of our nodes that Ray takes to be alive."""
        patience_s = MUTE_S if self._has_spoken else _BEGIN_S
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


_IDLE_S = 5.0


class PlacementGroups(Reservations):
    """Ray's placement groups.

    Args:
        ready: told the attempt and the node of each bundle, or why Ray refuses it.
        head: calls a method of the `RayHead`.
    """

    def __init__(self, ready: Callable[..., None], head: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(ready)
        self._head = head
        self._idle: list[Reservation] = []
        self._numbers = itertools.count()
        self._asking: set[asyncio.Task[None]] = set()

    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """See `Reservations`."""
        for room in self._idle:
            if _shape(room) == plan.shape and all(node in alive for node in _nodes(room)):
                self._idle.remove(room)
                self._held[attempt] = room
                self._ready(attempt, _nodes(room))
                return
        self._clear_idle(float("inf"))  # they may take the room that is wanted now
        name = f"{time.time_ns()}-{next(self._numbers)}"
        room = self._pending[attempt] = Reservation(plan, self._clock(), name)
        self._ask(self._reserve(attempt, room, plan))

    async def _reserve(self, attempt: str, room: Reservation, plan: Placement) -> None:
        bundles = [bundle.resources for bundle in plan.bundles]
        labels = [dict(bundle.labels) for bundle in plan.bundles]
        nodes, refusal = await self._head("reserve", room.name, bundles, plan.strategy, labels)
        room.bundles = [
            (node, each.slots, each.gpus) for node, each in zip(nodes, plan.bundles, strict=False)
        ]
        if self._pending.get(attempt) is room:
            del self._pending[attempt]
            self._held[attempt] = room
            self._ready(attempt, nodes, refusal)

    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """See `Reservations`."""
        if pending := self._pending.pop(attempt, None):
            self._remove([pending])
        if held := self._held.pop(attempt, None):
            if _shape(held) and held.bundles and all(node in alive for node in _nodes(held)):
                held.since = self._clock()
                self._idle.append(held)
            else:
                self._remove([held])

    def has_idle(self, plan: Placement) -> bool:
        """See `Reservations`."""
        return any(_shape(each) == plan.shape for each in self._idle)

    def id_of(self, attempt: str) -> str:
        """See `Reservations`."""
        held = self._held.get(attempt)
        return held.name if held else ""

    def adopt(self, attempt: str, reservation: str, nodes: list[str]) -> None:
        """See `Reservations`."""
        self._held[attempt] = Reservation(
            None, self._clock(), reservation, [(node, 0.0, 0) for node in nodes]
        )

    def remove_others(self, kept: Iterable[str]) -> None:
        """See `Reservations`."""
        self._ask(self._head("keep", list(kept)))

    def tick(self) -> float | None:
        """Give back what nothing has wanted for a while; seconds until the next look."""
        self._clear_idle(self._clock() - _IDLE_S if not self._pending else float("inf"))
        return _IDLE_S if self._idle else None

    def _clear_idle(self, before: float) -> None:
        old = [each for each in self._idle if each.since < before]
        self._idle = [each for each in self._idle if each not in old]
        self._remove(old)

    def _remove(self, rooms: list[Reservation]) -> None:
        if rooms:
            self._ask(self._head("remove", [each.name for each in rooms]))

    def _ask(self, call: Awaitable[Any]) -> None:
        """Without waiting; when the head is out of reach, the next driver removes what is left."""

        async def asked() -> None:
            with contextlib.suppress(ExecutorError):
                await call

        asking = asyncio.ensure_future(asked())
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)


def _shape(room: Reservation) -> tuple[object, ...]:
    """Empty where that is not known any more."""
    return () if room.plan is None else room.plan.shape


def _nodes(room: Reservation) -> list[str]:
    return [node for node, _, _ in room.bundles]
