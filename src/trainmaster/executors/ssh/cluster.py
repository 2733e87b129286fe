"""`SshCluster`: the driver says which nodes there are; each is one more channel of the connection to it."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.engine import NODE_LABEL, ClusterNode, Engine, Opener, Runner, StreamAgent
from trainmaster.executors.gangs.placement import LiveNode, OwnPlacement
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster
from trainmaster.executors.ssh import AGENT_PROGRAM, STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class SshCluster(RecordedCluster):
    """See `RecordedCluster`. It has no head: with any node gone, gangs on the others go on."""

    _leaving: frozenset[str] = frozenset()

    @classmethod
    def start(cls, directory: Path, nodes: Sequence[ClusterNode], run: Runner, stream: Opener) -> SshCluster:
        """See `RecordedCluster.start`."""
        cluster = cls(directory, (), run, stream)
        cluster.add(nodes)
        return cluster

    def add(self, nodes: Sequence[ClusterNode]) -> None:
        """See `RecordedCluster.add`."""
        self._on_each(nodes, lambda node: self._run(node, ("/bin/sh", "-c", _prepare(node)), b""))
        known = {node.key for node in self.nodes}  # these are as they were
        for key in {node.key for node in nodes} - known:
            self.used[key] = [self.used.get(key, [0])[-1] + 1]
        self._enter(nodes)
        if self._conductor is not None:  # gangs may wait for them
            self._conductor.look()

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        """See `RecordedCluster.remove`; its gangs are lost before anything is ended there.

        Else the driver would reach it again meanwhile, and take for an end what is done to it.
        """
        self._leaving |= {key}
        try:
            if self._conductor is not None:
                self._conductor.look()
            super().remove(key, is_gone=is_gone)
        finally:
            self._leaving -= {key}

    def engine(self) -> Engine:
        """See `RecordedCluster.engine`."""
        return SshEngine(self.joined, self._open)

    def joined(self) -> list[tuple[ClusterNode, int]]:
        """Nodes, each with how often one of its name has joined."""
        return [
            (node, self.used.get(node.key, [1])[-1])
            for node in list(self.nodes)
            if node.key not in self._leaving
        ]


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
        return StreamAgent(node.key, lambda: self._stream(member, agent_command(member)))

    def reservations(
        self, ready: Callable[[str, list[str]], None], rooms: Callable[[], Sequence[LiveNode]]
    ) -> OwnPlacement:
        """See `Engine`."""
        return OwnPlacement(ready, rooms)


def agent_command(node: ClusterNode) -> list[str]:
    """What starts the node's agent there."""
    about = {
        "home": node.home,
        "gpus": list(node.gpus),
        "to_others": list(node.to_others),
        "statuses": f"sh {node.directory}/{STATUSES}",  # of others, too: directories are the same
        "lease_s": node.lease_s,
    }
    return [node.python, "-m", AGENT_PROGRAM, json.dumps(about)]


def _prepare(node: ClusterNode) -> str:
    """For the shell of a node: directories, and the file by whose name others ask for statuses there.

    A Python would take a tenth of a second for it; that there is one is seen.
    """
    file, script = f"{node.directory}/{STATUSES}", f"exec {shlex.join([*agent_command(node), STATUSES])}"
    python, draft, file = map(shlex.quote, (node.python, f"{file}.new", file))
    places = shlex.join([node.directory, node.home])
    return (
        f"set -e; umask 077; command -v {python} > /dev/null; mkdir -p {places}; chmod 700 {places}; "
        f"printf '%s\\n' {shlex.quote(script)} > {draft}; mv {draft} {file}"
    )
