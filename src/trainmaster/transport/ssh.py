"""`Ssh` and `SshConnection`: SSH for code that is not asynchronous.

One thread runs asyncssh's event loop; every method here may be called by any other thread and waits for its
result. Whatever waits has a limit.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import shlex
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import TrainmasterError, imports_of
from trainmaster.transport.base import (
    ANSWER_BYTES,
    Connection,
    Exchange,
    HostKeyError,
    LoginRefusedError,
    Result,
    Target,
    Transport,
    UnreachableError,
)
from trainmaster.transport.host_keys import FILE_NAME, HostKeys
from trainmaster.transport.local import LocalConnection
from trainmaster.transport.pool import KEPT_S, IdleLogins
from trainmaster.transport.remote_command import join, run_command

if TYPE_CHECKING:
    from pathlib import Path

    import asyncssh

    from trainmaster.transport.checked_connection import MayReach


#: Said before anything else: what comes earlier is from the login's start-up files.
_MARK: Final = b"@@stream\n"
_streams: set[asyncio.Task[None]] = set()


async def begin_stream(connection: asyncssh.SSHClientConnection, command: str, theirs: socket.socket) -> None:
    """Start a command whose standard input and output are the other end of a socket; on the loop.

    Args:
        connection: open.
        command: for the POSIX shell.
        theirs: our end of the pair; closed when the command has ended.
    """
    import asyncssh

    theirs.setblocking(False)
    line = f"exec /bin/sh -c {shlex.quote(f'echo {_MARK.decode().strip()}; {command}')}"
    process = await connection.create_process(line, encoding=None, stderr=asyncssh.DEVNULL)
    lost = (OSError, asyncssh.Error)
    task = asyncio.create_task(join(process, theirs, lost, after=_MARK))
    _streams.add(task)
    task.add_done_callback(_streams.discard)
    task.add_done_callback(lambda _: process.close())
    task.add_done_callback(lambda _: theirs.close())  # also if it never began, as the loop was ended


T = TypeVar("T")

#: How `ctypes.util` asks them, where it does.
_COMPILERS: Final = ("_findLib_gcc", "_findLib_ld")
_loading: Final = threading.Lock()
_CLOSE_S: Final = 2.0
#: Of the loop: an aborted connection ends its session in the next one, its socket in the one after, or two.
_LAST_ROUNDS: Final = 5
_STREAM_S: Final = 20.0
#: More for a command that leads to a machine: a step of an allocation starts in seconds.
_WAY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How patient we are.

    Attributes:
        connect_timeout_s: from the first packet to being logged in.
        keepalive_s: after so long without a word the other end is asked whether it is there.
        keepalive_count: unanswered questions after which the connection is given up.
        command_timeout_s: of a command that does not say otherwise.
    """

    connect_timeout_s: float = 10.0
    keepalive_s: float = 5.0
    keepalive_count: int = 3
    command_timeout_s: float = 60.0


def load_asyncssh() -> Any:  # noqa: ANN401 - the module
    """The library, or how to get it.

    Raises:
        MissingPartError: it is not installed.
    """
    with imports_of("hosts", "a host over SSH"), _loading:
        if "asyncssh" not in sys.modules:
            _load_without_compilers()
        import asyncssh
    return asyncssh


def _load_without_compilers() -> None:
    """It looks for libraries that it can do without.

    `ctypes` has `gcc` and `ld` look for what the loader's cache does not know, a dozen processes in all: that
    takes a small machine as long as the import.
    """
    import ctypes.util

    known = {name: getattr(ctypes.util, name) for name in _COMPILERS if hasattr(ctypes.util, name)}
    try:
        for name in () if "LD_LIBRARY_PATH" in os.environ else known:
            setattr(ctypes.util, name, lambda _: None)
        import asyncssh  # noqa: F401 - for what comes with it
    finally:
        for name, function in known.items():
            setattr(ctypes.util, name, function)


class Ssh(Transport):
    """Makes connections. Close it, or use it in a ``with``.

    Args:
        host_keys: what hosts are known by.
        settings: how patient we are.
        may_reach: which addresses this machine may connect to; None for all.
    """

    def __init__(
        self, host_keys: HostKeys, settings: SshSettings | None = None, may_reach: MayReach | None = None
    ) -> None:
        self.host_keys, self._may_reach = host_keys, may_reach
        self.settings = settings or SshSettings()
        self._library = load_asyncssh()
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncssh.SSHClientConnection] = set()
        self._is_closed = False
        self._gate = threading.Lock()
        self._idle: IdleLogins[SshConnection] = IdleLogins()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="ssh")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def connection(self, target: Target) -> Iterator[SshConnection]:
        """A login for a few quick things, which the next caller may have for a moment afterwards.

        Raises:
            TrainmasterError: as `connect`.
        """
        connection = self.connect(target)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._idle.put(connection):
            later = functools.partial(self._loop.call_later, KEPT_S + 0.1, self._hang_up_idle)
            self._loop.call_soon_threadsafe(later)
        else:
            connection.close()

    def connect(self, target: Target) -> SshConnection:
        """Log in; a login that somebody has just given back will do.

        Raises:
            UnreachableError: the machine does not answer in time.
            LoginRefusedError: the user or the key is not taken.
            HostKeyError: the host shows another key than it should.
        """
        if (idle := self._idle.take(target)) is not None:
            return idle
        through: Connection | None = self.connect(target.jump) if target.jump else None
        if target.way and through is None:
            through = LocalConnection(target)
        try:
            line = through.stream(target.way) if through and target.way else None
            if through is None and self._may_reach is not None:
                line = self._checked(target, self._may_reach)
            return self.wait(self._connect(target, through, line))
        except BaseException:
            if through is not None:
                through.close()
            raise

    def known_keys(self, target: Target) -> tuple[str, ...]:
        """See `Transport`."""
        return tuple(pin.key for pin in self.host_keys.pins(target))

    def forget(self, target: Target) -> None:
        """See `Transport`."""
        self.host_keys.forget(target)

    def close(self) -> None:
        """End the thread, and with it every connection."""
        with self._gate:
            if self._is_closed:
                return
            self._is_closed = True  # nothing begins any more: it would wait for a loop that has ended
        self._idle.close()
        with contextlib.suppress(TrainmasterError, TimeoutError, concurrent.futures.CancelledError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_CLOSE_S + 1)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Have the loop do something, and wait for it."""
        with self._gate:
            if self._is_closed:
                work.close()
                raise UnreachableError("the connection was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise UnreachableError("the connection was closed") from None
        except BaseException:
            future.cancel()
            raise

    def _hang_up_idle(self) -> None:
        """On the loop: they were not wanted."""
        for connection in self._idle.too_old():
            connection.drop()

    async def _end(self) -> None:
        for raw in list(self._open):
            raw.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        for _ in range(_LAST_ROUNDS):
            await asyncio.sleep(0)

    async def _connect(
        self, target: Target, through: Connection | None, line: socket.socket | None
    ) -> SshConnection:
        import asyncssh

        stage = ["nothing answers"]
        refused: list[HostKeyError] = []
        shown_key: list[str] = []
        keys, is_open = self.host_keys, self._open

        class SshClient(asyncssh.SSHClient):
            def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
                stage[0] = "it takes connections, but its SSH server says nothing"
                self._conn = conn
                is_open.add(conn)  # also one that its user has left without a word ends with us

            def connection_lost(self, _: Exception | None) -> None:
                is_open.discard(self._conn)

            def validate_host_public_key(
                self, _host: str, _addr: str, _port: int, key: asyncssh.SSHKey
            ) -> bool:
                shown = " ".join(key.export_public_key("openssh").decode().split()[:2])
                try:
                    keys.accept(target, shown)
                except HostKeyError as error:
                    refused.append(error)
                    return False
                shown_key.append(shown)
                stage[0] = f"its SSH server does not let {target.login} in"
                return True

        options: dict[str, Any] = {}
        if target.key is not None:  # only this one: servers count the keys that are tried
            options = {"client_keys": [str(target.key)], "agent_path": None}
        limit_s = self.settings.connect_timeout_s + (_WAY_S if target.way else 0.0)
        try:
            async with asyncio.timeout(limit_s):
                connection = await asyncssh.connect(
                    target.address,
                    target.port,
                    tunnel=through.raw if isinstance(through, SshConnection) and line is None else None,
                    sock=line,
                    username=target.login,
                    known_hosts=([], [], []),  # none of the user's own: the client above judges
                    server_host_key_algs=keys.algorithms(target),
                    client_factory=SshClient,
                    config=None,
                    preferred_auth="publickey",
                    login_timeout=0,
                    keepalive_interval=self.settings.keepalive_s,
                    keepalive_count_max=self.settings.keepalive_count,
                    **options,
                )
        except TimeoutError:
            raise UnreachableError(
                f"{target.shown}: {stage[0]} for {limit_s:g} s", "Is it on, and is its SSH server well?"
            ) from None
        except (OSError, asyncssh.Error, asyncssh.KeyImportError, ValueError) as error:
            raise refused[0] if refused else self._explained(target, error) from error
        return SshConnection(self, target, connection, shown_key[0] if shown_key else "", through)

    def _checked(self, target: Target, may_reach: MayReach) -> socket.socket:
        """A connection to an address of it that may be reached."""
        from trainmaster.transport.checked_connection import checked_connection

        timeout_s = self.settings.connect_timeout_s
        try:
            return checked_connection(target.address, target.port, may_reach, timeout_s)
        except OSError as error:
            raise self._explained(target, error) from error

    def _explained(self, target: Target, error: Exception) -> TrainmasterError:
        asyncssh = self._library
        key = f"the key {target.key}" if target.key else "the keys of your agent and ~/.ssh"
        if isinstance(error, asyncssh.PermissionDenied):
            return LoginRefusedError(
                f"{target.shown} does not let {target.login} in with {key}",
                f"Try: ssh {'-i ' + shlex.quote(str(target.key)) + ' ' if target.key else ''}"
                f"-p {target.port} {target.login}@{target.address}",
            )
        if isinstance(error, asyncssh.KeyImportError):  # also one with a passphrase
            return LoginRefusedError(
                f"{target.shown}: {key} cannot be used: {error}",
                "One with a passphrase is to be loaded by ssh-add; leave `key` out then.",
            )
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return UnreachableError(
            f"{target.shown}: {said or type(error).__name__}", "Is it on, and is the address right?"
        )


def ssh_transport(root: Path, may_reach: MayReach | None = None) -> Ssh:
    """What machines are reached by, on behalf of the home there; see `Ssh`."""
    # a dead node should be noticed, and its keepalive given up, within a few seconds
    return Ssh(HostKeys(root / FILE_NAME), SshSettings(connect_timeout_s=5.0, keepalive_s=2.0), may_reach)


class SshConnection(Connection):
    """A login on a machine; see `Connection`.

    Attributes:
        target: the machine.
        host_key: that it has shown, ``type base64``.
        raw: asyncssh's own object, to be used on its loop only.
    """

    def __init__(
        self,
        ssh: Ssh,
        target: Target,
        raw: asyncssh.SSHClientConnection,
        host_key: str,
        through: Connection | None,
    ) -> None:
        self.target = target
        self.host_key = host_key
        self.raw = raw
        self._ssh = ssh
        self._through = through

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """See `Connection`."""
        limit_s = self._ssh.settings.command_timeout_s if timeout_s is None else timeout_s
        lost = (OSError, load_asyncssh().Error)
        return self._ssh.wait(run_command(self.raw, talk, limit_s, limit_bytes, self.target.shown, lost=lost))

    @contextlib.contextmanager
    def forward(self, host: str, port: int, local_port: int = 0) -> Iterator[int]:
        """Let a port here lead to one over there, while inside ``with``; the port here."""
        listener = self._guard(lambda: self.raw.forward_local_port("127.0.0.1", local_port, host, port))
        try:
            yield listener.get_port()
        finally:
            self._hang_up(listener)

    def stream(self, command: str) -> socket.socket:
        """See `Connection`."""
        ours, theirs = socket.socketpair()
        try:
            self._guard(lambda: begin_stream(self.raw, command, theirs), _STREAM_S)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        return ours

    def close(self) -> None:
        """Hang up."""

        async def end() -> None:
            self.raw.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.raw.wait_closed(), _CLOSE_S)
            self.raw.abort()

        with contextlib.suppress(RuntimeError, TrainmasterError):
            self._ssh.wait(end())
        if self._through is not None:
            self._through.close()

    def drop(self) -> None:
        """Hang up without waiting for the other end; on the loop only."""
        self.raw.close()
        if isinstance(self._through, SshConnection):
            self._through.drop()
        elif self._through is not None:
            self._through.close()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or lost."""
        return self.raw.is_closed()

    def _guard(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Wait for a call of asyncssh, with our errors."""
        asyncssh = load_asyncssh()

        async def work() -> T:
            return await call()

        try:
            return self._ssh.wait(work(), timeout_s or self._ssh.settings.command_timeout_s)
        except (OSError, asyncssh.Error) as error:
            words = str(error) or "no answer in time"  # a TimeoutError has none
            raise UnreachableError(f"{self.target.shown}: {words}") from error

    def _hang_up(self, listener: asyncssh.SSHListener) -> None:
        async def end() -> None:
            listener.close()

        with contextlib.suppress(TrainmasterError, TimeoutError):
            self._ssh.wait(end(), _CLOSE_S)
