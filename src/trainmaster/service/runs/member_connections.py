"""`MemberConnections`: byte streams to ports of where the members of runs work, and commands there."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Final

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.known_nodes import KnownNodes
from trainmaster.service.runs.member_commands import MemberCommand, Terminal
from trainmaster.service.runs.member_ways import SshWay, check_member, find_way, processes_here
from trainmaster.service.service import Service
from trainmaster.service.shells import find_shell
from trainmaster.service.users.caller import TooOftenError
from trainmaster.spec.errors import NotListeningError, ProviderError, UsageError, fails_as

#: A machine that is on its way is waited for so long.
PATIENCE_S: Final = 60.0
#: An idle forwarding is kept for so long: apps are asked again and again.
_IDLE_S: Final = 60.0
#: So often it is looked whether there are such.
_LOOK_S: Final = 10.0
#: Forwardings of a run at a time, and of all runs.
_MAX_OF_RUN: Final = 32
_MAX: Final = 200
#: The way to a machine is asked of the cloud once in so long: a page opens many streams at once.
_WAY_S: Final = 5.0
_CONNECT_S: Final = 10.0
#: A machine that has not let us in after so long never does.
_READY_S: Final = 90.0
#: A thread that finds another one logging in there waits for it for so long.
_SHARED_S: Final = 25.0
_END_S: Final = 2.0
_MAX_PORT: Final = 65535
#: Of a longer line of a machine, which may say anything, pieces are lines.
_LINE_BYTES: Final = 4096
_READY: Final = b"@@forwards"
# Killed with us or not, it ends when its standard input does.
_THERE: Final = f"echo {_READY.decode()}; exec cat >/dev/null"


class MemberConnections:
    """Connections to members' machines that several may use; threads share it. Close it.

    Args:
        service: of the home.
        environ: of the caller: credentials of providers.
        is_for_others: who asks is not the user of this machine.
    """

    def __init__(self, service: Service, environ: Mapping[str, str], *, is_for_others: bool = False) -> None:
        self._service, self._environ, self._is_for_others = service, environ, is_for_others
        self._forwards: dict[tuple[str, str, int], _Forward] = {}
        self._making: dict[tuple[str, str, int], Future[_Forward]] = {}
        self._ways: dict[tuple[str, str | None], tuple[float, SshWay]] = {}
        self._known = KnownNodes()
        self._lock = threading.Lock()
        self._tending: threading.Thread | None = None
        self._over = threading.Event()

    def open(
        self, run: str, member: str | None, port: int, *, patience_s: float = PATIENCE_S
    ) -> socket.socket:
        """A stream to a port on the loopback of a member's machine; the caller's to close.

        On this machine only to ports at which a process of the run listens; so one run is no way into others.

        Args:
            run: its id. Who may use it is the caller's to decide.
            member: such as ``worker-1``, or a machine; None for the first one there is.
            port: at which something listens there.
            patience_s: a machine that is on its way is waited for so long.

        Raises:
            NotFoundError: the run has no such member, or its machines are gone.
            NotListeningError: nothing listens there.
            ProviderError: the machine cannot be reached.
            TooOftenError: there are as many ways to machines as there may be.
        """
        if not 1 <= port <= _MAX_PORT:
            raise UsageError(f"{port} is no port", f"Give a number from 1 to {_MAX_PORT}.")
        if capabilities_of(self._service.provider_of(run)).is_here:
            check_member(self._service, run, member)
            return _connected_here(run, member, port)
        way = self._way(run, member, patience_s)
        try:
            return self._forward(run, way, port).open()
        except ProviderError:
            with self._lock:
                self._ways.pop((run, member), None)  # there may be another machine by now
            self._known.forget(run, way.machine)
            raise

    def command(
        self,
        run: str,
        member: str | None,
        command: Sequence[str],
        terminal: Terminal | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
        patience_s: float = PATIENCE_S,
    ) -> MemberCommand:
        """A command where a member works, in the run's code, with its environment; a shell without one.

        Args:
            run: its id. Who may use it is the caller's to decide.
            member: as of `open`.
            command: as of `find_shell`.
            terminal: it gets one.
            tell: shows a line to the user.
            patience_s: a machine that is on its way is waited for so long.

        Raises:
            NotFoundError: the run has no such member, or its machines are gone.
            MissingPartError: there is no OpenSSH client here.
        """
        shell = find_shell(
            self._service, run, member, command, self._environ, tell,
            is_terminal=terminal is not None, patience_s=patience_s, is_for_others=self._is_for_others,
            nodes=self._known,
        )  # fmt: skip
        return MemberCommand(shell, terminal)

    def said_of(self, stream: socket.socket) -> str:
        """Why a stream of `open` has ended without a byte, as far as it is known: nothing listens there."""
        with self._lock:
            return next((each.last_words for each in self._forwards.values() if each.has(stream)), "")

    def close(self) -> None:
        """End what leads to machines."""
        self._over.set()
        with self._lock:
            forwards, self._forwards = list(self._forwards.values()), {}
        for forward in forwards:
            forward.close()

    def _way(self, run: str, member: str | None, patience_s: float) -> SshWay:
        now = time.monotonic()
        with self._lock:
            self._ways = {key: each for key, each in self._ways.items() if now - each[0] < _WAY_S}
            if (known := self._ways.get((run, member))) is not None:
                return known[1]
        way = find_way(
            self._service, run, member, self._environ,
            patience_s=patience_s, is_for_others=self._is_for_others, nodes=self._known,
        )  # fmt: skip
        with self._lock:
            self._ways[run, member] = (time.monotonic(), way)
        return way

    def _forward(self, run: str, way: SshWay, port: int) -> _Forward:
        """One that works already, or a new one: however many ask at once, they log in once."""
        self._end_unused()
        key = (run, way.machine, port)
        with self._lock:
            if (found := self._forwards.get(key)) is not None:
                found.note_use()
                return found
            if (making := self._making.get(key)) is None:
                mine = self._making[key] = self._promised(run)
        if making is not None:
            return _result(making, way, port)
        try:
            made = _Forward(way, port)  # not under the lock: others do not wait for a machine that is slow
        except BaseException as error:
            with self._lock:
                del self._making[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._forwards[key] = made
            if self._tending is None:
                self._tending = threading.Thread(target=self._tend, name="forwards", daemon=True)
                self._tending.start()
        mine.set_result(made)
        return made

    def _promised(self, run: str) -> Future[_Forward]:
        """One more, if there may be."""
        runs = [of_run for of_run, _, _ in [*self._forwards, *self._making]]
        if len(runs) >= _MAX or runs.count(run) >= _MAX_OF_RUN:
            raise TooOftenError(
                f"{run}: {runs.count(run)} of {len(runs)} ports of machines are in use",
                _IDLE_S, "Close what leads to others, and try again in a minute.",
            )  # fmt: skip
        return Future()

    def _tend(self) -> None:
        """Until there are none."""
        while not self._over.wait(_LOOK_S):
            self._end_unused()
            with self._lock:
                if not self._forwards:
                    self._tending = None
                    return

    def _end_unused(self) -> None:
        with self._lock:
            over = [key for key, each in self._forwards.items() if each.is_over]
            ended = [self._forwards.pop(key) for key in over]
        for forward in ended:
            forward.close()


def _result(making: Future[_Forward], way: SshWay, port: int) -> _Forward:
    """What another thread is making."""
    try:
        return making.result(_SHARED_S)
    except TimeoutError:
        raise ProviderError(
            f"port {port} of {way.machine} cannot be reached: it has not let us in yet", "Try again."
        ) from None


class _Forward:
    """An OpenSSH client that lets a socket file here lead to a port there, however many connect to it.

    A file and no port of ours: only our own user gets at it.
    """

    def __init__(self, way: SshWay, port: int) -> None:
        self._way, self._port = way, port
        self._directory = Path(tempfile.mkdtemp(prefix="trainmaster-"))  # a socket's path must be short
        self._place = self._directory / "port"
        self._said: deque[str] = deque(maxlen=20)
        self._streams: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._used_at = time.monotonic()
        options = ("-T", "-o", "ExitOnForwardFailure=yes")
        self._process = subprocess.Popen(
            [*way.command, *options, "-L", f"{self._place}:localhost:{port}", way.address, _THERE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us
        )
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise

    @property
    def last_words(self) -> str:
        """What it said last."""
        return self._said[-1] if self._said else ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is idle."""
        if self._process.poll() is not None:
            return True
        in_use = any(stream.fileno() != -1 for stream in list(self._streams))
        return not in_use and time.monotonic() - self._used_at > _IDLE_S

    def note_use(self) -> None:
        """Somebody is about to use it."""
        self._used_at = time.monotonic()

    def has(self, stream: socket.socket) -> bool:
        """Whether a stream is one of its own."""
        return stream in self._streams

    def open(self) -> socket.socket:
        """One more stream."""
        stream = socket.socket(socket.AF_UNIX)
        stream.settimeout(_CONNECT_S)
        try:
            stream.connect(str(self._place))
        except OSError as error:
            stream.close()
            raise self._lost() from error
        stream.settimeout(None)
        self._streams.add(stream)
        self.note_use()
        return stream

    def close(self) -> None:
        """End it, and all streams with it."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _await_ready(self) -> None:
        assert self._process.stdout is not None
        late = threading.Timer(_READY_S, self._give_up)
        late.daemon = True
        late.start()
        try:
            with self._process.stdout as said:  # start-up files of the login may say things first
                if not any(line.strip() == _READY for line in _lines(said)):
                    raise self._lost()
        finally:
            late.cancel()

    def _give_up(self) -> None:
        self._said.append(f"it has not let us in after {_READY_S:g} s")
        self._process.kill()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as said:
            for line in _lines(said):
                self._said.append(line.decode(errors="replace").strip())

    def _lost(self) -> ProviderError:
        self._listening.join(_END_S)  # what it says at its end may come after it has ended
        said = self.last_words or "the connection was lost"
        return ProviderError(
            f"port {self._port} of {self._way.machine} cannot be reached: {said}",
            "`trainmaster status` says whether its run goes on.",
        )


def _lines(said: IO[bytes]) -> Iterator[bytes]:
    return iter(lambda: said.readline(_LINE_BYTES), b"")


def _connected_here(run: str, member: str | None, port: int) -> socket.socket:
    import psutil

    for pid, _ in processes_here(run, member):
        try:
            found = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:  # gone
            continue
        for each in found:
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port:
                host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(each.laddr.ip, each.laddr.ip)  # noqa: S104
                with fails_as(f"port {port} of {run}", "Try again.", ProviderError):
                    stream = socket.create_connection((host, port), _CONNECT_S)
                stream.settimeout(None)
                return stream
    them = member or "its members"
    raise NotListeningError(
        f"{run}: nothing of {them} listens at port {port}", "Its script has to listen there, and to run now."
    )
