"""`ProcessConnection`: a connection whose commands are processes that look as asyncssh's do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Final, Protocol

from trainmaster.spec.errors import TrainmasterError
from trainmaster.transport.base import (
    ANSWER_BYTES,
    Connection,
    ConnectionLostError,
    Exchange,
    RemoteTimeoutError,
    Result,
    Target,
    UnreachableError,
)
from trainmaster.transport.forwarding import Forwarding, SocketStream
from trainmaster.transport.remote_command import PARTING_S, join, run_command, wait_given_up

_TIMEOUT_S: Final = 60.0
_READ_BYTES: Final = 1 << 18


class RemoteProcess(Protocol):
    """A command there, or a connection to a port. stdin, stdout, stderr, returncode: as asyncssh has them."""

    stdin: Any
    stdout: Any
    stderr: Any

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative if a signal ended it."""

    async def wait_closed(self) -> None:
        """Until it has ended, or the connection is lost."""

    def close(self) -> None:
        """End it."""

    async def hang_up(self) -> None:
        """Let go of it; what still runs is ended."""


class PieceInput:
    """Standard input of a process to which it goes in pieces.

    Args:
        send: a piece; one of no bytes says that this was all. False: it does not listen any more.
        most_bytes: of a piece.

    Attributes:
        is_over: nothing is read any more.
    """

    def __init__(self, send: Callable[[bytes], Awaitable[bool]], most_bytes: int) -> None:
        self._send, self._most_bytes = send, most_bytes
        self._waiting = bytearray()
        self._ending: asyncio.Task[None] | None = None
        self.is_over = False

    def is_closing(self) -> bool:
        """Whether nothing is read any more."""
        return self.is_over

    def write(self, data: bytes) -> None:
        """Send it with the next `drain`, if anything is read yet."""
        if not self.is_over:
            self._waiting += data

    async def drain(self) -> None:
        """Until it is on its way."""
        while self._waiting and not self.is_over:
            piece = bytes(self._waiting[: self._most_bytes])
            del self._waiting[: self._most_bytes]
            try:
                self.is_over |= not await self._send(piece)
            except BrokenPipeError:
                self.is_over = True
                raise

    def write_eof(self) -> None:
        """That was all."""
        if not self.is_over:
            self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        with contextlib.suppress(OSError, TrainmasterError):  # who listens to it hears that it is lost
            await self._send(b"")


Start = Callable[[], Awaitable[RemoteProcess]]


class ProcessConnection(Connection):
    """See `Connection`; each command is a call of its own.

    Attributes:
        target, host_key: see `Connection`.
        lost: errors that mean that it is lost.
        end_patience_s: how long the end of a command that was given up is waited for.
    """

    lost: ClassVar[tuple[type[Exception], ...]] = (OSError, ConnectionLostError)
    #: To end a command takes another call, which is slow when commands are.
    end_patience_s: ClassVar[float] = 20.0

    def __init__(self, target: Target) -> None:
        self.target, self.host_key = target, ""
        self._is_closed = False
        self._lock = threading.Lock()
        self._streams: dict[socket.socket, threading.Thread] = {}

    @abstractmethod
    async def start(self, command: str) -> RemoteProcess:
        """Start a command.

        Raises:
            UnreachableError: it cannot be started now.
        """

    @abstractmethod
    async def reach(self, host: str, port: int) -> RemoteProcess:
        """Connect to a port that can be reached from there; raises as `start` does."""

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """See `Connection`."""
        self._check_open()
        limit_s = _TIMEOUT_S if timeout_s is None else timeout_s

        async def work() -> Result:
            commands = _Commands(self.start)
            try:
                return await run_command(
                    commands, talk, limit_s, limit_bytes, self.target.shown, lost=self.lost
                )
            except RemoteTimeoutError:
                await wait_given_up(self.end_patience_s)
                raise
            finally:
                await commands.end()

        return asyncio.run(work())

    def stream(self, command: str) -> socket.socket:
        """See `Connection`."""
        return self._joined(lambda: self.start(f"exec 2>/dev/null; {command}"), PARTING_S)

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
        opens = lambda: SocketStream(self._joined(lambda: self.reach(host, port), None))  # noqa: E731
        with contextlib.closing(Forwarding(server, opens)):
            yield

    def close(self) -> None:
        """Streams end."""
        with self._lock:
            self._is_closed = True
            streams = dict(self._streams)
        for each in streams:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + PARTING_S  # who ends next may be the whole process
        for thread in streams.values():
            thread.join(max(deadline - time.monotonic(), 0.0))

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or its machine is known to be gone."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnreachableError(f"{self.target.shown}: the connection was closed")

    def _joined(self, start: Start, parting_s: float | None) -> socket.socket:
        """What leads to a process. parting_s: so long may it answer when it has all its input."""
        self._check_open()
        ours, theirs = socket.socketpair()
        began: list[Exception] = []
        ready = threading.Event()

        async def work() -> None:
            try:
                process = await start()
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                began.append(error)
                return
            finally:
                ready.set()
            await self._join(process, theirs, parting_s)

        def run() -> None:
            with theirs:
                asyncio.run(work())
            with self._lock:
                self._streams.pop(theirs, None)

        theirs.setblocking(False)
        thread = threading.Thread(target=run, name=f"stream to {self.target.name}", daemon=True)
        with self._lock:
            self._streams[theirs] = thread
        thread.start()
        ready.wait()
        if began:
            ours.close()
            raise began[0]
        return ours

    async def _join(self, process: RemoteProcess, theirs: socket.socket, parting_s: float | None) -> None:
        async def hear() -> None:  # what it says on standard error is lost, but must be read
            with contextlib.suppress(*self.lost):
                while await process.stderr.read(_READ_BYTES):
                    pass

        hearing = asyncio.create_task(hear())
        try:
            await join(process, theirs, (*self.lost, OSError), parting_s=parting_s)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await process.hang_up()


class _Commands:
    """What `run_command` starts commands with."""

    def __init__(self, start: Callable[[str], Awaitable[RemoteProcess]]) -> None:
        self._start = start
        self._started: list[RemoteProcess] = []

    async def create_process(self, command: str, *, encoding: None) -> RemoteProcess:
        """Start one."""
        del encoding  # as asyncssh has it; here all are bytes
        process = await self._start(command)
        self._started.append(process)
        return process

    async def run(self, command: str) -> None:
        """Run one that says nothing."""
        process = await self.create_process(command, encoding=None)
        process.stdin.write_eof()
        await process.wait_closed()

    async def end(self) -> None:
        """Let go of all."""
        await asyncio.gather(*(each.hang_up() for each in self._started))
