# ruff: noqa: PTH100, PTH118
"""What is mounted on this machine, and whether this process may mount."""

import ctypes
import errno
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from trainmaster.volumes.mounting.delegated_credentials import open_environment

TYPE = "fuse.trainmaster"
#: What the processes of a mount run, or a module that knows more kinds of URLs; and as what.
SERVER = "trainmaster.volumes.mounting.server"
_ROLES = ("guard", "serve")
#: A name that no volume has; to look for it in a mount makes its server ask the store.
QUESTION = ".trainmaster-asks-"
_KERNEL_TYPE = "erofs"
_SOURCE = "trainmaster:"
_DETACH = 2
# Words of their command line: as what, where, and by which descriptor they share what they have mounted.
_ROLE, _PLACE, _RECORD = 3, 5, 9
_MAY_MOUNT = 1 << 21  # CAP_SYS_ADMIN
_OCTAL = re.compile(rb"\\([0-7]{3})")


Means = Literal["fuse", "kernel"]


class Mounted(NamedTuple):
    """One line of the kernel's table of mounts.

    Attributes:
        directory: where.
        type: kind of file system.
        source: what the mounter says of it; for ours ``trainmaster:URI``.
        device: ``MAJOR:MINOR``.
        number: of this mount; the kernel may use it again after its end.
    """

    directory: str
    type: str
    source: str
    device: str
    number: int


def mounted_at(directory: str) -> Mounted | None:
    """Says what is mounted exactly there; the topmost. It never touches the mount itself."""
    return next(iter(mounts_at(directory)[::-1]), None)


def mounts_at(directory: str) -> list[Mounted]:
    """Gives all that is mounted exactly there, the topmost last."""
    wanted = _located(directory)
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        head, _, tail = line.partition(b" - ")
        fields, rest = head.split(b" "), tail.split(b" ")
        place = os.fsdecode(_unescaped(fields[4]))
        if place == wanted:
            type_, source = os.fsdecode(rest[0]), os.fsdecode(_unescaped(rest[1]))
            found.append(Mounted(place, type_, source, os.fsdecode(fields[2]), int(fields[0])))
    return found


def means_of(directory: str) -> Means | None:
    """Says what answers for the volume that is mounted there; None: none is."""
    mounted = mounted_at(directory)
    if mounted is None:
        return None
    if mounted.type == TYPE:
        return "fuse"
    return "kernel" if mounted.type == _KERNEL_TYPE and mounted.source.startswith(_SOURCE) else None


def is_ours(directory: str) -> bool:
    """Whether one of our mounts is there, alive or dead."""
    return means_of(directory) is not None


def is_dead(directory: str) -> bool:
    """Whether an orphaned mount is there: its server is gone."""
    mounted = mounted_at(directory)
    if mounted is not None and means_of(directory) == "kernel":
        return not is_looked_after(mounted)
    try:
        os.statvfs(directory)  # what stat says the kernel remembers, long after everybody was killed
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def is_looked_after(mounted: Mounted) -> bool:
    """Whether a process lives that made this mount; those of others may be there too, see `own`."""
    wanted = _located(mounted.directory)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            words = [os.fsdecode(word) for word in (process / "cmdline").read_bytes().split(b"\0")]
            if len(words) <= _RECORD or words[_ROLE] not in _ROLES or _located(words[_PLACE]) != wanted:
                continue
            if mounted.device in recorded_devices((process / "fd" / words[_RECORD]).read_text()):
                return True
        except PermissionError:
            return True  # another user's
        except OSError:  # it has ended
            continue
    return False


def recorded_devices(record: str) -> set[str]:
    r"""Reads what the processes of a mount share: devices, and with a minus those that have ended.

    >>> recorded_devices("0:50\n7:0\n-0:50\n")
    {'7:0'}
    """
    found: set[str] = set()
    for line in record.split():
        if line.startswith("-"):
            found.discard(line[1:])
        else:
            found.add(line)
    return found


def detach(directory: str, *, lazily: bool = True) -> bool:
    """Ends a mount; lazily: at once for new users, for others when they are done.

    Returns:
        Whether it was ended. False where it is in use, not there, or not ours to end.
    """
    place = _located(directory)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(place), _DETACH if lazily else 0) == 0:
        return True
    if ctypes.get_errno() != errno.EPERM:
        return False
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        return False
    command = [program, "-u", "-q", *(["-z"] if lazily else []), "--", place]
    done = subprocess.run(command, capture_output=True, check=False, timeout=20, env=open_environment())
    return done.returncode == 0


def available() -> str | None:
    """Says what keeps this process from mounting; None if nothing is known to.

    The kernel may still refuse, as in some containers.
    """
    if find_spec("mfusepy") is None:
        return "the Python package mfusepy is not installed (pip install 'trainmaster[mount]')"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return "this machine has no /dev/fuse"
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    if not _may_mount() and not shutil.which("fusermount3"):
        return "neither may this process mount, nor is there a fusermount3 (Debian: fuse3)"
    try:
        version = library_version()
    except (OSError, ImportError) as error:
        return f"libfuse cannot be loaded (Debian: libfuse3-3): {error}"
    if version[0] != 3:
        return f"libfuse {version[0]}.{version[1]} was found, not 3 (Debian: libfuse3-3)"
    return None


def library_version() -> tuple[int, int]:
    """Loads libfuse and says which it is.

    Raises:
        OSError: there is none.
        ImportError: mfusepy is not there, or does not go with it.
    """
    # Where both are installed mfusepy takes libfuse 2, which does not know our options.
    if not os.environ.get("FUSE_LIBRARY_PATH"):
        os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
    import mfusepy

    return mfusepy.fuse_version_major, mfusepy.fuse_version_minor


def _may_mount() -> bool:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return os.geteuid() == 0
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    return bool(found and int(found[1], 16) & _MAY_MOUNT)


def _located(directory: str) -> str:
    """The path as the kernel knows it, without asking what is mounted there, which may be dead."""
    parent, name = os.path.split(os.path.abspath(directory))
    return os.path.join(os.path.realpath(parent), name)


def _unescaped(text: bytes) -> bytes:
    return _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), text)
