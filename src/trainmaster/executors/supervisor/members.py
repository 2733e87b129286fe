"""Starting one member: a bash in a process group of its own, without a detour through another process."""

# ruff: noqa: PTH103, PTH118, PTH123 - pathlib would slow down the supervisor's start
from __future__ import annotations

import os
import queue
import signal
import socket
import threading

from trainmaster.executors.supervisor.processes import (
    ATTEMPT_VARIABLE,
    HOME_VARIABLE,
    attempt_group,
    core_dumps_as_given,
    handed_on,
    read_process,
    unix_s,
    with_handed_on,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from trainmaster.executors.supervisor.gang_processes import GangProcesses, MemberProcess
    from trainmaster.executors.supervisor.outputs import Outputs
    from trainmaster.executors.telemetry.masking import SecretMask

#: The kernel takes no argument over 128 KiB; longer scripts go through a file.
LONG_SCRIPT_BYTES = 100_000

_DEFAULT_SIGNALS = [
    number
    for number in signal.valid_signals()
    if number not in (signal.SIGKILL, signal.SIGSTOP) and number < signal.SIGRTMIN
]
_FLAGS = ("bash", "-euo", "pipefail")


class Spawner:
    """Starts members from a thread of its own.

    The thread exists for one reason: the kernel gives orphans to the main thread, so when members
    are children of another thread, one system call tells whether there are orphans (see
    `_processes.has_orphans`). The caller waits for it, so nothing ever runs at the same time.
    """

    def __init__(self, home_id: str) -> None:
        self._home_id = home_id
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._shells: dict[str, str] = {}
        self._jobs: queue.SimpleQueue[Callable[[], int]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="spawner", daemon=True).start()

    def spawn(self, gang: GangProcesses, member: MemberProcess, base: dict[str, str], pipe: int) -> None:
        """Start a member with its output going into ``pipe``.

        Raises:
            OSError: it cannot be started; nothing of it is left.
        """
        start = self._spawn if member.container is None else self._spawn_contained
        pid = self._do(lambda: start(gang, member, base, pipe))
        gang.take_in(pid)
        member.started_at = unix_s()
        member.pid = pid
        process = read_process(pid)
        member.start_ticks = process.start_ticks if process else 0

    def call(self, command: list[str], env: dict[str, str]) -> int:
        """Start a program that is no member; its output is dropped.

        Raises:
            OSError: it cannot be started.
        """
        silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        return self._do(lambda: _start(command[0], command, env, silent))

    def _do(self, job: Callable[[], int]) -> int:
        self._jobs.put(job)
        result = self._done.get()
        if isinstance(result, OSError):
            raise result
        return result

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                self._done.put(job())
            except OSError as error:
                self._done.put(error)
            except Exception as error:  # noqa: BLE001 - a NUL in the script, ...; the caller waits for us
                self._done.put(OSError(22, str(error)))

    def _spawn(self, gang: GangProcesses, member: MemberProcess, base: dict[str, str], pipe: int) -> int:
        gpus = member.gpu_ids if member.gpus else ()
        env = with_handed_on({**base, **member.env}, handed_on(os.environ), gpus)
        env.update(self._markers(gang))
        shell = self._shell(env.get("PATH", os.defpath))
        arguments = self._arguments(gang, member)
        os.chdir(member.cwd)  # nothing else in this process uses relative paths
        try:
            return _start(shell, arguments, env, _streams(self._null, pipe))
        finally:
            os.chdir("/")

    def _spawn_contained(
        self, gang: GangProcesses, member: MemberProcess, _base: dict[str, str], pipe: int
    ) -> int:
        """Start the engine's client; the script's variables go through its standard input."""
        from trainmaster.executors.containers import command_line

        container = member.container
        assert container is not None
        if container["kind"] == "user":
            return self._spawn_as_user(gang, member, container, pipe)
        sandbox, network, filter_file = container.get("sandbox"), "", ""
        if sandbox is not None and sandbox["has_peers"]:
            network = command_line.container_name(self._home_id, gang.attempt, command_line.NETWORK)
        if sandbox is not None and container["kind"] == "podman":
            filter_file = os.path.join(gang.directory, "system-calls.json")
            with open(filter_file, "w") as file:
                file.write(command_line.system_calls())
        name = command_line.container_name(self._home_id, gang.attempt, member.name)
        command = command_line.run_command(
            container,
            name=name,
            labels={"home": self._home_id, "attempt": gang.attempt, "member": member.name},
            cwd=member.cwd,
            gpu_ids=member.gpu_ids if member.gpus else (),
            user=(os.getuid(), os.getgid()),
            groups=os.getgroups(),
            network=network,
            filter_file=filter_file,
            memory_bytes=gang.memory_bytes,
        )
        arguments = self._arguments(gang, member)[len(_FLAGS) :]
        markers = self._markers(gang)
        env = {**member.env, **markers}
        if container["kind"] in command_line.WITHOUT_DAEMON:
            os.mkdir(command_line.scratch(container["settings"], name), 0o700)  # noqa: PTH102
            if member.gpus:  # it shows all of them
                node = {key: value for key, value in handed_on(os.environ).items() if "VISIBLE" in key}
                env = with_handed_on(env, node, member.gpu_ids)
        records = command_line.records(arguments, env)
        return _start_reading(records, command, {**container["settings"], **markers}, pipe)

    def _spawn_as_user(
        self, gang: GangProcesses, member: MemberProcess, container: dict[str, Any], pipe: int
    ) -> int:
        """Start the program that becomes the script in a sandbox."""
        from trainmaster.executors.containers import sandbox

        env = {**container["settings"], **member.env}
        if member.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(member.gpu_ids)
        env |= self._markers(gang)
        arguments = self._arguments(gang, member)
        allowed, enclosure = container["sandbox"], gang.enclosure
        assert enclosure is not None
        seen = {
            **allowed,
            **enclosure.given(),  # nothing else is started meanwhile
            "scratch": allowed["scratch"] and f"{allowed['scratch']}/{member.name}",
            "attempt_group": attempt_group(gang.attempt, self._home_id),
        }
        order = sandbox.order(seen, member.cwd, self._shell(os.defpath), arguments, env)
        return _start_reading(order, sandbox.command(container["program"]), self._markers(gang), pipe)

    def _markers(self, gang: GangProcesses) -> dict[str, str]:
        return {ATTEMPT_VARIABLE: gang.attempt, HOME_VARIABLE: self._home_id}

    def _arguments(self, gang: GangProcesses, member: MemberProcess) -> list[str]:
        if len(member.script) < LONG_SCRIPT_BYTES // 4:  # at most 4 bytes a character
            return [*_FLAGS, "-c", "--", member.script, _title(gang)]
        data = member.script.encode("utf-8", "surrogateescape")
        if len(data) < LONG_SCRIPT_BYTES:
            return [*_FLAGS, "-c", "--", member.script, _title(gang)]
        path = os.path.join(gang.directory, member.name + ".sh")
        with open(path, "wb") as file:
            file.write(data)
        if member.container is not None and member.container.get("sandbox"):
            os.chmod(path, 0o644)  # noqa: PTH101 - of who runs it, for whom nothing else is in sight
        return [*_FLAGS, "--", path]

    def _shell(self, path: str) -> str:
        found = self._shells.get(path)
        if found is None:
            found = _find_shell(path)
            self._shells[path] = found
        return found


def _streams(stdin: int, output: int) -> list[tuple[int, int, int]]:
    return [(os.POSIX_SPAWN_DUP2, old, new) for old, new in ((stdin, 0), (output, 1), (output, 2))]


def _start_reading(data: bytes, command: list[str], env: dict[str, str], pipe: int) -> int:
    """Start a program that reads this from its standard input."""
    stdin = os.memfd_create("variables")
    try:
        with open(stdin, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(stdin, 0, os.SEEK_SET)
        return _start(command[0], command, env, _streams(stdin, pipe))
    finally:
        os.close(stdin)


def _start(program: str, arguments: list[str], env: dict[str, str], files: Sequence[tuple[Any, ...]]) -> int:
    with core_dumps_as_given():
        return os.posix_spawn(
            program,
            arguments,
            env,
            file_actions=files,
            # A group, not a session: where the kernel shares the CPU among sessions (autogroup),
            # members in sessions of their own wait for each other; by hand, TensorFlow's parameter
            # server lost a tenth.
            setpgroup=0,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )


def _find_shell(path: str) -> str:
    for directory in [*path.split(os.pathsep), "/bin", "/usr/bin"]:
        candidate = os.path.join(directory, "bash")
        if directory.startswith("/") and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(2, "no bash on PATH; install it", path)


def _title(gang: GangProcesses) -> str:
    """What bash calls itself in its messages: the experiment's name."""
    parts = gang.attempt.split("/")
    return parts[1] if len(parts) > 2 else parts[0]


def explain(error: OSError) -> str:
    """Why a member could not be started, and what may help."""
    where = f": {error.filename}" if error.filename else ""
    hints = {
        7: "; the script and its environment are larger than the kernel allows",
        11: "; the limit of processes (ulimit -u) is reached",
        24: "; the limit of open files (ulimit -n) is reached",
    }
    return f"{error.strerror}{where}{hints.get(error.errno or 0, '')}"


def _mask(member: MemberProcess) -> SecretMask | None:
    if not member.secrets:
        return None
    from trainmaster.executors.telemetry.masking import SecretMask  # most tasks have no secrets

    return SecretMask([member.env[name] for name in member.secrets if name in member.env]) or None


def _require_free_port(member: MemberProcess) -> None:
    """Whatever else listens at a replica's port would get its health checks and its requests.

    Raises:
        OSError: something does.
    """
    port = member.env.get("TRAINMASTER_PORT", "")
    if not member.serves or not port.isdecimal() or len(port) > 5:  # a recipe may set it itself, to anything
        return
    if member.container and member.container.get("sandbox"):  # no network of ours
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what waits in TIME_WAIT does not listen
        try:
            probe.bind(("127.0.0.1", int(port)))
        except OverflowError:
            return
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; a port of root's may yet be the container's to take
                advice = (
                    "end that, or leave `port` out: each replica gets a free one, {{port}} in its command"
                )
                raise OSError(
                    98, f"something else listens at port {port} of this machine: {advice}"
                ) from None


def start_member(
    gang: GangProcesses, member: MemberProcess, base: dict[str, str], outputs: Outputs, spawner: Spawner
) -> None:
    """Make a member's directories, open its log, and start it.

    Raises:
        OSError: it cannot be started; nothing of it is left.
    """
    if "/" in member.name or not member.name:
        raise OSError(22, "a member's name is no file name", member.name)
    _require_free_port(member)
    key = (gang.attempt, member.name)
    for directory in member.directories:
        os.makedirs(directory, exist_ok=True)
    path = os.path.join(gang.directory, member.name + ".log")
    try:
        output, writing = outputs.open(key, path, _mask(member))
    except FileNotFoundError:
        os.makedirs(gang.directory, exist_ok=True)
        output, writing = outputs.open(key, path, _mask(member))
    try:
        spawner.spawn(gang, member, base, writing)
    except OSError:
        outputs.close(output)
        raise
    finally:
        os.close(writing)
    member.output = output
