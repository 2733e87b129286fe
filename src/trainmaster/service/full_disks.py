"""`full_disk`: what to tell of a file system that is full, or of a quota that is used up."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Final

from trainmaster.control.task.layout import Home
from trainmaster.spec.errors import FullDiskError

#: Errors of which `full_disk` has more to say than whoever meets them.
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


def full_disk(error: BaseException | None, home: Home) -> FullDiskError | None:
    """What to tell of an error if there was no room for what was to be written; None for any other.

    The same words as long as it is the same file system: they are told once.

    Args:
        error: what was raised.
        home: where is written most; an error does not always say where it was.
    """
    if not isinstance(error, OSError) or error.errno not in FULL:
        return None
    named = error.filename2 or error.filename
    mount = _mount(Path(os.fsdecode(named)) if isinstance(named, str | bytes | Path) else _fullest(home))
    what = "a quota is used up" if error.errno == errno.EDQUOT else "no space is left"
    return FullDiskError(
        f"{what} on the file system at {mount}",
        f"Free some there (`df -h {mount}`, `df -i {mount}`), then do it again: what was recorded is whole.",
    )


def _fullest(home: Home) -> Path:
    """The directory with the least room of those that are written to."""
    places = [place for place in (home.root, home.cache, Path(tempfile.gettempdir())) if place.exists()]
    return min(places, key=_free_bytes, default=home.root)


def _free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def _mount(path: Path) -> Path:
    path = path.absolute()
    return next(place for place in (path, *path.parents) if place.is_mount() or place == Path(path.anchor))
