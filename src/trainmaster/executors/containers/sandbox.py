"""What a Unix user's member is started with: it hides what is not for it, gives up root, and becomes bash.

It runs as root with nothing but the standard library, reads what it is to do from standard input (one JSON
object: see `order`), and has a mount namespace of its own: there hidden directories are empty but for what
the member may see, ``/tmp`` is the member's, shared memory is the attempt's (`namespaces`), and others'
processes are not shown. What it becomes has no capabilities and never gets any, and a filter refuses system
calls (`REFUSED`) that training has no use for and that much of the kernel stands behind.
"""
# ruff: noqa: PTH100, PTH103, PTH110, PTH112, PTH120, PTH123, SIM105 - pathlib and contextlib cost time

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: As of a container that could not be started.
FAILED = 125
#: Directories that everybody may write.
SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108
#: What all users of a machine share in memory, and the kind of file system that it is.
SHARED = {"/dev/shm": "tmpfs", "/dev/mqueue": "mqueue", "/run/lock": "tmpfs"}  # noqa: S108
_LOCKS_BYTES = 1 << 20
#: Where the machine has no memory left, tasks are killed before the server is.
_FIRST_TO_GO = "500"
#: Refused with EPERM. None of these works without capabilities, or else most of it is of use to attackers.
REFUSED = (
    "add_key", "bpf", "fsconfig", "fsmount", "fsopen", "fspick", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "keyctl", "mount", "mount_setattr", "move_mount", "open_by_handle_at", "open_tree",
    "perf_event_open", "pivot_root", "request_key", "setns", "umount2", "userfaultfd",
)  # fmt: skip
_FILTER = "libseccomp.so.2"
_ALLOW, _REFUSE, _BAD_ARCH_ACTION, _MASKED_EQUAL = 0x7FFF0000, 0x50000, 2, 7
#: Flags of ``clone`` and ``unshare``; the last one is refused.
_NEW_NAMES, _NEW_IPC, NEW_USERS = 0x20000, 0x8000000, 0x10000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _AGAIN, _BIND, _ALL, _PRIVATE = (
    1, 2, 4, 8, 32, 1 << 12, 1 << 14, 1 << 18,
)  # fmt: skip
_HAS_BOUND, _DROP_BOUND, _NO_NEW_PRIVILEGES = 23, 24, 38
_PLAIN = _NO_SETUID | _NO_DEVICES


def command(interpreter: str) -> list[str]:
    """The command line of this program."""
    return [interpreter, "-I", "-S", "-X", "utf8", os.path.abspath(__file__)]


def order(
    sandbox: Mapping[str, Any], cwd: str, program: str, arguments: Sequence[str], env: Mapping[str, str]
) -> bytes:
    """What it reads: the fields of `base.Sandbox`, what an attempt has, and what it becomes.

    An attempt has ``attempt_group``, ``control_groups`` (directories) and ``namespaces`` (descriptors).
    """
    whole = {**sandbox, "cwd": cwd, "program": program, "arguments": list(arguments), "env": dict(env)}
    return json.dumps(whole).encode()


def namespaces(memory_bytes: int) -> list[int]:
    """Shared memory, message queues and locks of an attempt, for all of its members: see `SHARED`.

    They go with the last process that is in them, whatever was killed.

    Args:
        memory_bytes: most that shared memory takes; 0 is half of the machine's.

    Returns:
        Descriptors of a mount and an IPC namespace. They are to be closed when the members were started.

    Raises:
        OSError: this process may not make them.
    """
    import threading  # members need none of this

    found: list[int] = []
    trouble: list[OSError] = []

    def make() -> None:
        try:
            _done(_libc.unshare(_NEW_NAMES | _NEW_IPC), "namespaces of mounts and IPC")
            _mount("none", "/", "", _ALL | _PRIVATE)
            for directory, kind in SHARED.items():
                most = _LOCKS_BYTES if directory == "/run/lock" else memory_bytes
                if os.path.isdir(directory):
                    size = f"size={most}" if kind == "tmpfs" and most else ""
                    _mount(kind, directory, kind, _PLAIN, size)
            found.extend(os.open(f"/proc/thread-self/ns/{name}", os.O_RDONLY) for name in ("mnt", "ipc"))
        except OSError as error:
            trouble.append(error)

    thread = threading.Thread(target=make)  # of this process no other thread has left its namespaces
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return found


def main() -> None:
    """Become what standard input says."""
    with open(0, "rb", closefd=False) as file:
        wanted = json.loads(file.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        for directory in wanted.get("control_groups", ()):
            _write(f"{directory}/cgroup.procs", "0")
        _write("/proc/self/oom_score_adj", _FIRST_TO_GO)  # of root, so that others cannot take it back
        system_calls = _filter()
        _enter(wanted.get("namespaces") or namespaces(0))
        _hide(wanted)
        _give_up_root(wanted)
        system_calls()
        os.chdir(wanted["cwd"])
        os.execve(wanted["program"], wanted["arguments"], wanted["env"])  # noqa: S606 - it is bash itself
    except OSError as error:
        said = f"{error.strerror}: {error.filename}" if error.strerror else str(error)
        sys.stderr.write(f"it cannot be kept apart from others: {said}\n")
        sys.exit(FAILED)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _enter(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        _done(_libc.setns(descriptor, 0), "the namespaces of its attempt")
        os.close(descriptor)


def _filter() -> Callable[[], None]:
    """What lets this process make no system call any more that is refused."""
    library = ctypes.CDLL(_FILTER)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))

    def refuse(name: str, number: int, *conditions: _Condition) -> None:
        call = library.seccomp_syscall_resolve_name(name.encode())
        action, compared = ctypes.c_uint32(_REFUSE | number), (_Condition * len(conditions))(*conditions)
        code = library.seccomp_rule_add_array(context, action, call, len(conditions), compared)
        if code and name not in REFUSED:  # an old library does not know the latest, which need capabilities
            raise OSError(-code, os.strerror(-code), f"the filter of {name}")

    # Programs of another architecture have other numbers for the same calls.
    library.seccomp_attr_set(context, _BAD_ARCH_ACTION, ctypes.c_uint32(_REFUSE | errno.ENOSYS))
    for name in REFUSED:
        refuse(name, errno.EPERM)
    flags_at = int(os.uname().machine.startswith("s390"))
    refuse("clone", errno.EPERM, _Condition(flags_at, _MASKED_EQUAL, NEW_USERS, NEW_USERS))
    refuse("unshare", errno.EPERM, _Condition(0, _MASKED_EQUAL, NEW_USERS, NEW_USERS))
    refuse("clone3", errno.ENOSYS)  # its flags lie in memory, which no filter sees: `clone` is used instead

    def load() -> None:
        code = library.seccomp_load(context)
        if code:
            raise OSError(-code, os.strerror(-code), "a filter of system calls")

    return load


class _Condition(ctypes.Structure):
    """An argument of a system call: its place, how it is compared, and with what."""

    _fields_ = (
        ("place", ctypes.c_uint),
        ("how", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def _hide(wanted: Mapping[str, Any]) -> None:
    _done(_libc.unshare(_NEW_NAMES), "a namespace of mounts")
    _mount("none", "/", "", _ALL | _PRIVATE)
    shown = dict.fromkeys(wanted["readable"], False) | dict.fromkeys(wanted["writable"], True)
    seen = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in sorted(shown, key=_depth)}
    scratch = os.open(wanted["scratch"], os.O_PATH | os.O_CLOEXEC) if wanted["scratch"] else -1
    for directory in wanted["hidden"]:
        _mount("tmpfs", directory, "tmpfs", _PLAIN, "mode=755,size=1m")
    for directory in SCRATCH if scratch >= 0 else ():
        _bind(scratch, directory, is_writable=True)
    for path, descriptor in seen.items():
        if not os.path.exists(path):
            _make_place(path, descriptor)
        _bind(descriptor, path, is_writable=shown[path])
    try:
        _mount("proc", "/proc", "proc", _PLAIN | _NO_PROGRAMS, "hidepid=2")
    except OSError:
        pass  # inside of a container; what others' processes hold is closed to this user anyway


def _make_place(path: str, descriptor: int) -> None:
    """Something to mount on, where all was hidden."""
    if os.path.isdir(f"/proc/self/fd/{descriptor}"):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))


def _bind(descriptor: int, path: str, *, is_writable: bool) -> None:
    _mount(f"/proc/self/fd/{descriptor}", path, "", _BIND)
    _mount("none", path, "", _BIND | _AGAIN | _PLAIN | (0 if is_writable else _READ_ONLY))


def _give_up_root(wanted: Mapping[str, Any]) -> None:
    uid, gid = wanted["uid"], wanted["gid"]
    if wanted["processes"]:
        most = wanted["processes"]
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    own = [wanted["attempt_group"]] if "attempt_group" in wanted else []
    try:
        os.setgroups([*wanted["groups"], *own])
    except OSError:  # a namespace of users may have few groups
        os.setgroups(wanted["groups"])
    number = 0
    while _libc.prctl(_HAS_BOUND, number, 0, 0, 0) >= 0:
        _done(_libc.prctl(_DROP_BOUND, number, 0, 0, 0), "the bounding set of capabilities")
        number += 1
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _done(_libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no new privileges")
    os.umask(0o077)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    texts = (os.fsencode(text) for text in (source, target, kind))
    _done(_libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(options)), target)


def _done(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _depth(path: str) -> int:
    return path.count("/")


_libc = ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main()
