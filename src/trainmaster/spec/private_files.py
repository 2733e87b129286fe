"""Directories and files that are for their owner only, whichever process made them first."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from trainmaster.spec.errors import UsageError

_OTHERS = 0o077


def make_private(directory: Path) -> None:
    """Make a directory that only its owner can look into; one that is there already becomes so if it is ours.

    Whoever shares one on purpose says so by its setgid bit (``chmod 2770 DIRECTORY``); that one stays as it
    is, as do another user's, the user's own home and places that are everybody's (``/tmp``).

    Raises:
        OSError: it cannot be made.
    """
    with contextlib.suppress(FileExistsError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        return
    status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(20, "Not a directory", str(directory))
    if status.st_mode & (stat.S_ISGID | stat.S_ISVTX) or directory == Path.home():
        return
    _close(directory, status)


def close_to_others(file: Path) -> None:
    """Let only its owner read and write a file, if it is there and ours."""
    with contextlib.suppress(FileNotFoundError):
        _close(file, file.lstat())


def require_private(file: Path) -> None:
    """Refuse a file with secrets that others can read or write.

    Raises:
        UsageError: with the command that mends it.
        OSError: it cannot be looked at.
    """
    status = file.stat()
    if status.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{file} holds secrets and belongs to another user", "Use a file of your own.")
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise UsageError(f"{file} holds secrets, and others may read it (mode {mode:o})", f"chmod 600 {file}")


def _close(path: Path, status: os.stat_result) -> None:
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
        with contextlib.suppress(PermissionError):  # a read-only place, or one of which modes mean nothing
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
