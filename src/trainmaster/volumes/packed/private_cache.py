"""What takes the place of a cache that cannot be written."""

import errno
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from trainmaster.spec.private_files import make_private
from trainmaster.volumes.packed.addresses import cache_directory

# A full disk is none of these: there, files for a while would not fit either.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


class _Place:
    """A directory that goes with the process."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="trainmaster-cache-"))
        remove_with(self, self.path)


_place: _Place | None = None


def remove_with(owner: object, path: Path) -> None:
    """Removes a directory when an object goes; not when its copy in a forked process does."""
    weakref.finalize(owner, _remove, path, os.getpid())


def _remove(path: Path, maker: int) -> None:
    if os.getpid() == maker:
        shutil.rmtree(path, ignore_errors=True)


def is_unwritable(error: BaseException | None) -> bool:
    """Whether an error says that we may not write somewhere."""
    return isinstance(error, OSError) and error.errno in _NOT_OURS


def private_cache() -> tuple[Path, str]:
    """Gives a cache of this process alone, which is removed at its end, and what to tell the user."""
    global _place
    _place = _place or _Place()
    return _place.path, (
        f"The cache {cache_directory()} cannot be written: what is kept there is made again each time. "
        "Set TRAINMASTER_CACHE to a directory that you may write."
    )


def usable_cache() -> tuple[Path, str]:
    """Gives ``TRAINMASTER_CACHE``, or a private one and what to tell the user about it.

    Raises:
        OSError: the disk is full, or broken.
    """
    place = cache_directory()
    try:
        make_private(place)
        os.makedirs(place / "volumes", exist_ok=True)  # noqa: PTH103 - beside the calls it stands for
        descriptor, probe = tempfile.mkstemp(prefix=".probe-", dir=place / "volumes")
        os.close(descriptor)
        Path(probe).unlink()
    except OSError as error:
        if is_unwritable(error):
            return private_cache()
        raise
    return place, ""
