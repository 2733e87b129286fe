"""Mounting a file system in place of another, so that nobody ever finds neither of them."""

import ctypes
import errno
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The same numbers on all machines.
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOSE_ON_EXEC = 1
_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_FROM_DESCRIPTOR, _BENEATH = 0x4, 0x200
_HERE = -100
_OWN_DIRECTORY = 0x200  # CLONE_FS

_libc = ctypes.CDLL(None, use_errno=True)


def require(kind: str) -> None:
    """Asks whether this process may mount disks with a kind of file system.

    Raises:
        OSError: it may not, or the kernel does not know the kind.
    """
    context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:  # which says that no disk was named
            raise
    finally:
        os.close(context)


def mounted_aside(kind: str, source: str, disk: str, devices: Sequence[str], scratch: Path) -> int:
    """Mounts disks read-only, nowhere yet.

    Args:
        kind: of file system.
        source: what the table of mounts shall say instead of the path of the disk.
        disk: the disk.
        devices: of further disks.
        scratch: an empty directory for a while.

    Returns:
        A descriptor of the mount, which ends with it unless it is put somewhere.

    Raises:
        OSError: the kernel refused.
    """
    name = Path(source)
    if ".." in name.parts or name.is_absolute():
        raise OSError(0, "the volume's address cannot be shown in the table of mounts", source)

    def make() -> int:
        # The kernel shows the path by which it found the disk: so there has to be one with that name.
        place = scratch / name
        place.parent.mkdir(parents=True)
        place.symlink_to(disk)
        _checked(_libc.unshare(_OWN_DIRECTORY))
        os.chdir(scratch)
        context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
        try:
            _set(context, "source", source)
            for device in devices:
                _set(context, "device", device)
            _call(_FSCONFIG, context, _SET_FLAG, b"ro", None, 0)
            _call(_FSCONFIG, context, _CREATE, None, None, 0)
            return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, _READ_ONLY | _NO_SUID | _NO_DEVICES)
        finally:
            os.close(context)

    with ThreadPoolExecutor(1) as pool:  # what is not shared any more ends with its thread
        return pool.submit(make).result()


def put(mount: int, directory: str, *, beneath: bool) -> None:
    """Puts a mount to a directory.

    Args:
        mount: what :func:`mounted_aside` gave.
        directory: where.
        beneath: below what is mounted there already, and shows when that is taken away.

    Raises:
        OSError: the kernel refused.
    """
    flags = _FROM_DESCRIPTOR | (_BENEATH if beneath else 0)
    _call(_MOVE_MOUNT, mount, b"", _HERE, os.fsencode(directory), flags)


def _set(context: int, name: str, value: str) -> None:
    _call(_FSCONFIG, context, _SET_STRING, name.encode(), os.fsencode(value), 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    return _checked(_libc.syscall(number, *arguments))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
