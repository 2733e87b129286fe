"""Ray as an engine: its node table, one actor per node, placement groups."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainmaster.executors.gangs.agent import Agent
from trainmaster.executors.gangs.cluster_node import NODE_LABEL
from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.executors.ray.commands import NODE_FILE_VARIABLE
from trainmaster.executors.ray.reservations import PlacementGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trainmaster.executors.base import GangStatus
    from trainmaster.executors.gangs.engine import Attached, Follow, News
    from trainmaster.executors.wire import Message

_THREADS = 8
#: A resource that Ray gives to the head only.
_HEAD = "node:__internal_head__"


class RayEngine:
    """See `Engine`."""

    async def members(self) -> Sequence[LiveNode]:
        """Those of our nodes that Ray takes to be alive."""
        rows = await asyncio.to_thread(ray.nodes)
        return [_live(row) for row in rows if row["Alive"] and NODE_LABEL in (row.get("Labels") or {})]

    def agent(self, node: LiveNode) -> RayAgent:
        """See `Engine`."""
        return RayAgent(node)

    def reservations(
        self, ready: Callable[[str, list[str]], None], _rooms: Callable[[], Sequence[LiveNode]]
    ) -> PlacementGroups:
        """See `Engine`."""
        return PlacementGroups(ready)


class NodeActor(Agent):
    """An `Agent` in a worker of Ray's on its node."""

    def __init__(self) -> None:
        super().__init__(json.loads(Path(os.environ[NODE_FILE_VARIABLE]).read_text()))


class RayAgent:
    """See `NodeAgent`; a detached actor, which the next gateway finds by its name."""

    def __init__(self, node: LiveNode) -> None:
        self._node = node
        self._actor: Any = None

    async def attach(self, token: str, attempts: Sequence[str]) -> Attached:
        """See `NodeAgent`."""
        self._actor = (
            ray.remote(NodeActor)
            .options(
                name=f"agent:{self._node.node_id}",
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=_THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self._node.node_id, soft=False),
            )
            .remote()
        )
        found: Attached = await self._actor.attach.remote(token, list(attempts))
        return found

    async def do(
        self, token: str, commands: Sequence[Message]
    ) -> tuple[dict[str, bool], list[tuple[int, GangStatus]]]:
        """See `NodeAgent`."""
        found: tuple[dict[str, bool], list[tuple[int, GangStatus]]] = await self._actor.do.remote(
            token, list(commands)
        )
        return found

    async def poll(self, token: str, timeout_s: float, follow: Follow) -> News:
        """See `NodeAgent`."""
        found: News = await self._actor.poll.remote(token, timeout_s, follow)
        return found

    def detach(self, token: str) -> None:
        """See `NodeAgent`."""
        if self._actor is not None:
            self._actor.detach.remote(token)


def _live(row: Mapping[str, Any]) -> LiveNode:
    resources = row["Resources"]
    return LiveNode(
        row["Labels"][NODE_LABEL],
        row["NodeID"],
        row["NodeManagerAddress"],
        float(resources.get("CPU", 0.0)),
        int(resources.get("GPU", 0)),
        dict(row["Labels"]),
        is_head=_HEAD in resources,
        port=int(row.get("NodeManagerPort") or 0),
    )
