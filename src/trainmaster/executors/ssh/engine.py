"""SSH as an engine: the driver says which nodes there are, and each is one more channel of its connection."""

from __future__ import annotations

import asyncio
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trainmaster.executors.gangs.engine import NODE_LABEL
from trainmaster.executors.gangs.node_program import AGENT_PROGRAM
from trainmaster.executors.gangs.placement import LiveNode, OwnPlacement
from trainmaster.executors.wire import Splitter, WireError, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from trainmaster.executors.gangs.engine import ClusterNode, Opener

_READ_BYTES = 1 << 20
#: Connecting blocks a thread; a host that does not answer takes one for a while.
_reaching = ThreadPoolExecutor(32, thread_name_prefix="reach")


class SshEngine:
    """See `Engine`. Which nodes are members is the driver's to say: none is dead because it is silent.

    Args:
        nodes: those that there are now, each with how often one of its name has joined.
        stream: starts a command on a node.
        run: on whose behalf gangs are started.
        lease: token of the driver: supervisors refuse earlier ones.
    """

    def __init__(
        self, nodes: Callable[[], list[tuple[ClusterNode, int]]], stream: Opener, run: str, lease: int
    ) -> None:
        self._nodes = nodes
        self._stream = stream
        self._run = run
        self._lease = lease
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
        about = {"home": member.home, "gpus": list(member.gpus), "leased": self._run, "token": self._lease}
        command = [member.python, "-m", AGENT_PROGRAM, json.dumps(about)]
        return StreamAgent(node.key, lambda: self._stream(member, command))

    def reservations(
        self, ready: Callable[[str, list[str]], None], rooms: Callable[[], Sequence[LiveNode]]
    ) -> OwnPlacement:
        """See `Engine`."""
        return OwnPlacement(ready, rooms)


class StreamAgent:
    """See `NodeAgent`; each `connect` begins a stream of its own.

    Args:
        key: of the node, for messages.
        dial: gives the stream to its `AgentProgram`; blocks.
    """

    def __init__(self, key: str, dial: Callable[[], socket.socket]) -> None:
        self._key = key
        self._dial = dial
        self._dialling: asyncio.Future[socket.socket] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()

    async def connect(self) -> None:
        """See `NodeAgent`."""
        self.detach()
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.get_running_loop().run_in_executor(_reaching, self._dial)
            self._dialling.add_done_callback(_looked_at)
        stream = await asyncio.shield(self._dialling)  # one that takes long is waited for again
        self._dialling = None
        reader, self._writer = await asyncio.open_connection(sock=stream)
        self._listening = asyncio.create_task(self._listen(reader, self._writer))

    def detach(self, token: str = "") -> None:
        """See `NodeAgent`; the other end ends with its stream."""
        del token
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """See `NodeAgent`."""
        if self._writer is None or self._writer.is_closing():
            raise self._lost()
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(encode({"id": number, "do": name, "args": arguments}))
            return await answer
        finally:
            del self._waiting[number]

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter()
        try:
            while data := await reader.read(_READ_BYTES):
                for message in splitter.feed(data):
                    answer = self._waiting.get(message["id"])
                    if answer is None or answer.done():
                        continue
                    if "error" in message:
                        kind = LeaseLostError if "fenced" in message else ExecutorError
                        answer.set_exception(kind(*message["error"]))
                    else:
                        answer.set_result(message["result"])
        except (OSError, WireError):
            pass  # the connection is lost, or what comes is not ours
        finally:
            writer.close()
            if writer is self._writer:
                for answer in self._waiting.values():
                    if not answer.done():
                        answer.set_exception(self._lost())

    def _lost(self) -> ExecutorError:
        return ExecutorError(f"the connection to node {self._key} was lost", "It is made again.")


def _looked_at(dialling: asyncio.Future[socket.socket]) -> None:
    """An error of a connection that was not waited for any more is no news."""
    if not dialling.cancelled():
        dialling.exception()
