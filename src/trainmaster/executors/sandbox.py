"""What a Unix user's member is started with: it hides what is not for it, gives up root, and becomes bash.

It runs as root with nothing but the standard library, reads what it is to do from standard input (one JSON
object: see `order`), and has a mount namespace of its own: there hidden directories are empty but for what
the member may see, ``/tmp`` is the attempt's, and others' processes are not shown.
"""
# ruff: noqa: PTH100, PTH103, PTH110, PTH112, PTH120, SIM105 - pathlib and contextlib cost time

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: As of a container that could not be started.
FAILED = 125
#: Directories that everybody may write.
SCRATCH = ("/tmp", "/var/tmp")  # noqa: S108
_NEW_NAMES = 0x20000  # CLONE_NEWNS
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _AGAIN, _BIND, _ALL, _PRIVATE = (
    1, 2, 4, 8, 32, 1 << 12, 1 << 14, 1 << 18,
)  # fmt: skip
_NO_NEW_PRIVILEGES = 38
_PLAIN = _NO_SETUID | _NO_DEVICES


def command(interpreter: str) -> list[str]:
    """The command line of this program."""
    return [interpreter, "-I", "-S", "-X", "utf8", os.path.abspath(__file__)]


def order(
    sandbox: Mapping[str, Any], cwd: str, program: str, arguments: Sequence[str], env: Mapping[str, str]
) -> bytes:
    """What it reads: the fields of `base.Sandbox`, with the group of an attempt, and what it becomes."""
    whole = {**sandbox, "cwd": cwd, "program": program, "arguments": list(arguments), "env": dict(env)}
    return json.dumps(whole).encode()


def main() -> None:
    """Become what standard input says."""
    with open(0, "rb", closefd=False) as file:
        wanted = json.loads(file.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    try:
        _hide(wanted)
        _give_up_root(wanted)
        os.chdir(wanted["cwd"])
        os.execve(wanted["program"], wanted["arguments"], wanted["env"])  # noqa: S606 - it is bash itself
    except OSError as error:
        sys.stderr.write(f"it cannot be kept apart from others: {error.strerror}: {error.filename}\n")
        sys.exit(FAILED)


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
