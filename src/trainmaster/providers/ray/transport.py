"""`RayTransport`: commands and streams to what runs in bundles of a Ray, through its actors."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.ray.proxy import GoneError, RayProxy, proxy_of, said_by
from trainmaster.providers.ray.settings import RAY
from trainmaster.spec.errors import ProviderError
from trainmaster.transport.base import (
    ANSWER_BYTES,
    Connection,
    ConnectionLostError,
    Exchange,
    Result,
    Target,
    Transport,
    UnreachableError,
)
from trainmaster.transport.conversation import converse

#: What stands in the place of the client `ssh`: a module; it gets `Node.way`, then what `ssh` gets.
CLIENT: Final = "trainmaster.providers.ray.client"
_TIMEOUT_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 18


def namespace_of(machine: str) -> str:
    """Ray's, of a machine: that of the home whose it is.

    >>> namespace_of("0123456789ab-r1-train-5f3a9c.0")
    'trainmaster-0123456789ab'
    """
    return f"trainmaster-{machine.partition('-')[0]}"


def ray_transport(root: Path) -> RayTransport:
    """What `TRANSPORTS` names."""
    return RayTransport(proxy_of(RAY.read(root, os.environ), root))


class RayTransport(Transport):
    """See `Transport`. Addresses are names of actors.

    Args:
        proxy: speaks with Ray.
    """

    def __init__(self, proxy: RayProxy) -> None:
        self._proxy = proxy

    def connect(self, target: Target) -> RayConnection:
        """See `Transport`."""
        connection = RayConnection(target, self._proxy)
        connection.ask("about")
        return connection

    def forget(self, target: Target) -> None:
        """There is nothing to forget."""
        return

    def close(self) -> None:
        """Others of this process may still speak."""
        return


class RayConnection(Connection):
    """Runs commands in sessions of their own, in the user's home, as an SSH server does.

    Attributes:
        target, host_key: see `Connection`.
    """

    def __init__(self, target: Target, proxy: RayProxy) -> None:
        self.target = target
        self.host_key = ""
        self._proxy = proxy
        self._mark, self._numbers = secrets.token_hex(4), itertools.count()
        self._lock = threading.Lock()
        self._streams: set[str] = set()
        self._is_closed = False

    def begin(self, do: str, *args: object) -> concurrent.futures.Future[Any]:
        """Call a method of the actor."""
        if self._is_closed:
            raise UnreachableError(f"{self.target.shown}: the connection was closed")
        name = self.target.address
        return self._proxy.begin("call", namespace_of(name), name, do, *args)

    def ask(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """The same, with the answer.

        Raises:
            UnreachableError: there is none.
        """
        try:
            return said_by(self.begin(do, *args).result(_TIMEOUT_S))
        except (GoneError, TimeoutError) as error:
            self._is_closed = isinstance(error, GoneError)
            words = f"{self.target.shown} does not answer: {error}"
            raise UnreachableError(words, "It may be gone.") from error
        except ConnectionLostError:
            raise
        except ProviderError as error:
            raise UnreachableError(f"{self.target.shown}: {Exception.__str__(error)}", error.hint) from error

    def key(self) -> str:
        """A name for what is begun."""
        return f"{self._mark}-{next(self._numbers)}"

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """See `Connection`."""
        limit_s = _TIMEOUT_S if timeout_s is None else timeout_s

        async def work() -> Result:
            processes = _Processes(self)
            try:
                lost = (OSError, ProviderError)
                return await converse(processes, talk, limit_s, limit_bytes, self.target.shown, lost=lost)
            finally:
                await processes.end()

        if self._is_closed:
            raise UnreachableError(f"{self.target.shown}: the connection was closed")
        return asyncio.run(work())

    def stream(self, command: str) -> socket.socket:
        """See `Connection`."""
        key = self.key()
        self.ask("call", "start", key, f"exec 2>/dev/null; {command}")
        return self._joined(key)

    @contextlib.contextmanager
    def forward(self, host: str, port: int, local_port: int = 0) -> Iterator[int]:
        """See `Connection`."""
        with (
            socket.create_server(("127.0.0.1", local_port)) as server,
            self.serving(server, host, port),
        ):
            yield server.getsockname()[1]

    @contextlib.contextmanager
    def serving(self, server: socket.socket, host: str, port: int) -> Iterator[None]:
        """Who connects to a socket here is led to a port over there, while inside ``with``."""

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    key = self.key()
                    try:
                        self.ask("call", "connect", key, host, port)
                    except ProviderError:
                        client.close()
                        continue
                    self._join(key, client)

        threading.Thread(target=serve, name="forward", daemon=True).start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the commands of streams; others have ended."""
        with self._lock:
            streams, self._streams = self._streams, set()
        for key in streams:
            with contextlib.suppress(ProviderError):
                self.begin("call", "close", key)
        self._is_closed = True

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or its machine is gone."""
        return self._is_closed

    def _joined(self, key: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._join(key, theirs)
        return ours

    def _join(self, key: str, theirs: socket.socket) -> None:
        """Move bytes both ways until either end hangs up."""
        with self._lock:
            self._streams.add(key)
        over = threading.Event()

        def up() -> None:
            with contextlib.suppress(OSError, ProviderError):
                while data := theirs.recv(_PIECE_BYTES):
                    if not self.ask("call", "send", key, _encoded(data), False):
                        break
                self.ask("call", "send", key, "", True)
                if not over.wait(2.0):  # what was sent last may still be answered
                    self.ask("call", "close", key)

        def down() -> None:
            code = None
            with contextlib.suppress(OSError, ProviderError):
                while code is None and not (self._is_closed and key not in self._streams):
                    out, _, code = self.ask("call", "hear", key)
                    theirs.sendall(base64.b64decode(out))
            over.set()
            with contextlib.suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(ProviderError):
                self.ask("call", "close", key)
            with self._lock:
                self._streams.discard(key)
            theirs.close()

        for move in (up, down):
            threading.Thread(target=move, name=f"ray {move.__name__}", daemon=True).start()


class _Processes:
    """What `converse` starts processes with."""

    def __init__(self, connection: RayConnection) -> None:
        self._connection = connection
        self._started: list[_Process] = []

    async def create_process(self, command: str, *, encoding: None) -> _Process:
        """Start one."""
        del encoding  # as asyncssh has it; here all are bytes
        process = _Process(self._connection)
        await process.call("start", process.key, command)
        process.begin()
        self._started.append(process)
        return process

    async def run(self, command: str) -> None:
        """Run one that says nothing."""
        process = await self.create_process(command, encoding=None)
        await process.wait_closed()

    async def end(self) -> None:
        """End those that still run, with all that they have started."""
        for process in self._started:
            await process.end()


class _Process:
    """One, as asyncssh has them."""

    def __init__(self, connection: RayConnection) -> None:
        self._connection, self.key = connection, connection.key()
        self.stdin = _Inlet(self)
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.returncode: int | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def call(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """Have the machine do something."""
        return said_by(await asyncio.wrap_future(self._connection.begin("call", do, *args)))

    def begin(self) -> None:
        """Listen to it."""
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        try:
            while self.returncode is None:
                out, err, self.returncode = await self.call("hear", self.key)
                self.stdout.feed_data(base64.b64decode(out))
                self.stderr.feed_data(base64.b64decode(err))
        except ProviderError as error:
            self.stdout.set_exception(error)
            self.stderr.set_exception(error)
            raise
        self.stdout.feed_eof()
        self.stderr.feed_eof()

    async def wait_closed(self) -> None:
        """Until it has ended."""
        assert self._hearing is not None
        await self._hearing

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(ProviderError):
            self._connection.begin("call", "close", self.key)

    async def end(self) -> None:
        """Let go of it."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        self.close()


class _Inlet:
    """Its standard input."""

    def __init__(self, process: _Process) -> None:
        self._process = process
        self._held = b""
        self._is_closing = False
        self._ending: asyncio.Task[Any] | None = None

    def write(self, data: bytes) -> None:
        """Keep it until `drain`."""
        self._held += data

    async def drain(self) -> None:
        """Send what was written."""
        held, self._held = memoryview(self._held), b""
        while held and not self._is_closing:
            piece, held = held[:_PIECE_BYTES], held[_PIECE_BYTES:]
            if not await self._process.call("send", self._process.key, _encoded(piece), False):
                self._is_closing = True

    def write_eof(self) -> None:
        """All was said."""
        if not self._is_closing:
            self._ending = asyncio.create_task(self._end())

    async def _end(self) -> None:
        with contextlib.suppress(ProviderError):  # who listens to it hears that it is lost
            await self._process.call("send", self._process.key, "", True)

    def is_closing(self) -> bool:
        """Whether it does not listen any more."""
        return self._is_closing


def _encoded(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode()
