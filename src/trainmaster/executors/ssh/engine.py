"""SSH as an engine: the driver says which nodes there are, and each is one more channel of its connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.engine import NODE_LABEL
from trainmaster.executors.gangs.node_program import AGENT_PROGRAM
from trainmaster.executors.gangs.placement import LiveNode, OwnPlacement
from trainmaster.executors.gangs.stream_agent import StreamAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainmaster.executors.gangs.engine import ClusterNode, Opener


class SshEngine:
    """See `Engine`. Which nodes are members is the driver's to say: none is dead because it is silent.

    Args:
        nodes: those that there are now, each with how often one of its name has joined.
        stream: starts a command on a node.
    """

    def __init__(self, nodes: Callable[[], list[tuple[ClusterNode, int]]], stream: Opener) -> None:
        self._nodes = nodes
        self._stream = stream
        self._by_id: dict[str, ClusterNode] = {}
        self._left: set[str] = set()

    async def alive(self) -> Sequence[LiveNode]:
        """All that have joined and did not leave."""
        joined = {f"{node.key}@{count}": node for node, count in self._nodes()}
        self._by_id = {node_id: node for node_id, node in joined.items() if node_id not in self._left}
        return [
            LiveNode(
                node.key,
                node_id,
                node.address,
                float(node.slots),
                len(node.gpus),
                {**node.labels, NODE_LABEL: node.key},
            )
            for node_id, node in self._by_id.items()
        ]

    def leave(self, node: LiveNode) -> None:
        """See `Engine`."""
        self._left.add(node.node_id)

    def agent(self, node: LiveNode) -> StreamAgent:
        """See `Engine`."""
        member = self._by_id[node.node_id]
        about = {"home": member.home, "gpus": list(member.gpus)}
        command = [member.python, "-m", AGENT_PROGRAM, json.dumps(about)]
        return StreamAgent(node.key, lambda: self._stream(member, command))

    def reservations(
        self, ready: Callable[[str, list[str]], None], rooms: Callable[[], Sequence[LiveNode]]
    ) -> OwnPlacement:
        """See `Engine`."""
        return OwnPlacement(ready, rooms)
