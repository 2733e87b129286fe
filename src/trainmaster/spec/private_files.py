"""Directories and files that are for their owner only; such a file is written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator
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


def write_private(
    file: Path, content: bytes, owner: tuple[int, int] | None = None, *, is_synced: bool = True
) -> None:
    """Write a file for its owner only: whole or not at all, and on the disk before anybody relies on it.

    Directories that are missing are made, for their owner only.

    Args:
        file: that is written, or replaced.
        content: of it.
        owner: ids of the user and the group that get it; None: ours.
        is_synced: it waits for the disk; False if it is written often, and can be done without after a loss
            of power.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    with _draft(file, content, is_synced=is_synced) as draft:
        if owner is not None:
            os.chown(draft, *owner)
        draft.replace(file)


def create_private(file: Path, content: bytes) -> None:
    """Write a file like `write_private`, unless it is there already; readers see it whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    with _draft(file, content) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, file)


def short_digest(text: str) -> str:
    """Of a name that may have any characters: 16 hexadecimal digits of its SHA-256, for names of files."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


@contextlib.contextmanager
def _draft(file: Path, content: bytes, *, is_synced: bool = True) -> Iterator[Path]:
    """A file beside another one, on the disk; removed if it is still there at the end."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name[:200]}.{os.urandom(8).hex()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
            out.flush()
            if is_synced:
                os.fsync(out.fileno())
        yield draft
    finally:
        draft.unlink(missing_ok=True)


def _close(path: Path, status: os.stat_result) -> None:
    if status.st_mode & _OTHERS and status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
        with contextlib.suppress(PermissionError):  # a read-only place, or one of which modes mean nothing
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
