"""`Pods`: pods as other machines are reached: commands by ``exec``, with the rights of one namespace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.transport.base import (
    ANSWER_BYTES,
    Connection,
    ConnectionLostError,
    Exchange,
    RemoteTimeoutError,
    Result,
    Target,
    Transport,
    UnreachableError,
)
from trainmaster.transport.conversation import converse, wait_given_up
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.exec_process import ExecProcess, load_websockets, run_line
from trainmaster.transport.kubernetes.login import read_login

#: What stands in the place of the client `ssh`: a module; it gets `Node.way`, then what `ssh` gets.
CLIENT: Final = "trainmaster.transport.kubernetes.client"
_TIMEOUT_S: Final = 60.0
_READ_BYTES: Final = 1 << 18
_PARTING_S: Final = 2.0
#: To end a command is another connection to Kubernetes, which is slow when commands are.
_KILL_S: Final = 20.0
#: Joins its input and output to a port; `python3` is what a node needs anyway.
_RELAY: Final = """\
import os, socket, sys, threading
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def down():
    try:
        while piece := line.recv(262144):
            while piece: piece = piece[os.write(1, piece):]
    finally: os._exit(0)
threading.Thread(target=down, daemon=True).start()
while piece := os.read(0, 262144): line.sendall(piece)
line.shutdown(1)
threading.Event().wait()
"""


def way_of(context: str, namespace: str, environ: Mapping[str, str]) -> str:
    """What `Node.way` says of a pod: which files, context and namespace it is in.

    >>> way_of("lab", "me", {"KUBECONFIG": "/k"})
    'KUBECONFIG=/k lab me'
    """
    return shlex.join([f"KUBECONFIG={environ.get('KUBECONFIG', '')}", context, namespace])


def api_of(way: str, environ: Mapping[str, str]) -> KubeApi:
    """The Kubernetes that a way leads to.

    Raises:
        UsageError: there is no login to it.
    """
    files, context, namespace = shlex.split(way)
    files = files.removeprefix("KUBECONFIG=")
    login = read_login(context, {**environ, "KUBECONFIG": files} if files else environ)
    return KubeApi(login, namespace)


class Pods(Transport):
    """Makes connections to pods. Threads share it."""

    def __init__(self) -> None:
        load_websockets()
        self._apis: dict[str, KubeApi] = {}
        self._lock = threading.Lock()

    def connect(self, target: Target) -> PodConnection:
        """A way to a pod that runs."""
        api = self._api(target)
        try:
            status = api.call("GET", f"pods/{target.address}", timeout_s=10.0).get("status") or {}
        except KubeRefusedError as refused:
            raise UnreachableError(f"{target.shown}: {refused.words}", "Has it ended?") from None
        except ProviderError as error:
            raise UnreachableError(f"{target.shown}: {Exception.__str__(error)}", error.hint) from None
        if status.get("phase") != "Running":
            raise UnreachableError(
                f"{target.shown}: it does not run ({status.get('phase')})", "Has it ended?"
            )
        return PodConnection(target, api)

    def forget(self, target: Target) -> None:
        """Nothing is kept of pods."""

    def close(self) -> None:
        """Nothing is kept open."""

    def _api(self, target: Target) -> KubeApi:
        with self._lock:
            if target.way not in self._apis:
                self._apis[target.way] = api_of(target.way, os.environ)
            return self._apis[target.way]


def pods_transport(root: Path) -> Pods:
    """What pods are reached by, on behalf of any home."""
    del root
    return Pods()


class _Commands:
    """What `converse` starts commands with."""

    def __init__(self, api: KubeApi, target: Target) -> None:
        self._api, self._target = api, target
        self._started: list[ExecProcess] = []

    async def create_process(self, command: str, *, encoding: None) -> ExecProcess:
        """Start one."""
        del encoding
        process = await ExecProcess.start(self._api, self._target.address, command, self._target.shown)
        self._started.append(process)
        return process

    async def run(self, command: str) -> None:
        """Run one that says nothing."""
        process = await self.create_process(command, encoding=None)
        process.stdin.write_eof()
        await process.wait_closed()

    async def end(self) -> None:
        """Hang up."""
        await asyncio.gather(*(each.hang_up() for each in self._started))


class PodConnection(Connection):
    """Each command is a connection of its own to Kubernetes; nothing else is kept open.

    Attributes:
        target, host_key: see `Connection`.
    """

    def __init__(self, target: Target, api: KubeApi) -> None:
        self.target, self.host_key, self._api = target, "", api
        self._is_closed = False
        self._lock = threading.Lock()
        self._streams: set[socket.socket] = set()

    def exchange(
        self, talk: Exchange, timeout_s: float | None = None, limit_bytes: int = ANSWER_BYTES
    ) -> Result:
        """See `Connection`."""
        self._check_open()
        limit_s = _TIMEOUT_S if timeout_s is None else timeout_s

        async def work() -> Result:
            commands = _Commands(self._api, self.target)
            try:
                return await converse(
                    commands,
                    talk,
                    limit_s,
                    limit_bytes,
                    self.target.shown,
                    lost=(OSError, ConnectionLostError),
                )
            except RemoteTimeoutError:
                await wait_given_up(_KILL_S)
                raise
            finally:
                await commands.end()

        return asyncio.run(work())

    def stream(self, command: str, *, is_halved: bool = False) -> socket.socket:
        """See `Connection`. is_halved: what has all its input may still answer for as long as it likes."""
        self._check_open()
        ours, theirs = socket.socketpair()
        began: list[Exception | None] = []
        ready = threading.Event()

        async def work() -> None:
            try:
                process = await ExecProcess.start(
                    self._api, self.target.address, run_line(command), self.target.shown
                )
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                began.append(error)
                return
            finally:
                ready.set()
            await _join(process, theirs, None if is_halved else _PARTING_S)

        def run() -> None:
            with theirs:
                asyncio.run(work())
            with self._lock:
                self._streams.discard(theirs)

        with self._lock:
            self._streams.add(theirs)
        theirs.setblocking(False)
        threading.Thread(target=run, name=f"stream to {self.target.name}", daemon=True).start()
        ready.wait()
        if began and began[0] is not None:
            ours.close()
            raise began[0]
        return ours

    @contextlib.contextmanager
    def forward(self, host: str, port: int, local_port: int = 0) -> Iterator[int]:
        """Let a port here lead to one over there, while inside ``with``; the port here."""
        with socket.create_server(("127.0.0.1", local_port)) as server:
            forwarding = Forwarding(server, lambda: self.stream(relay_command(host, port), is_halved=True))
            try:
                yield server.getsockname()[1]
            finally:
                forwarding.close()

    def close(self) -> None:
        """Streams end."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams)
        for each in streams:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnreachableError(f"{self.target.shown}: the connection was closed")


def relay_command(host: str, port: int) -> str:
    """Joins its input and output to a port."""
    return f"exec python3 -ISc {shlex.quote(_RELAY)} {shlex.quote(host)} {port}"


class Forwarding:
    """Lets whatever connects to a server here through to a stream.

    Args:
        server: that listens.
        opens: makes a stream.
    """

    def __init__(self, server: socket.socket, opens: Callable[[], socket.socket]) -> None:
        self._server, self._opens = server, opens
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    def close(self) -> None:
        """Take no more, and end what there is."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            open_now = list(self._open)
        for each in open_now:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), name="forward", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(TrainmasterError, OSError), self._opens() as line:
            with self._lock:
                self._open |= {client, line}
            up = threading.Thread(target=_pump, args=(client, line), daemon=True)
            up.start()
            _pump(line, client)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            up.join()
            with self._lock:
                self._open -= {client, line}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_READ_BYTES):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


async def _join(process: ExecProcess, theirs: socket.socket, parting_s: float | None) -> None:
    """Move bytes both ways until either end hangs up."""
    loop = asyncio.get_running_loop()

    async def send_up() -> None:
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(theirs, _READ_BYTES):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.write_eof()

    async def bring_down() -> None:
        with contextlib.suppress(OSError, ConnectionLostError):
            while data := await process.stdout.read(_READ_BYTES):
                await loop.sock_sendall(theirs, data)

    async def hear() -> None:  # what it says on standard error is lost, but must be read
        with contextlib.suppress(OSError, ConnectionLostError):
            while await process.stderr.read(_READ_BYTES):
                pass

    sending, bringing, hearing = (asyncio.create_task(work()) for work in (send_up, bring_down, hear))
    try:
        await asyncio.wait({sending, bringing}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():  # what was sent last is still to arrive
            await asyncio.wait({bringing}, timeout=parting_s)
    finally:
        for task in (sending, bringing, hearing):
            task.cancel()
        await asyncio.gather(sending, bringing, hearing, return_exceptions=True)
        await process.hang_up()
