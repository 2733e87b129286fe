"""Starting one member: a bash in a process group of its own, without a detour through another process."""

# ruff: noqa: PTH118, PTH123 - pathlib would slow down the supervisor's start
from __future__ import annotations

import os
import queue
import signal
import threading
import time

from trainmaster.executors._processes import ATTEMPT_VARIABLE, HOME_VARIABLE, read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.executors._gangs import Gang, Member

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
        self._jobs: queue.SimpleQueue[tuple[Gang, Member, dict[str, str], int]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[int | OSError] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="spawner", daemon=True).start()

    def spawn(self, gang: Gang, member: Member, base: dict[str, str], pipe: int) -> None:
        """Start a member with its output going into ``pipe``.

        Raises:
            OSError: it cannot be started; nothing of it is left.
        """
        self._jobs.put((gang, member, base, pipe))
        result = self._done.get()
        if isinstance(result, OSError):
            raise result
        member.started_at = time.time()
        member.pid = result
        process = read_process(result)
        member.start_ticks = process.start_ticks if process else 0

    def _work(self) -> None:
        while True:
            gang, member, base, pipe = self._jobs.get()
            try:
                self._done.put(self._spawn(gang, member, base, pipe))
            except OSError as error:
                self._done.put(error)
            except Exception as error:  # noqa: BLE001 - a NUL in the script, ...; the caller waits for us
                self._done.put(OSError(22, str(error)))

    def _spawn(self, gang: Gang, member: Member, base: dict[str, str], pipe: int) -> int:
        env = dict(base)
        env.update(member.env)
        if member.gpus:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(member.gpu_ids)
        env[ATTEMPT_VARIABLE] = gang.attempt
        env[HOME_VARIABLE] = self._home_id
        shell = self._shell(env.get("PATH", os.defpath))
        arguments = self._arguments(gang, member)
        os.chdir(member.cwd)  # nobody else in this process uses relative paths
        try:
            return os.posix_spawn(
                shell,
                arguments,
                env,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, self._null, 0),
                    (os.POSIX_SPAWN_DUP2, pipe, 1),
                    (os.POSIX_SPAWN_DUP2, pipe, 2),
                ],
                # A group, not a session: where the kernel shares the CPU among sessions (autogroup),
                # members in sessions of their own wait for each other; by hand, TensorFlow's parameter
                # server lost a tenth.
                setpgroup=0,
                setsigmask=(),
                setsigdef=_DEFAULT_SIGNALS,
            )
        finally:
            os.chdir("/")

    def _arguments(self, gang: Gang, member: Member) -> list[str]:
        if len(member.script) < LONG_SCRIPT_BYTES // 4:  # at most 4 bytes a character
            return [*_FLAGS, "-c", "--", member.script, _title(gang)]
        data = member.script.encode("utf-8", "surrogateescape")
        if len(data) < LONG_SCRIPT_BYTES:
            return [*_FLAGS, "-c", "--", member.script, _title(gang)]
        path = os.path.join(gang.directory, member.name + ".sh")
        with open(path, "wb") as file:
            file.write(data)
        return [*_FLAGS, "--", path]

    def _shell(self, path: str) -> str:
        found = self._shells.get(path)
        if found is None:
            found = _find_shell(path)
            self._shells[path] = found
        return found


def _find_shell(path: str) -> str:
    for directory in [*path.split(os.pathsep), "/bin", "/usr/bin"]:
        candidate = os.path.join(directory, "bash")
        if directory.startswith("/") and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(2, "no bash on PATH; install it", path)


def _title(gang: Gang) -> str:
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
    return f"cannot be started: {error.strerror}{where}{hints.get(error.errno or 0, '')}"
