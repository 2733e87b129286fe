"""`RayProxy`: a process that speaks with a Ray, where that can be reached; asked by JSON lines.

Nothing of Ray is imported into ours. Provider and transport of a process share it; it ends with its stream.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import itertools
import json
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol

from trainmaster.spec.errors import MissingPartError, ProviderError, TrainmasterError, UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.transport.base import Connection, ConnectionLostError, Target, jump_target
from trainmaster.transport.checked_connection import MayReach
from trainmaster.transport.ray.sharing import ProxySocket, shared_connection

#: It imports Ray, and Ray Client has a process of its own start: on a busy head not the first time.
_BEGIN_S: Final = 300.0
_ANSWER_S: Final = 120.0
#: What ends without a word does so soon; nobody can interrupt this.
_AGAIN_S: Final = 60.0
#: So long another run may take to say that one may ask through it; it may be suspended.
_SHARED_BEGIN_S: Final = 5.0
#: Who uses machines asks more often. Then it would only hold memory here, and a place in Ray.
_IDLE_S: Final = 60.0
#: Who asks so soon after a refusal hears the same: a plan dials early, in a thread, and then needs it.
_REFUSED_S: Final = 3.0
_BOOT: Final = "import sys; f = sys.stdin.buffer; exec(f.read(int(f.readline())).decode())"


class GoneError(ProviderError):
    """The actor that was asked is not there, or not any more."""


class RayLogin(Protocol):
    """Where a Ray is and what leads there, as settings say it.

    Attributes:
        address: of it, as `ray.init` takes it.
        login, key_file: ``user@host:port`` of a machine from which it is reached, and a private key for that.
        via: command that runs what follows it where the address can be reached.
        python: has Ray in the version of the cluster.
        variables: of Ray's own, that it is to find in its environment.
        file: that says all this.
    """

    address: str
    login: str
    via: str
    python: str
    variables: dict[str, str]
    file: Path

    @property
    def key_file(self) -> Path | None:
        """See the class."""


class RayProxy:
    """Threads share it.

    Args:
        settings: where Ray is.
        root: of the home, for host keys.
        may_reach: which addresses this machine may connect to; None for all.
    """

    def __init__(self, settings: RayLogin, root: Path, may_reach: MayReach | None = None) -> None:
        self._settings, self._root, self._may_reach = settings, root, may_reach
        self._lock = threading.Lock()
        self._line: _ProxyConnection | None = None
        about = (*_where(settings), *map(_text, ("proxy_program.py", "ray_connection.py", "node_process.py")))
        self._file = root / ".ray" / short_digest("\0".join(about))[:12]
        self._socket: ProxySocket | None = None
        self._is_alone = False
        self._refusal: TrainmasterError | None = None
        self._refused_at = 0.0

    def ask(self, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """Have it do something; see `programs/proxy_program.py`.

        Raises:
            UsageError: versions differ, or there is no Ray where it was to run.
            ProviderError: Ray does not answer.
        """
        try:
            return self.begin(do, *args).result(_ANSWER_S)
        except TimeoutError:
            with self._lock:
                self._end_shared()
            raise ProviderError(
                f"Ray at {self._settings.address} has not answered for {_ANSWER_S:g} s",
                "Is its head well? It is asked again.",
            ) from None

    def call(self, namespace: str, actor: str, do: str, *args: object) -> Any:  # noqa: ANN401 - JSON
        """Call a method of an actor.

        Raises:
            GoneError: it is not there.
            ProviderError: as `ask`.
        """
        return said_by(self.ask("call", namespace, actor, do, *args))

    def begin(self, do: str, *args: object) -> concurrent.futures.Future[Any]:
        """As `ask`, without waiting for the answer."""
        with self._lock:
            return self._dialled().send(do, args)

    def begin_apart(self, do: str, *args: object) -> concurrent.futures.Future[Any]:
        """As `begin`, but never waits, as in an event loop: a thread dials, if that has to be.

        As long as it does, the answer can be cancelled: then nothing is asked.
        """
        line = self._line
        if line is not None and not line.is_over:
            return line.send(do, args)
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def dial() -> None:
            try:
                with self._lock:
                    line = self._dialled()
                    if not answer.set_running_or_notify_cancel():
                        return
                    said = line.send(do, args)
                answer.set_result(said.result())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
                    answer.set_exception(error)

        threading.Thread(target=dial, name="ray dialing", daemon=True).start()
        return answer

    def go_alone(self) -> None:
        """Ask through no other process of the home from now on: it may end before this one."""
        with self._lock:
            if not self._is_alone:
                self._end_shared()
            self._is_alone = True

    def share(self) -> None:
        """Let other processes of the home ask through this one, unless another one does so already."""
        self.go_alone()
        with self._lock:
            if self._socket is None:
                self._socket = ProxySocket(self._file, self.begin)
                atexit.register(self._socket.close)
            self._socket.offer()

    def close(self) -> None:
        """Let it go; it is started again if it is asked again."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            if self._line is not None:
                self._line.close()
            self._line = None

    def _end_idle(self, line: _ProxyConnection) -> None:
        """It began for a plan that was refused, say, in a process that goes on."""
        while not line.is_over:
            time.sleep(_IDLE_S / 4)
            with self._lock:
                if line.idle_s > _IDLE_S:
                    line.close()

    def _end_shared(self) -> None:
        if self._line is not None and self._line.is_shared:
            self._line.close()

    def _dialled(self) -> _ProxyConnection:
        """The line that there is, or a new one. Only with the lock."""
        if self._line is None or self._line.is_over:
            self._line = self._begun()
        return self._line

    def _begun(self) -> _ProxyConnection:
        if not self._is_alone and (stream := shared_connection(self._file)) is not None:
            with contextlib.suppress(TrainmasterError):  # its run is ending
                return _ProxyConnection(stream, "", self._settings, b"")
        if self._refusal is not None and time.monotonic() - self._refused_at < _REFUSED_S:
            raise self._refusal
        try:
            source, settings = _text("proxy_program.py").encode(), self._settings
            about = {
                "address": settings.address,
                "variables": dict(settings.variables),
                "ray_connection": _text("ray_connection.py"),
                "node_process": _text("node_process.py"),
            }
            lead = b"%d\n%s%s\n" % (len(source), source, json.dumps(about).encode())
            line = _ProxyConnection(*self._dial(), self._settings, lead)
        except TrainmasterError as error:
            self._refusal, self._refused_at = error, time.monotonic()
            raise
        threading.Thread(target=self._end_idle, args=(line,), name="ray idle", daemon=True).start()
        return line

    def _dial(self) -> tuple[Connection, str]:
        there = jump_target(self._settings.login, self._settings.key_file)
        python = self._settings.python or (
            "python3" if there or self._settings.via else sys.executable or "python3"
        )
        connection: Connection
        if there is not None:
            from trainmaster.transport.ssh import ssh_transport

            connection = ssh_transport(self._root, self._may_reach).connect(there)
        else:
            from trainmaster.transport.local import LocalConnection

            here = Target("this machine", "localhost")
            connection = LocalConnection(here, shlex.split(self._settings.via))
        return connection, f"exec {shlex.join([python, '-u', '-c', _BOOT])}"


class _ProxyConnection:
    """A connection to a process that speaks with Ray: one of its own, or that of another run.

    Args:
        way: to it. command: that starts it, and lead: what it hears first: nothing if it is another run's.
        settings: where Ray is.
    """

    def __init__(
        self, way: Connection | socket.socket, command: str, settings: RayLogin, lead: bytes
    ) -> None:
        self._connection, self._settings = way, settings
        self._stream = way if isinstance(way, socket.socket) else way.stream(command)
        self._writing = threading.Lock()
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._numbers = itertools.count()
        self._used_at = time.monotonic()
        self.is_over, self.is_shared = False, not lead
        self._heard = self._stream.makefile("rb")
        try:
            self._stream.settimeout(_SHARED_BEGIN_S if self.is_shared else _BEGIN_S)
            said = dict[str, Any]()
            with contextlib.suppress(ConnectionError):  # it ended before it had read all
                self._stream.sendall(lead)
                said = _first_said(self._heard)
            said = said or self._diagnose(command, lead)
            if "ready" not in said:
                raise self._refused(said)
            self._stream.settimeout(None)
        except (OSError, ValueError) as error:
            self._heard.close()
            self.close()
            words = f"Ray at {settings.address} cannot be asked: {error}"
            raise ProviderError(words, "Is it well?") from error
        except BaseException:
            self._heard.close()
            self.close()
            raise
        threading.Thread(target=self._listen, name="ray", daemon=True).start()

    @property
    def idle_s(self) -> float:
        """Since when it has neither been asked nor answered; 0 while somebody waits for an answer."""
        since = time.monotonic() - self._used_at
        return 0.0 if self._waiting and since < _ANSWER_S else since  # some calls are never answered

    def send(self, do: str, args: object) -> concurrent.futures.Future[Any]:
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        answer.set_running_or_notify_cancel()  # to cancel it would end `_listen`
        with self._writing:
            number, self._used_at = next(self._numbers), time.monotonic()
            self._waiting[number] = answer
            with contextlib.suppress(OSError):
                line = json.dumps({"id": number, "do": do, "args": args}, separators=(",", ":"))
                self._stream.sendall(line.encode() + b"\n")
        if self.is_over:
            self._lose()
        return answer

    def close(self) -> None:
        self.is_over = True
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)  # who reads it hears that
        self._stream.close()
        self._connection.close()

    def _diagnose(self, command: str, lead: bytes) -> dict[str, str]:
        """What another one says, with its errors, as this ended without a word: Ray's core aborts, say."""
        if isinstance(self._connection, socket.socket):
            return {}
        done = self._connection.run(command, data=lead, timeout_s=_AGAIN_S)
        lines = done.out.splitlines()
        if (said := _first_said(lines)) and "ready" not in said:
            return said
        # Of what aborts, its stack comes last.
        errors = done.err.partition("*** StackTrace")[0].partition("Fatal Python error")[0].splitlines()
        words = ([line.strip() for line in errors if line.strip()] or ["it says nothing"])[-1]
        words = re.sub(r"^\[[^]]*\] \S+:\d+: +", "", words)[:400]  # its time and line of code
        return {"ended" if lines else "unable": words}

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._heard:
            for line in self._heard:
                said, self._used_at = json.loads(line), time.monotonic()
                answer = self._waiting.pop(said["id"], None)
                if answer is None:
                    continue
                if "result" in said:
                    answer.set_result(said["result"])
                elif "lost" in said:
                    answer.set_exception(self._lost(said["lost"]))
                else:
                    answer.set_exception(ProviderError(f"Ray: {said['error']}", "It is asked again."))
        self.close()
        self._lose()

    def _lose(self) -> None:
        while self._waiting:
            with contextlib.suppress(KeyError):
                self._waiting.popitem()[1].set_exception(self._lost("its connection was lost"))

    def _lost(self, why: str) -> TrainmasterError:
        words = f"Ray at {self._settings.address} does not answer: {why}"
        return ConnectionLostError(words, "It is asked again.")

    def _refused(self, said: dict[str, str]) -> TrainmasterError:
        """What it means that it does not begin."""
        settings, where = self._settings, self._settings.login or self._settings.via or "this machine"
        if "missing" in said:
            return MissingPartError(
                f"the Python {said['path']} of {where} has no Ray: {said['missing']}",
                "Name one that has the version of the cluster as `python`, or install it there "
                f"(pip install 'ray[client]'), in {settings.file}.",
            )
        if "refused" in said and "ersion" in said["refused"]:
            words = " ".join(said["refused"].split())
            return UsageError(
                f"Ray at {settings.address} is of another version: {words[:400]}",
                "Name a Python that has its version of Ray, and is of its minor version, as `python` in "
                f"{settings.file}; or lead to where it has it, with `login` or `via`.",
            )
        guards = f"write them as `variables` in {settings.file}, as docs/ray.md has it."
        if "stranger" in said:
            return UsageError(
                f"Ray at {settings.address} does not know us: {said['stranger']}",
                f"Has it a token, or TLS? Then {guards}",
            )
        if "refused" in said:
            words = " ".join(said["refused"].split())[:400]
            return UsageError(f"Ray at {settings.address} refuses: {words}", f"Mend it in {settings.file}.")
        if "away" in said:
            return ProviderError(
                f"Ray at {settings.address} does not answer: {said['away']}",
                f"Does its head run, and can {where} connect to it? The address is in {settings.file}. If it "
                f"wants a token, or has TLS: {guards}",
            )
        if "ended" in said:
            return ProviderError(
                f"Ray at {settings.address} ended what spoke with it on {where}: {said['ended']}",
                f"Is its head well? On no node of that Ray its address has to be ray://HOST:10001. If it "
                f"wants a token, or has TLS: {guards}",
            )
        return ProviderError(
            f"{where} does not start what speaks with Ray: {said.get('unable', 'it ends at once')}",
            f"Mend login, via or python in {settings.file}. On no node of that Ray its address has to be "
            "ray://HOST:10001.",
        )


def said_by(found: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """What a called actor has answered.

    Raises:
        GoneError: it is not there.
        UsageError: Ray refuses what it was asked for.
    """
    if "refused" in found:
        raise UsageError(f"Ray refuses such a machine: {found['refused']}", "Mend it in ray.yaml.")
    if "gone" in found:
        raise GoneError(found["gone"], "It is asked for again.")
    return found["said"]


def _first_said(lines: Iterable[bytes | str]) -> dict[str, Any]:
    """By what speaks with Ray, beside that it has begun; nothing if it ended before."""
    said = (dict[str, Any](json.loads(line)) for line in lines)
    return next((each for each in said if "began" not in each), {})


_proxies: dict[tuple[str, ...], RayProxy] = {}
_making: Final = threading.Lock()


def _where(settings: RayLogin) -> tuple[str, ...]:
    way = (settings.login, str(settings.key_file), settings.via, settings.python)
    return (settings.address, *way, str(settings.file), *map("=".join, sorted(settings.variables.items())))


def proxy_of(settings: RayLogin, root: Path, may_reach: MayReach | None = None) -> RayProxy:
    """That of this process for a Ray: to start one takes seconds. See `RayProxy`."""
    where = _where(settings)
    with _making:
        return _proxies.setdefault(where, RayProxy(settings, root, may_reach))


def _text(program: str) -> str:
    return (resources.files("trainmaster.transport.ray") / "programs" / program).read_text(encoding="utf-8")
