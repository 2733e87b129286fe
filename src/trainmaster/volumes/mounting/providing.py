# ruff: noqa: PTH100, PTH105, PTH108, PTH112, PTH114, PTH115
"""A volume at a path, by whatever means this machine has."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Literal

from trainmaster.objects.errors import FullStoreError
from trainmaster.spec.errors import MissingPartError, fails_as
from trainmaster.spec.locking import locked
from trainmaster.volumes.errors import MountError
from trainmaster.volumes.mounting.lifecycle import clear_stale, mount, mount_log, unmount
from trainmaster.volumes.mounting.mounts import QUESTION, is_dead, means_of, mounted_at
from trainmaster.volumes.packed.getting import GetProgress, get
from trainmaster.volumes.packed.opening import OpenVolume, open_volume
from trainmaster.volumes.reading.place import cache_directory

#: In the log of a mount: what went wrong before this line is over.
SETTLED = "note: its store answers again"
Means = Literal["mounted", "fetched"]


def provide(
    uri: str,
    directory: Path,
    *,
    cache: Path | None = None,
    means: Means | None = None,
    progress: GetProgress | None = None,
) -> Means:
    """Makes a volume's files appear at a directory: mounted, else fetched whole and linked.

    Another volume, or version, that was mounted there goes, unless it is still read. The files of a fetched
    one lie below ``TRAINMASTER_CACHE/volumes/whole``, where all of a node share them, whole or not at all.

    Args:
        uri: ``URL``, ``NAME``, ``URL@VERSION`` or ``NAME@VERSION``.
        directory: where; made if it does not exist.
        cache: see :meth:`Volume.open`.
        means: insist on one; None: mount if possible.
        progress: filled in while files are fetched.

    Returns:
        By what means.

    Raises:
        InUseError: another one is still read there.
        Exception: the same as :func:`mount`, and what fetching raises.
    """
    clear_stale(os.path.abspath(directory))
    unmount(directory, waits=True)
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
    whole = fetched(open_volume(uri, cache), cache, progress)
    _link(place, whole)
    return "fetched"


def provided(uri: str, directory: Path) -> Means | None:
    """Says by what means a volume's version, its number given, is at a directory; None: it is not."""
    place = os.path.abspath(directory)
    there = mounted_at(place)
    if there is not None:
        return "mounted" if there.source == f"trainmaster:{uri}" and not is_dead(place) else None
    return "fetched" if os.path.islink(place) and os.path.isdir(place) else None


def answers(directory: Path) -> bool:
    """Whether what is mounted there can read its store now; what needs no store can."""
    place = os.path.abspath(directory)
    if means_of(place) != "fuse":
        return True
    try:
        Path(place, f"{QUESTION}{os.urandom(8).hex()}").stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def settle(directory: Path, cache: Path | None = None) -> None:
    """Notes that what went wrong in a mount is over."""
    with contextlib.suppress(OSError), mount_log(os.path.abspath(directory), cache).open("a") as log:
        log.write(f"{SETTLED}\n")


def last_trouble(directory: Path, cache: Path | None = None) -> str:
    """The last thing that went wrong in a mount and is not over, in its own words; empty if nothing is.

    Args:
        directory: where it is.
        cache: that of the mount.
    """
    try:
        text = mount_log(os.path.abspath(directory), cache).read_text(errors="replace")
    except OSError:
        return ""
    found = [line for line in text.splitlines() if line.startswith("error: ") or line == SETTLED]
    return found[-1].removeprefix("error: ") if found and found[-1] != SETTLED else ""


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


def fetched(volume: OpenVolume, cache: Path | None = None, progress: GetProgress | None = None) -> Path:
    """Fetches all files of a volume into the cache, verified; at once where they are there already.

    Raises:
        PublishError: there is no room for them, or what `get` raises.
    """
    target = (cache or cache_directory()) / "volumes" / "whole" / volume.head.table_id
    if target.is_dir():
        os.utime(target)  # what removes those that nothing needs goes by their last use
        return target
    with locked(target.with_name(f".{target.name}")):  # of several, one fetches and the others wait
        if not target.is_dir():
            _require_room(volume, target)
            get(volume, target, progress=progress)
    return target


def _require_room(volume: OpenVolume, target: Path) -> None:
    """Refuses what cannot fit before hours are spent on it; a part of it may be there from an earlier try."""
    free_bytes, needed_bytes = shutil.disk_usage(target.parent).free, volume.table.total_bytes
    if needed_bytes > free_bytes and not any(target.parent.glob(f".{target.name[:40]}.getting-*")):
        raise FullStoreError(
            f"{volume.uri} cannot be mounted here, and its {needed_bytes:,} bytes do not fit into "
            f"{target.parent}, where {free_bytes:,} are free.",
            "Make it possible to mount (/dev/fuse, libfuse3, root or fusermount3), or take a larger disk.",
        )


def _link(place: str, whole: Path) -> None:
    with fails_as(f"{place} cannot become a link to the volume", "Name an empty directory."):
        if os.path.isdir(place) and not os.path.islink(place):
            os.rmdir(place)  # noqa: PTH106 - an empty one only
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        scratch = f"{place}.link-{os.getpid()}"
        os.symlink(whole, scratch)  # noqa: PTH211
        os.replace(scratch, place)
