"""The way to a program of ours at the other end of a stream: one JSON frame per call; see `AgentProgram`."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from trainmaster.executors.wire import Splitter, WireError, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_READ_BYTES = 1 << 20
#: Connecting blocks a thread; a host that does not answer takes one for a while.
_reaching = ThreadPoolExecutor(32, thread_name_prefix="reach")


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
        self._refusal = ""

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

    def tell(self, name: str, *arguments: object) -> None:
        """Call a method without waiting for its answer."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode({"id": next(self._ids), "do": name, "args": arguments}))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        splitter = Splitter()
        try:
            while data := await reader.read(_READ_BYTES):
                for message in splitter.feed(data):
                    self._refusal = message.get("refused", "")
                    answer = self._waiting.get(message.get("id", -1))
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
        lost = self._refusal or f"the connection to node {self._key} was lost"
        return ExecutorError(lost, "It is made again.")


def _looked_at(dialling: asyncio.Future[socket.socket]) -> None:
    """An error of a connection that was not waited for any more is no news."""
    if not dialling.cancelled():
        dialling.exception()
