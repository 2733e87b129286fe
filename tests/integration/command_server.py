"""A process that has imported the command line and forks a child for each call of it.

Nine tenths of the processor time of a short call are imports. `Commands.start` and `Commands.run` are for
what tests would give to `subprocess.Popen` and `subprocess.run`: they have the server fork, or start the
program for real where that could show something else. Tests see of a fork what they see of a real start:
process id, exit code, signals, the three streams, working directory, umask, session, and in ``/proc`` its
name, command line and environment. What differs:

- All modules and verbs are there already: an import that is missing, slow, or in the wrong order does not
  show. Therefore the first call of each verb is real: in each session, or in all that share a folder
  (``TRAINMASTER_TESTS_SEEN_COMMANDS``). An import that only an option needs is checked by mypy and
  `scripts/import_circles.py`. What is to be interrupted at its start must ask for a real one.
- Its parent is the server. All forks share its hash seed, its limits (``ulimit``), and its control group.
- At its end threads are joined, exit handlers run, and streams are flushed, but modules are not taken down.
- The environment is set after the imports. What Python and libraries read when they start (`_READ_AT_START`)
  makes a call a real one where it is not what the tests themselves have.

Never forked are calls with a shell or another program before them (``ulimit``, ``unshare``, ``setpriv``),
other interpreters, ``python -m trainmaster``, and what a call starts itself (supervisors, drivers left
behind). ``TRAINMASTER_TESTS_REAL_COMMANDS=1`` makes all calls real. The server ends when its user does,
however that was: the other end of its socket is closed then.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import hashlib
import importlib
import json
import os
import pkgutil
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

#: The program that users call.
TRAINMASTER = str(Path(sys.executable).with_name("trainmaster"))
REAL_VARIABLE = "TRAINMASTER_TESTS_REAL_COMMANDS"
#: A folder that sessions share, so that the first call is real once in all of them, and not in each.
SEEN_VARIABLE = "TRAINMASTER_TESTS_SEEN_COMMANDS"
#: Beginnings of variables that count when Python, its C library, or another is loaded.
_READ_AT_START = (
    *("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "PYDANTIC_"),
    *("SQLALCHEMY_", "DISABLE_SQLALCHEMY", "TERM", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "_TYPER"),
)
#: All modules of these packages of ours, and libraries that they import when they are used. Importing them
#: starts no thread (NumPy is told to compute with one) and opens nothing.
_PACKAGES = (
    *("cli", "api", "api.remote", "service", "service.driving", "service.models", "service.quotes"),
    *("service.runs", "service.storage", "service.teams", "service.volumes", "db", "control.attempt"),
    *("control.checks", "control.decide", "control.loop", "control.measure", "control.notes", "control.task"),
    *("cluster", "cluster.bootstrap", "cluster.node_files", "cluster.renting", "cluster.roles"),
    *("advisor.market", "advisor.model", "advisor.papers", "advisor.quote", "providers", "providers.aws"),
    *("executors", "executors.containers", "executors.gangs", "executors.local", "executors.ssh"),
    *("executors.supervisor", "executors.telemetry", "sweeps", "artifacts", "objects", "transport"),
    *("volumes.mounting", "volumes.packed"),
)
_LIBRARIES = (
    *("sqlalchemy.dialects.sqlite", "sqlalchemy.orm", "ruamel.yaml", "psutil", "typer._adapters"),
    *("obstore", "asyncssh", "boto3", "numpy.random"),
)
#: And what `trainmaster server` imports: half of its start. Only once it is called: most sessions never do.
_PACKAGES_OF_SERVER = ("api", "api.mcp", "api.proxy", "api.rest", "web", "service.places", "service.sinks")
_LIBRARIES_OF_SERVER = ("uvicorn.lifespan.on", "uvicorn.loops.auto", "uvicorn.protocols.http.h11_impl")
_OF_SERVER = b"s"
#: Verbs with verbs of their own.
_GROUPS = frozenset(
    (
        *("apps", "clusters", "config", "context", "image", "lab", "metrics", "models", "secret", "server"),
        *("services", "team", "token", "user", "views", "volume", "workflows"),
    )
)
#: As in <linux/prctl.h>.
_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14


class Command:
    """A call that was forked, with what tests use of `subprocess.Popen`.

    Attributes:
        args: program and arguments.
        pid: of its process, a child of the server.
        returncode: None until `poll` or `wait` have seen its end; negative for a signal.
    """

    def __init__(self, args: list[str], pid: int, told: socket.socket) -> None:
        self.args, self.pid = args, pid
        self.returncode: int | None = None
        self._told = told
        weakref.finalize(self, told.close)

    def poll(self) -> int | None:
        """The exit code, if it is over."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, at most so many seconds."""
        if (code := self._look(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it is not over."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if poll.poll(None if timeout_s is None else max(timeout_s, 0) * 1000):
                said = self._told.recv(16, socket.MSG_PEEK)  # it stays: another thread may wait as well
                assert said, f"the command server has ended before {self.args}"
                self.returncode = int(said)
        return self.returncode


class Commands:
    """Starts calls of the command line; one for all tests of a session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(
        self,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        start_new_session: bool = False,
    ) -> Command | subprocess.Popen[bytes]:
        """Begin a call, as `subprocess.Popen` does."""
        words = [os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in command]
        environ = dict(os.environ if env is None else env)
        streams = (stdin, stdout, stderr)
        if subprocess.PIPE in streams or self._must_be_real(words, environ):
            return subprocess.Popen(
                words,
                env=environ,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=start_new_session,
            )
        order = {
            "command": words,
            "environ": environ,
            "cwd": str(cwd or Path.cwd()),
            "umask": _umask(),
            "new_session": start_new_session,
        }
        mine, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with (
            theirs,
            os.fdopen(os.memfd_create("order"), "w+b") as file,
            Path(os.devnull).open("r+b", 0) as null,
        ):
            file.write(json.dumps(order).encode())
            file.seek(0)
            numbers = [_descriptor(stream, usual, null) for usual, stream in enumerate(streams)]
            kind = _OF_SERVER if words[1:2] == ["server"] else b"."
            socket.send_fds(self._running(), [kind], [file.fileno(), theirs.fileno(), *numbers])
        said, _, pid = mine.recv(32).partition(b" ")
        assert said == b"pid", f"the command server could not start {words}"
        return Command(words, int(pid), mine)

    def run(
        self,
        command: Sequence[object],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A whole call without input; its output as text, as `subprocess.run` captures it."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            args = [str(word) for word in command]
            return subprocess.CompletedProcess(args, code, out.read().decode(), err.read().decode())

    def _must_be_real(self, words: list[str], environ: Mapping[str, str]) -> bool:
        if os.environ.get(REAL_VARIABLE) or words[0] != TRAINMASTER:
            return True
        if _at_start(environ) != _at_start(os.environ):
            return True
        verb = " ".join(words[1:3] if words[1:2] and words[1] in _GROUPS else words[1:2])  # `models get`
        with self._lock:
            is_new = verb not in self._seen
            self._seen.add(verb)
        return is_new and _is_first(verb)

    def _running(self) -> socket.socket:
        with self._lock:
            if self._control is None:
                self._control, theirs = socket.socketpair()
                with theirs:
                    self._server = subprocess.Popen(
                        [_python(), __file__, str(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    )
                atexit.register(self.close)
                assert self._control.recv(1), "the command server did not start"
            return self._control

    def close(self) -> None:
        """End the server; calls under way go on."""
        if self._control and self._server:
            self._control.close()
            self._server.wait()
            self._control = self._server = None


#: What all tests use.
commands = Commands()


def _is_first(name: str) -> bool:
    """Whether no other session has seen it; from now on one has."""
    if not (folder := os.environ.get(SEEN_VARIABLE)):
        return True
    try:
        (Path(folder) / hashlib.sha256(os.fsencode(name)).hexdigest()).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _python() -> str:
    """By the name that the script has for it: `python` or `python3`, whichever pip was called with."""
    named = Path(TRAINMASTER).read_text().partition("\n")[0].removeprefix("#!")
    return named if Path(named).parent == Path(sys.executable).parent else sys.executable


def _at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_READ_AT_START)}


def _umask() -> int:
    # `os.umask` would set it, which other threads see.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def _descriptor(stream: int | IO[Any] | None, usual: int, null: IO[bytes]) -> int:
    if stream is None:
        return usual
    if stream == subprocess.DEVNULL:
        return null.fileno()
    return stream if isinstance(stream, int) else stream.fileno()


# --- the server ------------------------------------------------------------------------------------------


def main() -> NoReturn:
    """Serve until nobody has the other end of the socket. Children come back from `_serve` with an order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the calls
    sys.path[0] = str(Path(TRAINMASTER).parent)  # as in the script that pip makes
    _import_all()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        control.set_inheritable(False)
        control.send(b".")
        order, told, streams = _serve(control)
    with told:
        _become(order, streams)
        told.send(b"pid %d" % os.getpid())
    _call()


def _import_all() -> None:
    _import(_LIBRARIES, _PACKAGES)
    import typer.main
    from sqlalchemy.dialects.sqlite import dialect

    from trainmaster.cli.app import app
    from trainmaster.db.engine import _definitions

    _definitions(dialect())  # of the tables that each call in a new home would put together

    # Making the verbs of their annotations is most of what is left of a short call.
    typer.main.get_command = functools.cache(typer.main.get_command)
    made = typer.main.get_command(app)
    for name in made.list_commands(None):
        made.get_command(None, name)
    _keep()


@functools.cache
def _import_server() -> None:
    with contextlib.suppress(ImportError):  # the extra `server`: the call says so
        _import(_LIBRARIES_OF_SERVER, _PACKAGES_OF_SERVER)
    _keep()


def _import(libraries: Sequence[str], packages: Sequence[str]) -> None:
    for name in libraries:
        with contextlib.suppress(ImportError):  # an extra that is not installed
            importlib.import_module(name)
    for name in packages:
        package = importlib.import_module(f"trainmaster.{name}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _keep() -> None:
    gc.collect()
    gc.freeze()  # or the first collection in each child would copy all pages
    tasks = len(list(Path("/proc/self/task").iterdir()))
    assert tasks == 1, f"importing has started threads, which forks do not have: {threading.enumerate()}"


def _serve(control: socket.socket) -> tuple[dict[str, Any], socket.socket, list[int]]:
    """In the child, and only there: the order, the socket for the answer, and the three streams."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    while True:
        for key, _events in selector.select():
            if key.data is not None:
                _reap(selector, key)
                continue
            kind, numbers, _flags, _address = socket.recv_fds(control, 1, 5)
            if not numbers:
                os._exit(0)
            if kind == _OF_SERVER:
                _import_server()
            file, told, streams = numbers[0], socket.socket(fileno=numbers[1]), numbers[2:]
            if (pid := os.fork()) == 0:
                for other in selector.get_map().values():
                    if other.data is not None:
                        os.close(other.fd)
                        other.data[1].close()
                selector.close()
                with os.fdopen(file) as opened:
                    return json.load(opened), told, streams
            for number in (file, *streams):
                os.close(number)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))


def _reap(selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    pid, told = key.data
    selector.unregister(key.fd)
    os.close(key.fd)
    _pid, status = os.waitpid(pid, 0)
    with told, contextlib.suppress(OSError):  # perhaps nobody waits for it any more
        told.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(order: dict[str, Any], streams: list[int]) -> None:
    """What `subprocess.Popen` and the start of Python would have done."""
    if order["new_session"]:
        os.setsid()
    os.umask(order["umask"])
    os.chdir(order["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    sys.argv[:] = order["command"]
    _show([sys.executable, *order["command"]], order["environ"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        buffering = 1 if number == 2 or os.isatty(number) else -1
        new = os.fdopen(number, "w" if number else "r", buffering, old.encoding, old.errors, closefd=False)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _show(words: list[str], environ: Mapping[str, str]) -> None:
    """Have ``/proc`` say what it would of a real start: name, command line, environment."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"trainmaster", 0, 0, 0)
    parts = [words, [f"{name}={value}" for name, value in environ.items()]]
    texts = [b"".join(os.fsencode(part) + b"\0" for part in each) for each in parts]
    memory = ctypes.create_string_buffer(b"".join(texts))
    _kept.append(memory)
    begin = ctypes.addressof(memory)
    middle = begin + len(texts[0])
    stat = [int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:]]
    code, stack, data, heap = stat[22:24], stat[24], stat[41:43], stat[43]
    libc.sbrk.restype = ctypes.c_void_p
    # struct prctl_mm_map; the auxiliary vector and the program stay.
    places = [*code, *data, heap, libc.sbrk(0), stack, begin, middle, middle, middle + len(texts[1]), 0]
    wanted = struct.pack("12QIi", *places, 0, -1)
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, wanted, ctypes.c_ulong(len(wanted)), 0):
        raise OSError(ctypes.get_errno(), f"this kernel has no PR_SET_MM_MAP: set {REAL_VARIABLE}=1")


#: What the kernel reads whenever it is asked for command line or environment.
_kept: list[Any] = []


def _call() -> NoReturn:
    """The script that pip makes, and the end of Python but for taking modules down."""
    from trainmaster.cli import main as command_line

    code = _code_of(command_line)
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - as Python at its end
        sys.excepthook(*sys.exc_info())
        code = 120
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _code_of(command_line: Callable[[], None]) -> int:
    try:
        command_line()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as Python at its end
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


if __name__ == "__main__":
    main()
