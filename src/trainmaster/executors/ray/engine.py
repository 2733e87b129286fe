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
from trainmaster.executors.gangs.engine import NODE_LABEL
from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.executors.ray.commands import NODE_FILE_VARIABLE
from trainmaster.executors.ray.reservations import PlacementGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_THREADS = 8
#: A resource that Ray gives to the head only.
_HEAD = "node:__internal_head__"


class RayEngine:
    """See `Engine`."""

    def __init__(self) -> None:
        self._left: set[str] = set()

    async def alive(self) -> Sequence[LiveNode]:
        """Those of our nodes that Ray takes to be alive."""
        rows = await asyncio.to_thread(ray.nodes)
        ours = [row for row in rows if row["Alive"] and NODE_LABEL in (row.get("Labels") or {})]
        return [_live(row) for row in ours if row["NodeID"] not in self._left]

    def leave(self, node: LiveNode) -> None:
        """See `Engine`."""
        self._left.add(node.node_id)

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

    async def connect(self) -> None:
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

    async def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """See `NodeAgent`."""
        return await getattr(self._actor, name).remote(*arguments)

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
    )
