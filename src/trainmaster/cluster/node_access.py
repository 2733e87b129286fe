"""`NodeAccess`: how the control loop reaches a node of a cluster that has been bootstrapped."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import ExecutorError, TrainmasterError

if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_result import HostResult
    from trainmaster.executors.gangs.engine import ClusterNode
    from trainmaster.transport.base import Connection, Target, Transport
    from trainmaster.transport.pool import ConnectionPool


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """A node: what is needed to reach it, and where things are on it.

    Attributes:
        seat: its place in the cluster, such as ``worker-0``.
        id: as the provider names the machine.
        address: private; the nodes of the cluster reach each other there.
        target: where it is reached.
        result: of its bootstrap: plan, facts, host key.
        root: on the node, absolute, the same on every node: what is ours there for this home.
        transport: connects; shared by threads.
        mpi_agent: on the node, starts programs on the other nodes; empty without keys.
        was_silent: it had joined before this driver began, and did not answer it at first.
    """

    seat: str
    id: str
    address: str
    target: Target
    result: HostResult
    root: str
    transport: Transport = field(repr=False)
    mpi_agent: str = ""
    was_silent: bool = False

    @property
    def python(self) -> str:
        """The interpreter of our runtime there."""
        assert self.result.plan is not None
        return self.result.plan.python

    def connection(self) -> AbstractContextManager[Connection]:
        """A login for a few quick things, for a ``with``; see `Transport.connection`."""
        return self.transport.connection(self.target)

    def connect(self) -> Connection:
        """A new login; close it.

        Raises:
            TrainmasterError: it cannot be reached.
        """
        return self.transport.connect(self.target)


T = TypeVar("T")

_RUN_TIMEOUT_S = 150.0


class SshNodes:
    """Nodes behind SSH. Its methods may be called by any thread.

    Args:
        connections: to the nodes; the caller's to close.
        targets: where each node is, by the key that `ClusterNode` has; `add` tells of later ones.

    Example:
        >>> nodes = SshNodes(connections, {"n0": target})  # doctest: +SKIP
        >>> cluster = SshCluster.start(directory, [node], nodes.run, nodes.stream)  # doctest: +SKIP
    """

    def __init__(self, connections: ConnectionPool, targets: Mapping[str, Target] | None = None) -> None:
        self._connections = connections
        self._targets = dict(targets or {})

    def add(self, key: str, target: Target) -> None:
        """A further node, or an old one in another place."""
        old = self._targets.get(key)
        self._targets[key] = target
        if old not in (None, target):
            self._connections.hang_up(old)

    def run(self, node: ClusterNode, command: Sequence[str], stdin: bytes) -> bytes:
        """See `trainmaster.executors.gangs.engine.Runner`. What it runs may be repeated."""
        line = "exec " + shlex.join(command)
        result = self._with(node.key, lambda it: it.run(line, data=stdin, timeout_s=_RUN_TIMEOUT_S))
        if result.code != 0:
            raise ExecutorError(
                f"node {node.key}: {command[0]} ended with {result.code}: {result.last_words}",
                "Has it Trainmaster, and what this cluster's engine is made of?",
            )
        return result.out.encode()

    def stream(self, node: ClusterNode, command: Sequence[str]) -> socket.socket:
        """See `trainmaster.executors.gangs.engine.Opener`."""
        return self._with(node.key, lambda it: it.stream("exec " + shlex.join(command)))

    def _with(self, key: str, work: Callable[[Connection], T]) -> T:
        """Do something over a node's connection."""
        try:
            target = self._targets.get(key)
            if target is None:
                raise ExecutorError("its address is unknown", "Give its target to `add`.")
            return self._connections.use(target, work)
        except TrainmasterError as error:
            raise ExecutorError(f"node {key}: {Exception.__str__(error)}", error.hint) from error
