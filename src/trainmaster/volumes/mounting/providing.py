# ruff: noqa: PTH100, PTH105, PTH108, PTH112, PTH114, PTH115
"""A volume at a path, by whatever means this machine has."""

import fcntl
import os
from pathlib import Path
from typing import Literal

from trainmaster.spec.errors import MissingPartError, UsageError
from trainmaster.volumes.mounting.errors import MountError
from trainmaster.volumes.mounting.lifecycle import clear_stale, mount, unmount
from trainmaster.volumes.packed import OpenVolume, cache_directory, open_volume

Means = Literal["mounted", "fetched"]


def provide(uri: str, directory: Path, *, cache: Path | None = None, means: Means | None = None) -> Means:
    """Makes a volume's files appear at a directory: mounted, else fetched whole and linked.

    The files of a fetched one lie below ``TRAINMASTER_CACHE/volumes/whole``, where all of a node
    share them, whole or not at all.

    Args:
        uri: ``URL``, ``NAME``, ``URL@VERSION`` or ``NAME@VERSION``.
        directory: where; made if it does not exist.
        cache: see :meth:`Volume.open`.
        means: insist on one; None: mount if possible.

    Returns:
        By what means.

    Raises:
        The same as :func:`mount`, and what fetching raises.
    """
    if means != "fetched":
        try:
            mount(uri, directory, cache=cache)
        except MissingPartError:
            if means == "mounted":
                raise
        except MountError:
            if means == "mounted" or os.path.ismount(directory):
                raise
        else:
            return "mounted"
    place = os.path.abspath(directory)
    clear_stale(place)
    whole = fetched(open_volume(uri, cache), cache)
    _link(place, whole)
    return "fetched"


def withdraw(directory: Path) -> bool:
    """Ends what :func:`provide` did; fetched files stay in the cache.

    Returns:
        False if there was nothing to end.
    """
    place = os.path.abspath(directory)
    if os.path.islink(place) and "/volumes/whole/" in os.readlink(place):
        os.unlink(place)
        return True
    return unmount(directory)


def fetched(volume: OpenVolume, cache: Path | None = None) -> Path:
    """Fetches all files of a volume into the cache, verified; at once where they are there already."""
    from trainmaster.volumes.packed.getting import get

    target = (cache or cache_directory()) / "volumes" / "whole" / volume.head.table_id
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several, one fetches and the others wait
        if not target.is_dir():
            get(volume, target)
    return target


def _link(place: str, whole: Path) -> None:
    try:
        if os.path.isdir(place) and not os.path.islink(place):
            os.rmdir(place)  # noqa: PTH106 - an empty one only
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        scratch = f"{place}.link-{os.getpid()}"
        os.symlink(whole, scratch)  # noqa: PTH211
        os.replace(scratch, place)
    except OSError as error:
        raise UsageError(
            f"{place} cannot become a link to the volume: {error.strerror}.", "Name an empty directory."
        ) from error
