"""`SshCluster`: nodes whose gangs the driver itself conducts, over SSH."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

from trainmaster.executors.fences import Fences
from trainmaster.executors.gangs.gateway import Gateway
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster, recorded
from trainmaster.executors.ssh.engine import SshEngine
from trainmaster.spec.errors import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trainmaster.executors.gangs.engine import ClusterNode, Engine, Opener, Runner

log = logging.getLogger(__name__)

#: A node of an earlier driver that cannot be reached may have gangs that only it knows: it is waited for
#: until the machine is given up, which takes a minute.
_SETTLE_S: Final = 75.0
#: A driver that hangs up comes back at once, or not at all.
_IDLE_S: Final = 5.0
_LOOK_S: Final = 5.0


class SshCluster(RecordedCluster):
    """See `RecordedCluster`. It has no head: with any node gone, gangs on the others go on."""

    _gateway: _DriverGateway | None = None
    _leaving: frozenset[str] = frozenset()

    @classmethod
    def start(cls, directory: Path, nodes: Sequence[ClusterNode], run: Runner, stream: Opener) -> SshCluster:
        """Begin on these nodes.

        Raises:
            ExecutorError: one cannot be reached.
        """
        if not nodes:
            raise ExecutorError("a cluster needs at least one node", "Give it one.")
        cluster = cls(directory, (), run, stream)
        cluster.add(nodes)
        return cluster

    @classmethod
    def find(cls, directory: Path, run: Runner, stream: Opener) -> SshCluster | None:
        """The cluster that was started from there, None when there is none."""
        nodes, used = recorded(directory)
        cluster = cls(directory, nodes, run, stream)
        cluster.used = used
        return cluster if nodes else None

    def add(self, nodes: Sequence[ClusterNode]) -> None:
        """Further nodes join; gangs that wait for room see them within a second.

        Raises:
            ExecutorError: one cannot be reached.
        """
        self._on_each(nodes, lambda node: self._ask(node, {"do": "prepare", "home": node.home}))
        known = {node.key for node in nodes}
        for key in known - {node.key for node in self.nodes}:  # others are found as they are
            self.used[key] = [self.used.get(key, [0])[-1] + 1]
        self.nodes = [node for node in self.nodes if node.key not in known] + list(nodes)
        self._record()

    def remove(self, key: str, *, is_gone: bool = False) -> None:
        """See `RecordedCluster.remove`; its gangs are lost before anything is ended there.

        Else the gateway would reach it again meanwhile, and take for an end what is done to it.
        """
        self._leaving |= {key}
        try:
            if self._gateway is not None:
                self._gateway.look()
            super().remove(key, is_gone=is_gone)
        finally:
            self._leaving -= {key}

    def connect(self, hello: Mapping[str, Any]) -> socket.socket:
        """A stream to the gateway in this process, which begins for the first driver of a run."""
        run, lease = hello["run"], hello.get("token", 0)
        gateway = self._gateway
        if gateway is not None and (gateway.run != run or gateway.lease < lease):
            gateway.end()
            gateway = None
        if gateway is None or gateway.is_over:
            gateway = self._gateway = _DriverGateway(self, run, lease)
        return gateway.connect()

    def engine(self, run: str, lease: int) -> Engine:
        """What says which nodes are alive, and how each is reached, on behalf of one driver of a run."""
        return SshEngine(self.joined, self._open, run, lease)

    def joined(self) -> list[tuple[ClusterNode, int]]:
        """Nodes, each with how often one of its name has joined."""
        return [
            (node, self.used.get(node.key, [1])[-1])
            for node in list(self.nodes)
            if node.key not in self._leaving
        ]


class _DriverGateway:
    """A `Gateway` in a thread of the driver's."""

    def __init__(self, cluster: SshCluster, run: str, lease: int) -> None:
        self.run = run
        self.lease = lease
        self.is_over = False
        self._loop = asyncio.new_event_loop()  # the thread closes it
        fences = Fences(str(cluster.directory / "fences.json"), log.info)
        self._gateway = Gateway(cluster.engine(run, lease), fences, log.info, _SETTLE_S, _IDLE_S, stays=False)
        self._streams: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._serving: set[asyncio.Task[None]] = set()
        self._has_begun = threading.Event()
        threading.Thread(target=self._work, name="gateway", daemon=True).start()

    def connect(self) -> socket.socket:
        """The driver's end of a new stream."""
        ours, theirs = socket.socketpair()
        try:
            self._loop.call_soon_threadsafe(self._streams.put_nowait, theirs)
        except RuntimeError:  # it has just ended: the driver dials again
            theirs.close()
        return ours

    def end(self) -> None:
        """Serve no more; what runs goes on."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._gateway.end)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends its tasks, too
            try:
                runner.run(self._gateway.run(self._serve))
            except Exception:  # a thread has no caller; the driver is hung up on, and dials a new one
                log.exception("what places tasks has ended")
            self.is_over = True
        while not self._streams.empty():
            self._streams.get_nowait().close()

    def look(self) -> None:
        """Have it see at once which nodes there are."""
        if self._has_begun.is_set() and not self.is_over:
            look = self._gateway.scheduler.nodes.look()
            with contextlib.suppress(TimeoutError, RuntimeError):
                asyncio.run_coroutine_threadsafe(look, self._loop).result(_LOOK_S)

    async def _serve(self) -> None:
        self._has_begun.set()
        self._serving.add(asyncio.create_task(self._accept()))

    async def _accept(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection(sock=await self._streams.get())
            self._serving.add(asyncio.create_task(self._gateway.accept(reader, writer)))
