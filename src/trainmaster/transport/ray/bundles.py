"""`RayTransport`: commands and streams to what runs in bundles of a Ray, through its actors."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import itertools
import secrets
from collections.abc import Iterator
from typing import Any, Final

from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.transport.base import ConnectionLostError, Target, Transport, UnreachableError
from trainmaster.transport.process_connection import PieceInput, ProcessConnection
from trainmaster.transport.ray.proxy import GoneError, RayProxy, said_by

_TIMEOUT_S: Final = 60.0
#: Below 100 KiB in base64: what is larger goes by way of Ray's object stores, and may never arrive.
_PIECE_BYTES: Final = 1 << 16


def namespace_of(machine: str) -> str:
    """Ray's, of a machine: that of the home whose it is.

    >>> namespace_of("0123456789ab-r1-train-5f3a9c.0")
    'trainmaster-0123456789ab'
    """
    return f"trainmaster-{machine.partition('-')[0]}"


class RayTransport(Transport):
    """See `Transport`. Addresses are names of actors. Others of this process may go on with its proxy.

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


class RayConnection(ProcessConnection):
    """Runs commands in sessions of their own, in the user's home, as an SSH server does."""

    lost = (OSError, ProviderError)

    def __init__(self, target: Target, proxy: RayProxy) -> None:
        super().__init__(target)
        self._proxy = proxy
        self._mark, self._numbers = secrets.token_hex(4), itertools.count()

    def begin(self, do: str, *args: object) -> concurrent.futures.Future[Any]:
        """Call a method of the actor, without waiting for anything."""
        name = self.target.address
        return self._proxy.begin_apart("call", namespace_of(name), name, do, *args)

    def ask(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """The same, with the answer.

        Raises:
            UnreachableError: there is none.
        """
        with self._unreachable():
            name = self.target.address
            answer = self._proxy.begin("call", namespace_of(name), name, do, *args)
            return said_by(answer.result(_TIMEOUT_S))

    @contextlib.contextmanager
    def _unreachable(self) -> Iterator[None]:
        try:
            yield
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

    async def start(self, command: str) -> _Process:
        """See `ProcessConnection`."""
        return await self._begun("start", command)

    async def reach(self, host: str, port: int) -> _Process:
        """See `ProcessConnection`."""
        return await self._begun("connect", host, port)

    async def _begun(self, do: str, *args: object) -> _Process:
        process = _Process(self)
        answer = self.begin("call", do, process.key, *args)
        with self._unreachable():
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    said_by(await asyncio.wrap_future(answer))
            except (asyncio.CancelledError, TimeoutError, ConnectionLostError):
                if not answer.cancel():
                    process.close()  # it was asked for: it may have begun, or still do so
                raise
        process.begin()
        return process


class _Process:
    """One, as asyncssh has them."""

    def __init__(self, connection: RayConnection) -> None:
        self._connection, self.key = connection, connection.key()
        self.stdin = PieceInput(self._say, _PIECE_BYTES)
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()
        self.returncode: int | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def call(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """Have the machine do something."""
        return said_by(await asyncio.wrap_future(self._connection.begin("call", do, *args)))

    async def _say(self, piece: bytes) -> bool:
        """Say something to it; False if it does not listen any more."""
        return bool(await self.call("send", self.key, base64.b64encode(piece).decode(), not piece))

    def begin(self) -> None:
        """Listen to it."""
        self._hearing = asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        try:
            while self.returncode is None:
                out, err, self.returncode = await self.call("hear", self.key)
                self.stdout.feed_data(base64.b64decode(out))
                self.stderr.feed_data(base64.b64decode(err))
        except TrainmasterError as error:
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
        self._connection.begin("call", "close", self.key)

    async def hang_up(self) -> None:
        """Let go of it; what still runs is ended."""
        if self._hearing is not None:
            self._hearing.cancel()
            await asyncio.gather(self._hearing, return_exceptions=True)
        self.close()
