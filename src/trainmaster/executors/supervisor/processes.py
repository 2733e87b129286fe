"""Whose processes are these? One look at ``/proc``, never on the way of a task that ends cleanly.

A process belongs to an attempt when it descends from one of its members. Members that ended
leave their children to us (we are their subreaper); those are told by the marker variables in the
environment they were started with, and failing that by their parent's. Where members run as Unix users, a
group of their attempt's comes first: unlike its environment, no process can put that down.

`unix_s` is the time of exit records: it never jumps while a supervisor lives, as that of
`trainmaster.spec.clocks`. It is a copy, because a supervisor starts without site-packages, which
`trainmaster.spec` needs.

Limits: processes that hold secrets leave no image of their memory behind when they crash; those of users
may. A driver of hundreds of runs needs more open files than what it starts.
"""

# ruff: noqa: PTH123, PTH208 - pathlib would slow down the supervisor's start

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_OFFSET_S = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def unix_s() -> float:
    """Unix seconds as they were when this process began, carried on by the boot-time clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) + _OFFSET_S


ATTEMPT_VARIABLE = "TRAINMASTER_ATTEMPT_ID"
HOME_VARIABLE = "TRAINMASTER_HOME_ID"
#: Names of variables of a node's logins that its members get as they are.
HANDED_ON = "TRAINMASTER_HANDED_ON"

#: Groups that are never handed out: those of attempts, see `attempt_group`.
ATTEMPT_GROUPS = range(0x70000000, 0x80000000)
_WAIT_THIS_THREAD = 0x20000000  # __WNOTHREAD
_SET_CHILD_SUBREAPER = 36


def kept_environment() -> dict[str, str]:
    """What our daemons need of the environment of their parent: no secret outlives its process in one."""
    kept = ("PATH", "LD_LIBRARY_PATH", "HOME", "LANG", "TZ", HANDED_ON)
    return {name: os.environ[name] for name in kept if name in os.environ} | handed_on(os.environ)


def handed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """What of a node's logins its members have, too: modules that were loaded, and which GPUs are ours.

    >>> handed_on({"TRAINMASTER_HANDED_ON": "CUDA_HOME TMPDIR", "CUDA_HOME": "/opt/cuda", "TOKEN": "secret"})
    {'CUDA_HOME': '/opt/cuda'}
    """
    return {name: environ[name] for name in environ.get(HANDED_ON, "").split() if name in environ}


def with_handed_on(
    environ: Mapping[str, str], node: Mapping[str, str], gpus: Sequence[str] = ()
) -> dict[str, str]:
    """The variables of a member on a node.

    What it has itself comes first, also on ``PATH`` and ``PYTHONPATH``. Its GPUs are counted from 0 among
    those of the node.

    Args:
        environ: its own.
        node: see `handed_on`.
        gpus: of the node's, that it is given.

    >>> with_handed_on({"PATH": "/venv/bin:/usr/bin"}, {"PATH": "/opt/bin:/usr/bin"})["PATH"]
    '/venv/bin:/opt/bin:/usr/bin'
    >>> with_handed_on({"PYTHONPATH": "/ours/lib"}, {"PYTHONPATH": "/opt/lib"})["PYTHONPATH"]
    '/ours/lib:/opt/lib'
    >>> with_handed_on({}, {"CUDA_VISIBLE_DEVICES": "4,6"}, ["1"])["CUDA_VISIBLE_DEVICES"]
    '6'
    """
    found = {**node, **environ}
    for name in {"PATH", "PYTHONPATH"} & node.keys():
        theirs = node[name].split(":")
        own = [each for each in environ.get(name, "").split(":") if each and each not in theirs]
        found[name] = ":".join([*own, *theirs])
    if gpus:
        there = [each for each in node.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(
            there[int(gpu)] if gpu.isdecimal() and int(gpu) < len(there) else gpu for gpu in gpus
        )
    return found


class Process:
    """One line of ``/proc/PID/stat``."""

    __slots__ = ("cpu_ticks", "pid", "ppid", "rss_pages", "start_ticks", "zombie")

    def __init__(self, pid: int, fields: list[bytes]) -> None:
        self.pid = pid
        # a main thread that has ended before the others looks like a zombie, but is none
        self.zombie = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
        self.ppid = int(fields[1])
        self.cpu_ticks = sum(map(int, fields[11:15]))  # its own, and of its children that have ended
        self.start_ticks = int(fields[19])
        self.rss_pages = int(fields[21])


Table = dict[int, Process]


def read_process(pid: int) -> Process | None:
    """One process, None when it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # the name in parentheses may hold anything, also ") R 1"
    fields = data[data.rfind(b")") + 2 :].split()
    return Process(pid, fields) if len(fields) > 21 else None


def proportional_bytes(pid: int) -> int:
    """Memory of a process; of what it shares with others its share. 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(b"Pss:"))
    except (OSError, StopIteration):
        return 0


def writes_stacks(pid: int) -> bool:
    """Whether a process is a Python that SIGABRT makes write the stacks of its threads."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_enabled = b"\0PYTHONFAULTHANDLER=1\0" in b"\0" + file.read()
        return is_enabled and os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")  # noqa: PTH119, PTH115
    except OSError:
        return False


def cpu_wait_s(pid: int) -> float:
    """For how long the threads of a process were ready and had no processor; 0 where nothing tells."""
    waited_ns = 0
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/schedstat", "rb") as file:
                waited_ns += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        pass  # it ends just now, or the kernel counts none
    return waited_ns / 1e9


def machine_cpu_s() -> tuple[float, float]:
    """Seconds since boot of this machine's processors: used by anything, and kept by its hypervisor."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _, _, irq, softirq, stolen = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0, 0.0
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) * tick_s, stolen * tick_s


def io_wait_s() -> float | None:
    """Seconds since boot for which something here waited for a disk or a mount; None if not told."""
    try:
        with open("/proc/pressure/io", "rb") as file:
            return int(file.readline().rpartition(b"total=")[2]) / 1e6
    except (OSError, ValueError):
        return None  # it is old, or was told not to count


def scan() -> Table:
    """All processes of the node."""
    found = (read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def marker(pid: int, home_id: str) -> str:
    """The attempt that a process was started for, empty when none of this home."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
    except OSError:
        return ""  # gone, or another user's
    if f"{HOME_VARIABLE}={home_id}".encode() not in variables:
        return ""
    prefix = f"{ATTEMPT_VARIABLE}=".encode()
    for variable in variables:
        if variable.startswith(prefix):
            return variable[len(prefix) :].decode("utf-8", "surrogateescape")
    return ""


def attempt_group(attempt: str, home_id: str) -> int:
    """The group that root gives to all processes of an attempt; two attempts rarely have the same."""
    import zlib  # most members run as our own user

    name = f"{home_id}\0{attempt}".encode("utf-8", "surrogateescape")
    return ATTEMPT_GROUPS[zlib.crc32(name) % len(ATTEMPT_GROUPS)]


def groups_of(pid: int) -> set[int]:
    """The further groups of a process, none when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"Groups:"):
                    return {int(group) for group in line.split()[1:]}
    except OSError:
        pass
    return set()


def owners(
    table: Table,
    members: Mapping[int, str],
    home_id: str,
    everywhere: bool = False,
    groups: Mapping[int, str] | None = None,
) -> dict[int, str]:
    """The attempt of each living process that has one; "" for orphans that tell nothing.

    Args:
        table: from `scan`.
        members: attempt by process id of its living members.
        home_id: see `marker`.
        everywhere: look for markers outside our descendants too (after a supervisor was killed its
            members belong to ``init``, or to a subreaper above).
        groups: attempts by their groups, see `attempt_group`.
    """
    own_pid = os.getpid()
    found: dict[int, str | None] = {pid: attempt for pid, attempt in members.items() if pid in table}
    found[own_pid] = None

    by_group = groups or {}

    def told(pid: int) -> str:
        mine = groups_of(pid).intersection(by_group) if by_group else ()
        return next((by_group[group] for group in mine), "") or marker(pid, home_id)

    def owner(process: Process) -> str | None:
        chain = []
        current: Process | None = process
        while current is not None and current.pid not in found:
            chain.append(current)
            current = table.get(current.ppid)
        inherited = found[current.pid] if current is not None else None
        ours = current is not None and (current.pid == own_pid or inherited is not None)
        for link in reversed(chain):
            if not inherited and (ours or everywhere):
                inherited = told(link.pid) or ("" if ours else None)
            found[link.pid] = inherited
        return inherited

    result: dict[int, str] = {}
    for process in table.values():
        attempt = owner(process)
        if attempt is not None and not process.zombie:
            result[process.pid] = attempt
    return result


def descent(table: Table, roots: Iterable[int]) -> dict[int, int]:
    """For each process that is one of ``roots`` or descends from one: which."""
    found: dict[int, int | None] = {pid: pid for pid in roots if pid in table}
    for process in table.values():
        chain = []
        current: Process | None = process
        while current is not None and current.pid not in found:
            chain.append(current.pid)
            current = table.get(current.ppid)
        root = found[current.pid] if current is not None else None
        found.update(dict.fromkeys(chain, root))
    return {pid: root for pid, root in found.items() if root is not None}


def has_orphans() -> bool:
    """Whether any process was left to us by a member that ended; costs one system call.

    Members are started by a thread of their own (see `_members.Spawner`), and the kernel gives
    orphans to the main thread: so the children of the main thread are orphans and nothing else.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WAIT_THIS_THREAD)
    except ChildProcessError:
        return False
    return True


def become_subreaper() -> bool:
    """Have orphaned descendants given to us instead of to ``init``."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False  # a Python without libffi: orphans are looked for everywhere then


# One byte, which no dump fits into: files are not written, and programs that take dumps (a pipe in
# `core_pattern`: systemd-coredump, apport) are not started, as they are in spite of a limit of 0.
_NO_DUMP_BYTES = 1

_given_core: tuple[int, int] | None = None
_lending = threading.Lock()  # the limit is the whole process's, and runs of several threads start supervisors


def forbid_core_dumps() -> None:
    """Let this process, and those that it starts, leave no core dump. Again, it changes nothing."""
    global _given_core
    if _given_core is None:
        _given_core = resource.getrlimit(resource.RLIMIT_CORE)
        if _given_core[1] != 0:
            resource.setrlimit(resource.RLIMIT_CORE, (_NO_DUMP_BYTES, _given_core[1]))


@contextmanager
def core_dumps_as_given() -> Iterator[None]:
    """What is started here may leave what our own caller's processes may: it is the user's."""
    if _given_core is None:
        yield
        return
    with _lending:
        forbidden = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, _given_core)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, forbidden)


#: Enough for a thousand runs with their connections.
_WANTED = 65_536

_given: tuple[int, int] | None = None


def raise_limit() -> None:
    """Let this process open as many as it may."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _given = (soft, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def give_back(pid: int) -> None:
    """Let a process that we have just started have what we were given: programs with `select` rely on it."""
    if _given is not None:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, _given)
