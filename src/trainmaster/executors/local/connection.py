"""The client's end of the supervisor's socket, and how a supervisor comes to be."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from trainmaster.executors.supervisor.processes import (
    ATTEMPT_VARIABLE,
    HOME_VARIABLE,
    core_dumps_as_given,
    give_back,
    kept_environment,
)
from trainmaster.executors.wire import PROTOCOL, Splitter, WireError, encode
from trainmaster.spec.errors import ExecutorError, LeaseLostError, OtherVersionError, fails_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors.wire import Message

#: A supervisor listens after some 20 ms; a loaded machine may take long.
START_TIMEOUT_S = 15.0
#: What the supervisor is to users.
SUPERVISOR = "the process that runs tasks here"
_RETRY_PAUSE_S = 0.005
_READ_BYTES = 1 << 20
_PROGRAM = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from trainmaster.executors.supervisor.program import main; main(sys.argv[2:])"
)


class ConnectionLost(Exception):  # noqa: N818 - it is handled, not shown
    """The supervisor hung up."""


class SupervisorConnection:
    """One connection to the supervisor of a home.

    Attributes:
        supervisor_pid: process id of the supervisor, 0 before `open`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home.resolve()
        self._directory = self._home / "supervisor"
        self._socket: socket.socket | None = None
        self._splitter = Splitter()
        self._starter: int | None = None
        self._early: list[Message] = []  # came before the answer to `open`
        self.supervisor_pid = 0

    def start(self) -> None:
        """Connect, or start a supervisor in the background.

        Raises:
            ExecutorError: the home cannot be written.
        """
        if self._socket is None and self._starter is None and not self._connect():
            self._start_supervisor()

    def open(self, hello: Message) -> None:
        """Connect and introduce ourselves; starts a supervisor if there is none.

        Raises:
            ExecutorError: it cannot be started or does not answer.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._socket is not None or self._connect():
                try:
                    self.send(hello)
                    self._expect_welcome(deadline)
                    return
                except ConnectionLost:
                    pass  # it was just about to end
            if time.monotonic() > deadline:
                raise self._error(f"{SUPERVISOR} does not answer")
            if self._starter is None:
                self._start_supervisor()
            self._await_start(deadline)
            if self._connect():
                continue
            time.sleep(_RETRY_PAUSE_S)

    def send(self, message: Message) -> None:
        """Send a frame.

        Raises:
            ConnectionLost: the supervisor is gone.
        """
        if self._socket is None:
            raise ConnectionLost
        try:
            self._socket.sendall(encode(message))
        except OSError as error:
            self.close()
            raise ConnectionLost from error

    def receive(self, timeout_s: float) -> list[Message]:
        """Frames that have arrived, after waiting for one at most ``timeout_s``.

        Raises:
            ConnectionLost: the supervisor is gone.
        """
        if self._early:
            early, self._early = self._early, []
            return early
        if self._socket is None:
            raise ConnectionLost
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        # rounded up: rounding down would spin through the last millisecond
        if not poll.poll(max(0, int(timeout_s * 1000 + 0.999))):
            return []
        try:
            data = self._socket.recv(_READ_BYTES)
            if data:
                return self._splitter.feed(data)
        except WireError as error:
            raise self.other_version() from error
        except OSError:
            pass
        self.close()
        raise ConnectionLost

    def fileno(self) -> int:
        """Of the stream, -1 when there is none."""
        stream = self._socket  # another thread may close it meanwhile
        return -1 if stream is None else stream.fileno()

    def close(self) -> None:
        """Disconnect."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._splitter = Splitter()
        if self._starter is not None:
            try:
                if os.waitpid(self._starter, os.WNOHANG)[0]:
                    self._starter = None
            except ChildProcessError:
                self._starter = None

    def other_version(self) -> OtherVersionError:
        """What to raise where the supervisor is not understood; hangs up."""
        self.close()
        another = f"{SUPERVISOR} was started by another version of Trainmaster"
        return OtherVersionError(another, f"Go on with that one. {self._error(another).hint}")

    def _connect(self) -> bool:
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # the path may be longer than the kernel takes (108 bytes)
            connection.connect(f"/proc/self/fd/{directory}/socket")
        except OSError:
            connection.close()
            return False
        finally:
            os.close(directory)
        self._socket = connection
        self._splitter = Splitter()
        return True

    def _expect_welcome(self, deadline: float) -> None:
        early: list[Message] = []
        welcome = False
        while (left_s := deadline - time.monotonic()) > 0:
            for message in self.receive(left_s):
                if message.get("reply") != "open":
                    early.append(message)
                    continue
                if message.get("protocol") != PROTOCOL:
                    raise self.other_version()
                if "fenced" in message:
                    self.close()
                    raise LeaseLostError.of(message["fenced"])
                self.supervisor_pid = message["pid"]
                welcome = True
            if welcome:
                self._early = early
                return
        self.close()
        raise self._error(f"{SUPERVISOR} does not answer")

    def _start_supervisor(self) -> None:
        with fails_as(
            f"cannot write {self._directory}",
            "Point TRAINMASTER_HOME to a directory of yours with room in it.",
            ExecutorError,
        ):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            log = os.open(
                self._directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with core_dumps_as_given():  # which it gives to members
                self._starter = os.posix_spawn(
                    sys.executable,
                    self._command(),
                    self._environment(),
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, null, 0),
                        (os.POSIX_SPAWN_DUP2, log, 1),
                        (os.POSIX_SPAWN_DUP2, log, 2),
                    ],
                    setsid=True,
                    setsigmask=(),
                    setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE],
                )
            give_back(self._starter)
        except OSError as error:
            raise self._error(f"{SUPERVISOR} cannot be started: {error.strerror}") from error
        finally:
            os.close(null)
            os.close(log)

    def _command(self) -> list[str]:
        source = str(Path(__file__).resolve().parents[3])
        packages = [path for path in sys.path if path.endswith("-packages")]
        options = ["-I", "-S", "-X", "utf8", "-c", _PROGRAM]
        return [sys.executable, *options, source, str(self._home), *packages]

    def _environment(self) -> dict[str, str]:
        kept = kept_environment()
        # A supervisor inside a member of another one is a process of that attempt, and ends with it.
        if os.environ.get(HOME_VARIABLE, str(self._home)) != str(self._home):
            for name in (ATTEMPT_VARIABLE, HOME_VARIABLE):
                kept[name] = os.environ.get(name, "")
        return kept

    def _await_start(self, deadline: float) -> None:
        """Until somebody listens: the process that was started says so by ending with 0."""
        while self._starter is not None:
            try:
                pid, status = os.waitpid(self._starter, os.WNOHANG)
            except ChildProcessError:  # somebody else in this process has waited for it
                pid, status = self._starter, 0
            if pid:
                self._starter = None
                if status:
                    raise self._error(f"{SUPERVISOR} cannot start: {self._last_words()}")
            elif time.monotonic() > deadline:
                raise self._error(f"{SUPERVISOR} does not start")
            else:
                time.sleep(0.001)

    def _last_words(self) -> str:
        try:
            lines = (self._directory / "log").read_text(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        return lines[-1] if lines else "it said nothing"

    def _error(self, message: str) -> ExecutorError:
        hint = f"Its log is {self._directory / 'log'}."
        if self.supervisor_pid or (self._directory / "lock").exists():
            hint += f" To end it and everything it runs: kill $(cat {self._directory / 'lock'})"
        return ExecutorError(message, hint)
