"""What an engine is: which machines are members of a cluster, how each is reached, and where there is room.

All else about gangs (whose turn it is, parts, files, what drivers are told) is the same for all engines.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.wire import Splitter, WireError, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError, OtherVersionError

if TYPE_CHECKING:
    from trainmaster.executors.gangs.placement import LiveNode, Reservations

#: Names which node this is; placement and members may be bound to it.
NODE_LABEL: Final = "trainmaster-node"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine (or a part of one) that belongs to a cluster.

    Attributes:
        key: its name within the cluster, of letters, digits, ``-`` and ``_``.
        address: private IP address at which the other nodes reach it. Not 127.0.0.1, which an engine may
            replace by the machine's outward address.
        slots: how many slots it offers.
        directory: on the node, absolute and at most 40 bytes long; holds what the engine keeps there.
        home: on the node, absolute; the supervisor's home.
        labels: what members may ask for with ``node_labels``.
        gpus: ids as for CUDA_VISIBLE_DEVICES.
        python: on the node; has Trainmaster and the engine's `packages` installed.
        to_others: on the node, starts a command on another node: its address and the command follow. Empty:
            nodes cannot reach each other, or need not.
        lease_s: without a driver, a node that others have not heard of for so long is taken for dead by them.
        port_base: first of the 200 ports that are used there; 0: the node takes free ones, from 20000
            on, and others than those that were last taken at its address.
    """

    key: str
    address: str
    slots: int
    directory: str
    home: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    python: str = sys.executable
    port_base: int = 0
    to_others: tuple[str, ...] = ()
    lease_s: float = 900.0


#: Runs a command on a node with this standard input; gives its standard output. Raises `ExecutorError`
#: when the node cannot be reached or the command fails.
Runner = Callable[[ClusterNode, Sequence[str], bytes], bytes]
#: Starts a command on a node; gives the stream that is its standard input and output.
Opener = Callable[[ClusterNode, Sequence[str]], socket.socket]
#: Directory, members and bytes that the driver has, by part.
Follow = dict[str, tuple[str, Sequence[str], Mapping[str, int]]]


class NodeAgent(Protocol):
    """The way to a node's `Agent`. Any error means that the node cannot be reached now."""

    async def connect(self) -> None:
        """Reach it, anew if it was reached before; it is started if there is none."""

    async def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - JSON
        """Call a method of the agent, all of whose arguments and results are JSON."""

    def detach(self, token: str) -> None:
        """The driver with this token goes."""


class Engine(Protocol):
    """What the driver asks of an engine."""

    async def alive(self) -> Sequence[LiveNode]:
        """Nodes that belong to the cluster and are not known to be dead. Unreachable is not dead.

        What is missing here is dead, and nothing else is.
        """

    def leave(self, node: LiveNode) -> None:
        """It is not alive from now on: who rents it has seen its end."""

    def agent(self, node: LiveNode) -> NodeAgent:
        """The way to a node's agent, which is started if there is none."""

    def reservations(
        self, ready: Callable[..., None], rooms: Callable[[], Sequence[LiveNode]], /
    ) -> Reservations:
        """Where there is room for gangs, on nodes that can be reached, which ``rooms`` gives.

        ``ready`` is told the attempt and the node of each bundle; thirdly, perhaps, why it can have no room.
        """


_READ_BYTES = 1 << 20
#: Of an answer: 1 MiB of logs in base64, or the states and records of all that a node has, 1 KiB a member.
ANSWER_BYTES = 32 << 20
#: Connecting blocks a thread; a host that does not answer takes one for a while.
_reaching = ThreadPoolExecutor(32, thread_name_prefix="reach")
#: A loop holds its tasks weakly: the stream to a node that was given up would end whenever Python tidies up.
_listening = set[asyncio.Task[None]]()


class StreamAgent:
    """See `NodeAgent`; each `connect` begins a stream of its own.

    Args:
        key: of the node, for messages.
        dial: gives the stream to its `AgentProgram`; blocks.
    """

    def __init__(self, key: str, dial: Callable[[], socket.socket]) -> None:
        self._key = key
        self._dial = dial
        self._dialling: Future[socket.socket] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._ids = itertools.count()
        self._refusal = ""

    async def connect(self) -> None:
        """See `NodeAgent`."""
        self._end_stream()
        if self._dialling is None or (self._dialling.done() and self._dialling.exception() is not None):
            self._dialling = _reaching.submit(self._dial)
        # One that takes long is waited for again.
        stream = await asyncio.shield(asyncio.wrap_future(self._dialling))
        self._dialling = None
        reader, self._writer = await asyncio.open_connection(sock=stream)
        listening = asyncio.create_task(self._listen(reader, self._writer))
        _listening.add(listening)
        listening.add_done_callback(_listening.discard)

    def detach(self, token: str = "") -> None:
        """See `NodeAgent`; the other end ends with its stream."""
        del token
        self._end_stream()
        if self._dialling is not None:  # nothing waits for it any more
            self._dialling.add_done_callback(_hang_up)
            self._dialling = None

    def _end_stream(self) -> None:
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

    def tell(self, name: str, *arguments: object) -> None:
        """Call a method without waiting for its answer."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode({"id": next(self._ids), "do": name, "args": arguments}))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter(ANSWER_BYTES)
        try:
            while data := await reader.read(_READ_BYTES):
                for message in splitter.feed(data):
                    self._refusal = message.get("refused", "")
                    answer = self._waiting.get(message.get("id", -1))
                    if answer is None or answer.done():
                        continue
                    if "error" in message:
                        kinds = {"fenced": LeaseLostError, "other_version": OtherVersionError}
                        kind = next((kinds[key] for key in kinds if key in message), ExecutorError)
                        answer.set_exception(kind(*message["error"]))
                    else:
                        answer.set_result(message["result"])
        except OSError:
            pass  # the connection is lost
        except WireError as error:  # what comes is not ours
            self._refusal = f"the connection to node {self._key} was ended: {error}"
        finally:
            writer.close()
            if writer is self._writer:
                for answer in self._waiting.values():
                    if not answer.done():
                        answer.set_exception(self._lost())

    def _lost(self) -> ExecutorError:
        lost = self._refusal or f"the connection to node {self._key} was lost"
        return ExecutorError(lost, "It is made again.")


def _hang_up(dialling: Future[socket.socket]) -> None:
    """End a stream that came when it was not waited for any more; its error is no news."""
    if not dialling.cancelled() and dialling.exception() is None:
        dialling.result().close()
