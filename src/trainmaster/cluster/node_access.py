"""`NodeAccess`: how the control loop reaches a node of a cluster that has been bootstrapped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.cluster.bootstrap.host_result import HostResult
    from trainmaster.transport.base import Connection, Target, Transport


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
    """

    seat: str
    id: str
    address: str
    target: Target
    result: HostResult
    root: str
    transport: Transport = field(repr=False)
    mpi_agent: str = ""

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
