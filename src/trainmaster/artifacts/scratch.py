# ruff: noqa: PTH104, PTH108
# Names are any bytes and files are many: os functions on plain text are exact, and four times as fast.
"""Directories in the making, beside what they will become, which no crash leaves behind for ever."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainmaster.objects.errors import explained
from trainmaster.spec.errors import UsageError

# How many processes may make the same thing at once before a name without a lock is taken.
_SHARERS = 64


@contextmanager
def scratch_directory(target: Path) -> Iterator[Path]:
    """Gives an empty directory beside ``target``, to be renamed to it; removed if it is not.

    Its name is always the same, and a lock tells whether its maker lives: what a killed
    process left is emptied and used again, without looking through a large parent.
    """
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    # A name may be 255 bytes long, which leaves no room for a mark.
    path, descriptor = _claim(f"{parent}/.{target.name[:40]}.in-the-making-")
    try:
        yield path
    finally:
        try:
            if _is_same(path, descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """Gives an empty directory that becomes ``target`` in the end; one that others made meanwhile stays."""
    with scratch_directory(target) as scratch:
        yield scratch
        move_into_place(scratch, target)


def occupied(target: Path) -> UsageError:
    """Something is where a directory is to be."""
    how = "is no directory" if target.exists() and not target.is_dir() else "is not empty"
    return UsageError(f"{target} {how}.", "Give another directory; nothing was changed.")


def is_occupied(target: Path) -> bool:
    """Whether something is there, other than an empty directory."""
    try:
        with os.scandir(target) as entries:
            return next(entries, None) is not None
    except FileNotFoundError:
        return os.path.lexists(target)
    except NotADirectoryError:
        return True
    except OSError as error:
        raise explained(error, "read", str(target)) from error


def move_into_place(scratch: Path, target: Path) -> bool:
    """Renames a scratch directory to ``target`` in one step.

    Returns:
        False if something is there already that is no empty directory; then nothing changed.
    """
    try:
        os.rename(scratch, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        return False
    return True


def exchange_into_place(scratch: Path, target: Path) -> None:
    """Renames a scratch directory to ``target`` and removes what was there."""
    if move_into_place(scratch, target):
        return
    if target.is_symlink() or not target.is_dir():
        # A link is replaced, not what it points to.
        target.unlink()
        os.rename(scratch, target)
        return
    descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Locked, for under the name of the scratch directory another process would take it for a leftover.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _exchange(scratch, target):
            # Two steps where one is impossible: a crash between them leaves the old files in the second name.
            aside = scratch.with_name(f"{scratch.name}-old-{secrets.token_hex(4)}")
            os.rename(target, aside)
            os.rename(scratch, target)
            scratch = aside
        shutil.rmtree(scratch, ignore_errors=True)
    finally:
        os.close(descriptor)


def _claim(label: str) -> tuple[Path, int]:
    for number in range(_SHARERS):
        path = Path(f"{label}{number}")
        # The process that holds the lock may have renamed or removed it between any two of these steps.
        for _ in range(_SHARERS):
            with suppress(FileExistsError):
                path.mkdir(0o755)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                break
            except OSError:  # this file system has no locks
                os.close(descriptor)
                return _unlocked(label)
            if _is_same(path, descriptor):
                _empty(path)
                return path, descriptor
            os.close(descriptor)
    return _unlocked(label)


def _unlocked(label: str) -> tuple[Path, int]:
    path = Path(f"{label}{secrets.token_hex(8)}")
    path.mkdir(0o755)
    return path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _empty(path: Path) -> None:
    with os.scandir(path) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _exchange(first: Path, second: Path) -> bool:
    """Swaps two names in one step; False where the kernel or the file system cannot."""
    import ctypes

    at_cwd, exchange = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return bool(rename(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0)
