"""Directories of this machine: how much room they take, and how they go."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainmaster.spec.errors import StoreError, UsageError


class DiskUse:
    """Counts the room that directories take, what has two names once, and what was counted not again."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def bytes_below(self, *places: Path, but: Collection[Path] = ()) -> int:
        """What files and directories take on the disk; of what is mounted there, nothing.

        Args:
            *places: directories or files, there or not.
            but: what lies below and does not count.
        """
        total, left_out = 0, {os.fspath(each) for each in but}
        for place in places:
            try:
                status = os.lstat(place)
            except OSError:
                continue
            total += self._counted(status)
            pending = [os.fspath(place)] if stat.S_ISDIR(status.st_mode) else []
            while pending:
                found, folders = self._in(pending.pop(), status.st_dev, left_out)
                total += found
                pending += folders
        return total

    def _in(self, folder: str, device: int, left_out: Collection[str]) -> tuple[int, list[str]]:
        total, folders = 0, []
        with suppress(OSError), os.scandir(folder) as entries:  # it may go meanwhile
            for entry in entries:
                if entry.path in left_out:
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_dev == device:
                        total += self._counted(status)
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
        return total, folders

    def _counted(self, status: os.stat_result) -> int:
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) in self._seen:
                return 0
            self._seen.add((status.st_dev, status.st_ino))
        return status.st_blocks * 512


def remove_tree(place: Path) -> None:
    """Remove a directory with all in it; none there is no error. May be killed and repeated.

    Raises:
        UsageError: something is mounted below: what that shows is not ours.
        StoreError: it cannot be removed.
    """
    if mounts := _mounted_below(place):
        raise UsageError(f"{mounts[0]} is mounted", f"End what uses it, then `umount {mounts[0]}`.")
    trouble: list[OSError] = []

    def opened(again: Callable[[str], Any], path: str, info: tuple[type, BaseException, object]) -> None:
        error = info[1]
        if isinstance(error, FileNotFoundError):  # somebody else removes the same
            return
        with suppress(OSError):  # scripts leave directories that are only read
            for each in (os.path.dirname(path), path):  # noqa: PTH120 - any text
                os.chmod(each, stat.S_IRWXU)  # noqa: PTH101
            if again in (os.unlink, os.rmdir):
                again(path)
            else:
                shutil.rmtree(path)
            return
        assert isinstance(error, OSError)
        trouble.append(error)

    shutil.rmtree(place, onerror=opened)
    if trouble:
        first = trouble[0]
        raise StoreError(
            f"{first.filename or place} cannot be removed: {first.strerror}",
            "What was removed stays so: do it again as the user that owns it.",
        )


def last_used_s(*places: Path) -> float:
    """How many seconds ago the first of these that is there was made or used; infinity if none is."""
    for place in places:
        with suppress(OSError):
            return time.time() - os.lstat(place).st_mtime
    return float("inf")


def in_use(places: Iterable[Path]) -> set[Path]:
    """Which of these directories processes of this machine name, or have mapped files of."""
    wanted = {place: os.fsencode(place) for place in places}
    found: set[Path] = set()
    if not wanted:
        return found
    for process in Path("/proc").glob("[0-9]*"):
        for file in ("environ", "cmdline", "maps"):
            with suppress(OSError):
                said = (process / file).read_bytes()
                found.update(place for place, name in wanted.items() if name in said)
    return found


def _mounted_below(place: Path) -> list[str]:
    top = f"{os.path.realpath(place)}/"
    found = []
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            where = line.split(" ")[4].encode(errors="surrogateescape").decode("unicode_escape", "replace")
            if f"{where}/".startswith(top):
                found.append(where)
    return found
