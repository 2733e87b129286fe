"""Which process it is: its id, when it started, and where such an id means anything.

An id alone says nothing: it is used again, and in another container it is another process's. One of which
all three are known can be looked for in the same place; elsewhere only a clock can tell.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from subprocess import Popen

#: A process may fork while we look, or take a moment to die.
_TRIES: Final = 200
#: All that a pipe holds, unless it was made larger.
_PIPE_BYTES: Final = 1 << 16
#: A line for a shell that begins so is for the machine, also where the member whose it is has a container.
ON_MACHINE: Final = "# on the machine\n"


def process_space() -> str:
    """Names what process ids mean here: of which start of which machine, in which container.

    Returns:
        ``BOOT_ID PID_NAMESPACE``; empty where that cannot be known: then no process may be looked for.
    """
    return _space_of(os.getpid())


@lru_cache(maxsize=1)  # it never changes for a process, but what one forks has its own
def _space_of(_pid: int) -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    return ""


def this_user() -> str:
    """The user to ask about what this process holds."""
    import getpass  # few processes need it

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def start_ticks(pid: int) -> int | None:
    """When a process started, in the kernel's ticks since boot; None if there is none, or only its remains.

    >>> start_ticks(os.getpid()) == start_ticks(os.getpid()) is not None
    True
    >>> start_ticks(2**31 - 1) is None
    True
    """
    try:
        return _start_ticks(pid)
    except OSError:
        return None


def is_alive(pid: int, started: int | None) -> bool | None:
    """Whether the process with this id that started then still runs; None if that may not be known.

    Args:
        pid: in this process's own space, see `process_space`.
        started: see `start_ticks`.
    """
    if pid < 1 or started is None:
        return False
    try:
        return _start_ticks(pid) == started
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return None  # another user's, and hidden from us (``hidepid``)


def is_stopped(pid: int) -> bool:
    """Whether a process does nothing: it was stopped (``SIGSTOP``, Ctrl-Z), or a debugger holds it.

    >>> is_stopped(os.getpid())
    False
    """
    try:
        return _stat(pid)[0] in ("T", "t")
    except OSError:
        return False


def begun_by(pid: int) -> list[int]:
    """A process and all that it has begun, and those have, but what has made a session of its own.

    >>> begun_by(os.getpid())[0] == os.getpid()
    True
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # gone
                _, parent, _, session, *_ = _stat(int(entry.name))
                if int(session) == os.getsid(pid):
                    children.setdefault(int(parent), []).append(int(entry.name))
    found = [pid]
    for each in found:  # grows meanwhile
        found += children.get(each, [])
    return found


def end_begun_by(pid: int, number: int) -> None:
    """Send a signal to a process and all that it has begun; nothing that it begins meanwhile is left out.

    Each is stopped before any is ended: what a process starts after it was listed, when it is gone a moment
    later, would be nobody's.

    Args:
        pid: a child of ours that was not waited for, so that the id is still its own.
        number: of the signal.
    """
    seen: list[int] = []
    while new := [each for each in begun_by(pid) if each not in seen]:
        seen += new
        if not _signal(new, signal.SIGSTOP):
            break  # what another user has become, as by sudo, may begin more for as long as it likes
    _signal(seen, number)
    _signal(seen, signal.SIGCONT)


def _signal(pids: list[int], number: int) -> int:
    """How many there are that have got it."""
    count = 0
    for pid in pids:
        with suppress(OSError):  # gone, or another user's
            os.kill(pid, number)
            count += 1
    return count


def _start_ticks(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def said_by(process: Popen[bytes], *pipes: IO[bytes], look_s: float) -> Iterator[tuple[int, bytes]]:
    """What a program says, piece by piece, until it has ended or closed its pipes.

    What it leaves behind may keep them open, and say more: that is not waited for.

    Args:
        process: the program.
        pipes: that it writes to; each piece comes with the number of its own.
        look_s: after so long without a word there is an empty piece: its caller may have waited enough.
    """
    with selectors.DefaultSelector() as ready:
        for number, pipe in enumerate(pipes):
            ready.register(pipe, selectors.EVENT_READ, number)
        has_ended = False
        while ready.get_map() and not has_ended:
            has_ended = process.poll() is not None  # looked at first: what it has said by then is read
            found = ready.select(0 if has_ended else look_s)
            for key, _ in found:
                piece = os.read(key.fd, _PIPE_BYTES)
                if piece:
                    yield key.data, piece
                else:
                    ready.unregister(key.fileobj)
            if not found:
                yield 0, b""


def kernel_text(path: Path) -> str:
    """A file of the kernel; empty where it has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def granted_cores(root: Path) -> float:
    """Cores that this process may run on, by its affinity and the quotas of its control groups.

    Args:
        root: where ``proc`` and ``sys`` are (tests make their own).
    """
    cores = [float(len(os.sched_getaffinity(0)))]
    for group in _control_groups(root, "cpu"):
        first, _, second = kernel_text(group / "cpu.max").partition(" ")
        of_version_1 = kernel_text(group / "cpu.cfs_quota_us"), kernel_text(group / "cpu.cfs_period_us")
        for quota, period in ((first, second), of_version_1):
            if quota.isdigit() and period.isdigit() and int(quota) and int(period):
                cores.append(int(quota) / int(period))
    return min(cores)


def granted_memory(root: Path) -> int:
    """Bytes of main memory that the control groups of this process leave of its machine's.

    Args:
        root: where ``proc`` and ``sys`` are (tests make their own).
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    # Containers of LXC know their own memory by nothing else: their groups lie below those with the limit.
    lines = kernel_text(root / "proc/meminfo").splitlines()
    limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    for group in _control_groups(root, "memory"):
        found = [kernel_text(group / name) for name in ("memory.max", "memory.limit_in_bytes")]
        limits += [int(limit) for limit in found if limit.isdigit() and int(limit)]
    return min(limits)


def chosen_gpus() -> list[str] | None:
    """Those that ``CUDA_VISIBLE_DEVICES`` names, by whom it is set; None without it: all."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if chosen is None else [gpu.strip() for gpu in chosen.split(",")]
    return named and [gpu for gpu in named if gpu not in ("", "-1")]


def _control_groups(root: Path, controller: str) -> list[Path]:
    """Our control group for a controller and all above it, in versions 1 and 2, as far as we see them."""
    mount = root / "sys/fs/cgroup"
    groups = [mount]
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = mount / controller if names else mount
        group = top / path.lstrip("/")
        groups += [group, *(parent for parent in group.parents if parent.is_relative_to(top))]
    return groups


def end_marked(variable: str, value: str) -> None:
    """Kill every process here with this variable, also those in sessions of their own."""
    needle = f"{variable}={value}".encode()
    for _ in range(_TRIES):
        found = False
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found = True
            except OSError:  # gone, or another user's
                continue
        if not found:
            return
        time.sleep(0.01)
