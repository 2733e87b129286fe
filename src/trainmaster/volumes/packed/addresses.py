"""How a volume is called: ``URL``, ``URL@7``, or a short name under ``TRAINMASTER_STORE``."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from trainmaster.spec.errors import UsageError
from trainmaster.spec.private_files import make_private

_VERSION = re.compile(r"(.*)@v?(\d{1,9})/*", re.DOTALL)
# Not those of `s3://`, without which a URL would be a path.
_LAST_SLASHES = re.compile(r"(?<![:/])/+$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")

# How many components a short name has at most, where volumes are looked for.
_DEEPEST = 4


class VolumeAddress(NamedTuple):
    """Where a volume lies, and which version is meant.

    Attributes:
        url: of the volume.
        version: 1 or more; None for the newest.
    """

    url: str
    version: int | None

    def __str__(self) -> str:
        return self.url if self.version is None else f"{self.url}@{self.version}"


def volume_address(text: str) -> VolumeAddress:
    """Reads ``URL[@VERSION]`` or ``NAME[@VERSION]``.

    >>> volume_address("s3://bucket/cats@7")
    VolumeAddress(url='s3://bucket/cats', version=7)

    Raises:
        UsageError: it is neither.
    """
    found = _VERSION.fullmatch(text)
    place, version = (found[1], int(found[2])) if found else (text, None)
    if version == 0:
        raise UsageError(f"{text}: versions are counted from 1.", "Leave @0 out for the newest one.")
    if "://" in place or place.startswith(("/", "./", "../", "~")):
        return VolumeAddress(_LAST_SLASHES.sub("", place) or "/", version)
    place = _LAST_SLASHES.sub("", place)
    if not _NAME.fullmatch(place):
        raise UsageError(
            f"{text!r} is neither a URL nor the name of a volume.",
            "Names are letters, digits, '.', '_', '-' and '/'; write ./DIR or file:///DIR for a directory.",
        )
    return VolumeAddress(f"{_store_url()}/volumes/{place}", version)


def is_short_name(text: str) -> bool:
    """Whether a text may name a volume below a store, without a version."""
    return bool(_NAME.fullmatch(text)) and text.count("/") < _DEEPEST


def named_volumes(url: str | None = None) -> list[str]:
    """Lists the volumes that have short names, sorted.

    Args:
        url: below which they lie; by default ``TRAINMASTER_STORE/volumes``.

    Raises:
        PublishError: the store fails.
    """
    from trainmaster.objects.object_store import ObjectStore

    store = ObjectStore(url or f"{_store_url()}/volumes")
    found = []
    pending = [""]
    while pending:
        folder = pending.pop()
        below = store.folders(folder)
        if "heads" in below and "manifests" in below:
            found.append(folder)
        elif folder.count("/") < _DEEPEST:
            pending += [f"{folder}/{name}" if folder else name for name in below]
    return sorted(found)


def _store_url() -> str:
    if given := os.environ.get("TRAINMASTER_STORE"):
        return given.rstrip("/")
    home = os.environ.get("TRAINMASTER_HOME") or "~/.trainmaster"
    with suppress(OSError):  # a write there will fail; the first one shall not open it to others
        make_private(Path(home).expanduser().absolute())
    return f"{home.rstrip('/')}/store"
