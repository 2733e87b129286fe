"""What is ours on a node: sent there, and run by an actor with the Python of Ray (3.9 or newer).

It runs commands, of which all that they start stays below it, and ends with all of that when its actor does,
or when its lease is over: `python -c SOURCE trainmaster-deadman DIRECTORY LEASE_S KEPT SHARED RAY`. Its
standard input is the actor's socket, by which each call gets one of its own: a line of JSON, and an answer.
"""

from __future__ import annotations

import base64
import collections
import concurrent.futures
import contextlib
import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

#: Both streams together are below 100 KiB, in base64: what is larger goes by way of Ray's object stores.
_READ_BYTES = 1 << 15
_WAIT_S = 10.0
_TICK_S = 2.0
_TERM_S = 3.0
_SET_CHILD_SUBREAPER = 36
#: Variables by which a driver on the node shows that Ray its token, or a certificate.
_GUARDS = ("RAY_AUTH_", "RAY_USE_TLS", "RAY_TLS_")


class Work:
    """A command, or a connection to a port, that calls speak with."""

    def __init__(
        self, inlet: int, outlets: list[int], process: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.inlet, self.outlets, self.process = inlet, outlets, process
        self.over = [False] * len(outlets)
        self.is_deaf = False

    def close_inlet(self) -> None:
        """Nothing more is said to it."""
        if not self.is_deaf:
            self.is_deaf = True
            if self.process is None:
                with socket.socket(fileno=os.dup(self.inlet)) as stream:
                    stream.shutdown(socket.SHUT_WR)
            os.close(self.inlet)

    def close(self) -> None:
        """Let go of it."""
        self.close_inlet()
        for outlet in self.outlets:
            os.close(outlet)


class NodeProcess:
    """Answers calls.

    Args:
        directory: its own.
        environ: of what it starts.
        shared: directory of all that its home has on the node.
    """

    def __init__(self, directory: Path, environ: dict[str, str], shared: str) -> None:
        self._directory, self._environ, self._shared = directory, environ, Path(shared)
        self._work: dict[str, Work] = {}
        #: Keys that were closed before anything was begun for them: calls may overtake each other.
        self._given_up: collections.deque[str] = collections.deque(maxlen=1000)
        self._beginning = threading.Lock()
        self._ended: dict[int, int] = {}
        self._reaped = threading.Condition()
        self._held = hold(Path(f"{shared}.held"))

    # --- calls -----------------------------------------------------------------------------------------

    def start(self, key: str, command: str) -> None:
        """Run a command for the shell, in a session of its own, where a login would."""
        with self._beginning:
            if key in self._given_up:
                return
            (his_in, our_in), (our_out, his_out), (our_err, his_err) = os.pipe(), os.pipe(), os.pipe()
            process = subprocess.Popen(
                ["/bin/sh", "-c", command], stdin=his_in, stdout=his_out, stderr=his_err, env=self._environ,
                cwd=self._environ["HOME"], start_new_session=True,
            )  # fmt: skip
            for each in (his_in, his_out, his_err):
                os.close(each)
            self._work[key] = Work(our_in, [our_out, our_err], process)

    def connect(self, key: str, host: str, port: int) -> None:
        """Connect to a port that can be reached from here."""
        stream = socket.create_connection((host, port), 10)
        stream.setblocking(True)
        with self._beginning, stream:
            if key not in self._given_up:
                number = stream.detach()
                self._work[key] = Work(os.dup(number), [number])

    def send(self, key: str, data: str, is_end: bool) -> bool:
        """Say something to it; False if it does not listen any more."""
        work = self._work[key]
        try:
            rest = memoryview(base64.b64decode(data))
            while rest and not work.is_deaf:
                rest = rest[os.write(work.inlet, rest) :]
            if is_end:
                work.close_inlet()
        except OSError:
            return False
        return not rest

    def hear(self, key: str) -> list[Any]:
        """What it has said since: output, errors, and its exit code when both are over; waits a while.

        That a stream has ended is told with what is next, as each answer has a long way.
        """
        work, until = self._work[key], time.monotonic() + _WAIT_S
        said, code = [b"", b""], None
        while not any(said) and code is None and (left_s := until - time.monotonic()) > 0:
            listened = [outlet for outlet, over in zip(work.outlets, work.over) if not over]  # noqa: B905
            if listened:
                poll = select.poll()
                for outlet in listened:
                    poll.register(outlet, select.POLLIN)
                for outlet, _ in poll.poll(int(left_s * 1000)):
                    number = work.outlets.index(outlet)
                    with contextlib.suppress(OSError):
                        said[number] = os.read(outlet, _READ_BYTES)
                    work.over[number] = not said[number]
            elif work.process is None:
                code = 0
            else:
                pid = work.process.pid
                with self._reaped:
                    self._reaped.wait_for(lambda: pid in self._ended, left_s)  # noqa: B023 - called here only
                    code = self._ended.get(pid)
        return [*(base64.b64encode(each).decode() for each in said), code]

    def close(self, key: str) -> None:
        """It is not spoken with any more; a command that still runs is ended, with its session."""
        with self._beginning:
            work = self._work.pop(key, None)
            if work is None:
                self._given_up.append(key)
                return
        if work.process is not None and (leader := work.process.pid) not in self._ended:
            end(signal.SIGKILL, of_session(leader))
        work.close()

    # --- its life --------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Wait for what ends below it, for ever."""
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.02)
                continue
            with self._reaped:
                code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self._ended[pid] = code
                for work in list(self._work.values()):
                    if work.process is not None and work.process.pid == pid:
                        work.process.returncode = code
                self._reaped.notify_all()

    def watch(self, lease_s: float) -> None:
        """End when the lease in the directory is over, or was removed."""
        lease, until, missing = self._directory / "lease", up_s() + lease_s, 0
        while missing < 2 and up_s() <= until:
            time.sleep(_TICK_S)
            try:
                until, missing = float(lease.read_text()), 0
            except ValueError:
                continue
            except OSError:
                missing += 1
        self.end()

    def end(self) -> None:
        """End all that runs below it, remove what is written, and itself."""
        if end(signal.SIGTERM, below()):
            deadline = time.monotonic() + _TERM_S
            while time.monotonic() < deadline and below():
                time.sleep(0.05)
        while end(signal.SIGKILL, below()):
            time.sleep(0.02)
        remove(self._directory)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another cluster of the home has something there
            os._exit(0)
        remove(self._shared)
        Path(self._held.name).unlink()
        os._exit(0)

    def serve(self, stream: socket.socket) -> None:
        """Answer the actor, until it is gone: each call comes by a line of its own."""
        with concurrent.futures.ThreadPoolExecutor(512) as pool:
            while (received := socket.recv_fds(stream, 1, 1))[0]:
                for line in received[1]:  # none if we have too many files open: who calls hears its end
                    pool.submit(self._answer, socket.socket(fileno=line))
            self.end()

    def _answer(self, line: socket.socket) -> None:
        with line, line.makefile("rwb") as both:
            call = json.loads(both.readline())
            try:
                found = {"result": getattr(self, call["do"])(*call["args"])}
            except Exception as error:  # noqa: BLE001 - told to who asks
                found = {"error": f"{type(error).__name__}: {error}"}
            both.write(json.dumps(found).encode() + b"\n")


def hold(path: Path) -> IO[str]:
    """A file that says that a home has something on the node, as long as any of its node processes runs."""
    while True:
        held = path.open("a")  # until the end
        fcntl.flock(held, fcntl.LOCK_SH)
        with contextlib.suppress(OSError):
            if path.stat().st_ino == os.fstat(held.fileno()).st_ino:
                return held
        held.close()


def remove(directory: Path) -> None:
    """Remove it, whatever is still being written there."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            break
        time.sleep(0.1)


def up_s() -> float:
    """Seconds since the machine has booted."""
    return float(Path("/proc/uptime").read_text().split()[0])


def processes() -> dict[int, tuple[int, int]]:
    """The parent and the session of each that runs but this one. There may be many: each is asked once."""
    found = {}
    for each in os.scandir("/proc"):
        if each.name.isdigit() and each.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                state, parent, _, session, _ = stat(int(each.name))
                if state != "Z":
                    found[int(each.name)] = int(parent), int(session)
    return found


def stat(pid: int) -> list[str]:
    """What the kernel says of a process behind its name: its state, its parent, its group, its session."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split(None, 4)


def of_session(leader: int) -> list[int]:
    """Processes of a session."""
    return [pid for pid, (_, session) in processes().items() if leader in (pid, session)]


def below() -> list[int]:
    """Processes that were started by this one, or by one that was."""
    there = processes()

    def is_below(pid: int) -> bool:
        while pid in there:
            pid = there[pid][0]
        return pid == os.getpid()

    return list(filter(is_below, there))


def end(number: int, meant: list[int]) -> int:
    """Send a signal to processes; how many these are."""
    for pid in meant:
        with contextlib.suppress(OSError):
            os.kill(pid, number)
    return len(meant)


def main() -> None:
    """Become a child of the system's, so that Ray does not end it before it has tidied up."""
    directory, lease_s, kept, shared = Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4].split(), sys.argv[5]
    heard, said = os.pipe()
    if os.fork():  # Ray may end this one at any moment, with its actor: it has written nothing
        os.close(said)
        with os.fdopen(heard) as words:
            sys.exit(words.read() or 0)
    os.setsid()
    os.close(heard)
    os.umask(0o077)
    home = Path("~").expanduser()
    environ = {name: os.environ[name] for name in kept if name in os.environ}
    environ.update(HOME=str(home) if home.is_dir() else "/", TRAINMASTER_HANDED_ON=" ".join(kept))
    environ.update(TRAINMASTER_RAY_PYTHON=sys.executable, TRAINMASTER_RAY_ADDRESS=sys.argv[6])
    # By their own names they would be of a Ray of the run's own, too.
    guards = {each: value for each, value in os.environ.items() if each.startswith(_GUARDS)}
    environ.update(TRAINMASTER_RAY_VARIABLES=json.dumps(guards))
    environ.setdefault("LANG", os.environ.get("LANG", "C.UTF-8"))
    try:
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.mkdir(0o700)
        (directory / "lease").write_text(str(int(up_s() + lease_s)))
        node_process = NodeProcess(directory, environ, shared)
    except Exception as error:  # noqa: BLE001 - the disk is full, say: this node does not suit
        remove(directory)
        os.write(said, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(said)
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stream = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    if served := os.fork():  # that may be killed alone: what runs below it comes below us then
        found, status = 0, 0
        while found != served:
            found, status = os.waitpid(-1, 0)
        if status:
            node_process.end()
        os._exit(0)
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    (directory / "deadman.pid").write_text(str(os.getpid()))
    threading.Thread(target=node_process.reap, daemon=True).start()
    threading.Thread(target=node_process.watch, args=(lease_s,), daemon=True).start()
    node_process.serve(stream)


if __name__ == "__main__":
    main()
