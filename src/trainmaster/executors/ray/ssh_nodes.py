"""`SshNodes`: how a `RayCluster` reaches nodes that are hosts with an SSH server.

A connection per node is kept and made anew when it was lost. The stream to the gateway is one more channel of
the head's connection; asyncssh's thread moves its bytes, so that the driver has a plain socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from trainmaster.spec.errors import ExecutorError, TrainmasterError
from trainmaster.transport import files
from trainmaster.transport.errors import UnreachableError

if TYPE_CHECKING:
    from trainmaster.executors.ray.commands import ClusterNode
    from trainmaster.transport.ssh import Connection, Ssh
    from trainmaster.transport.target import Target

T = TypeVar("T")

_RUN_TIMEOUT_S = 150.0
_OPEN_TIMEOUT_S = 20.0
_PARTING_S = 2.0
_READ_BYTES = 1 << 18
#: Said before anything else: what comes earlier is from the login's start-up files.
_MARK = b"@@stream\n"
_NOISE_BYTES_MAX = 1 << 16


class SshNodes:
    """Nodes behind SSH. Its methods may be called by any thread. Close it, or use it in a ``with``.

    Args:
        ssh: connects; it is the caller's to close, after this.
        targets: where each node is, by the key that `ClusterNode` has; `add` tells of later ones.

    Example:
        >>> nodes = SshNodes(ssh, {"n0": target})  # doctest: +SKIP
        >>> cluster = RayCluster.start(directory, [node], nodes.run, nodes.stream)  # doctest: +SKIP
    """

    def __init__(self, ssh: Ssh, targets: Mapping[str, Target]) -> None:
        self._ssh = ssh
        self._targets = dict(targets)
        self._connections: dict[str, Connection] = {}
        self._lock = threading.Lock()
        self._streams: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, key: str, target: Target) -> None:
        """A further node, or an old one in another place."""
        with self._lock:
            self._targets[key] = target
            lost = self._connections.pop(key, None)
        if lost is not None:
            lost.close()

    def run(self, node: ClusterNode, command: Sequence[str], stdin: bytes) -> bytes:
        """See `trainmaster.executors.ray.cluster.Runner`. What it runs may be repeated."""
        line = "exec " + shlex.join(command)
        result = self._with(node.key, lambda it: it.run(line, data=stdin, timeout_s=_RUN_TIMEOUT_S))
        if result.code != 0:
            raise ExecutorError(
                f"node {node.key}: {command[0]} ended with {result.code}: {result.last_words}",
                f"Has {command[0]} there both Trainmaster and Ray (pip install 'trainmaster[ray]')?",
            )
        return result.out.encode()

    def stream(self, node: ClusterNode, command: Sequence[str]) -> socket.socket:
        """See `trainmaster.executors.ray.cluster.Opener`."""
        inner = f"echo {_MARK.decode().strip()}; exec {shlex.join(command)}"
        line = f"exec /bin/sh -c {shlex.quote(inner)}"

        def begin(connection: Connection) -> socket.socket:
            ours, theirs = socket.socketpair()
            try:
                self._ssh.wait(self._begin(connection, line, theirs), _OPEN_TIMEOUT_S)
            except BaseException as error:
                ours.close()
                theirs.close()
                if isinstance(error, TrainmasterError) or not isinstance(error, Exception):
                    raise
                said = str(error) or type(error).__name__  # asyncssh has many kinds
                raise UnreachableError(f"{connection.target.shown}: {said}") from error
            return ours

        return self._with(node.key, begin)

    def upload(self, key: str, source: Path, destination: str, timeout_s: float = 900.0) -> None:
        """Copy what is in a directory here into one of a node, which is made if need be.

        Raises:
            ExecutorError: the node cannot be reached, or cannot take it.
        """
        self._with(key, lambda it: files.upload(it, source, destination, timeout_s))

    def close(self) -> None:
        """Hang up everywhere."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def _with(self, key: str, work: Callable[[Connection], T]) -> T:
        """Do something over a node's connection; once more over a new one, if the old one was lost."""
        try:
            connection, is_old = self._connection(key)
            try:
                return work(connection)
            except UnreachableError:
                self._give_up(key, connection)
                if not is_old:
                    raise
            connection, _ = self._connection(key)
            return work(connection)
        except TrainmasterError as error:
            raise ExecutorError(f"node {key}: {Exception.__str__(error)}", error.hint) from error

    def _connection(self, key: str) -> tuple[Connection, bool]:
        with self._lock:
            known, target = self._connections.get(key), self._targets.get(key)
        if known is not None and not known.is_closed:
            return known, True
        if target is None:
            raise ExecutorError("nobody knows where it is", "Give its target to `add`.")
        made = self._ssh.connect(target)
        with self._lock:
            other = self._connections.get(key)
            if other is None or other.is_closed:
                self._connections[key] = made
                return made, False
        made.close()  # another thread was faster
        return other, True

    def _give_up(self, key: str, connection: Connection) -> None:
        with self._lock:
            if self._connections.get(key) is connection:
                del self._connections[key]
        connection.close()

    async def _begin(self, connection: Connection, line: str, theirs: socket.socket) -> None:
        import asyncssh

        theirs.setblocking(False)
        process = await connection.raw.create_process(line, encoding=None, stderr=asyncssh.DEVNULL)
        task = asyncio.create_task(_join(process, theirs))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)


async def _join(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401 - asyncssh's
    """Move bytes both ways until either end hangs up."""
    up, down = (
        asyncio.create_task(_send_up(process, theirs)),
        asyncio.create_task(_bring_down(process, theirs)),
    )
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done():  # what was sent last is still to arrive
            await asyncio.wait({down}, timeout=_PARTING_S)
    finally:
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        process.close()
        theirs.close()


async def _send_up(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(theirs, _READ_BYTES):
            process.stdin.write(data)
            await process.stdin.drain()
        process.stdin.write_eof()


async def _bring_down(process: Any, theirs: socket.socket) -> None:  # noqa: ANN401
    import asyncssh

    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, asyncssh.Error):
        noise = b""
        while _MARK not in noise:
            data = await process.stdout.read(_READ_BYTES)
            noise += data
            if not data or len(noise) > _NOISE_BYTES_MAX:
                return
        await loop.sock_sendall(theirs, noise.partition(_MARK)[2])
        while data := await process.stdout.read(_READ_BYTES):
            await loop.sock_sendall(theirs, data)
