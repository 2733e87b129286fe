# ruff: noqa: PTH103, PTH104
"""Where a node's chunk cache lies, and how large it may become."""

import os
import shutil
import tempfile
from pathlib import Path

from trainmaster.spec.errors import UsageError, fails_as
from trainmaster.spec.private_files import make_private
from trainmaster.spec.units import parse_bytes
from trainmaster.volumes.errors import CacheError

SLOT_BYTES = 64 << 20
LIMIT_VARIABLE = "TRAINMASTER_CACHE_BYTES"
_DEFAULT_MOST_BYTES = 256 << 30


def cache_directory() -> Path:
    """Gives ``TRAINMASTER_CACHE``."""
    return Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser().absolute()


def chunk_directory() -> Path:
    """The node's chunk cache: ``TRAINMASTER_CACHE/chunks``."""
    return cache_directory() / "chunks"


def slot_bytes_for(largest_chunk_bytes: int) -> int:
    """Gives the slot size for chunks of up to a size: the next power of two, 64 KiB at least.

    >>> slot_bytes_for(64 << 20) == 64 << 20, slot_bytes_for(100), slot_bytes_for((64 << 20) + 1) >> 20
    (True, 65536, 128)
    """
    return int(max(64 << 10, 1 << max(largest_chunk_bytes - 1, 0).bit_length()))


def limit_bytes_of(directory: str, asked: int | None) -> int:
    """Says how many bytes the cache may take.

    What was asked for last, by argument or ``TRAINMASTER_CACHE_BYTES``, is remembered in the
    cache; without any it is half of what was free on the disk when the cache was made, so that
    all processes of the node agree. The caller holds the lock of the cache.
    """
    path = f"{directory}/limit"
    if asked is None and (text := os.environ.get(LIMIT_VARIABLE)):
        asked = _parsed(text)
    remembered = remembered_limit_bytes(directory)
    limit = asked if asked is not None else remembered
    if limit <= 0 and asked is None:
        limit = min(shutil.disk_usage(directory).free // 2, _DEFAULT_MOST_BYTES)
    if limit != remembered:
        scratch = f"{path}.{os.getpid()}"
        Path(scratch).write_text(str(limit))
        os.rename(scratch, path)
    return limit


def is_limit_open(directory: str, asked: int | None) -> bool:
    """Whether no limit was ever set, so that the free disk decides."""
    return asked is None and not os.environ.get(LIMIT_VARIABLE) and not remembered_limit_bytes(directory)


def remembered_limit_bytes(directory: str) -> int:
    """The limit that was asked for last; 0 where none was yet."""
    try:
        return int(Path(f"{directory}/limit").read_text())
    except (OSError, ValueError):
        return 0


def require_writable(directory: str) -> None:
    """Makes the directory and sees that files can be written there.

    Raises:
        CacheError: they cannot.
    """
    with fails_as(
        f"The chunk cache {directory} cannot be written",
        "Set TRAINMASTER_CACHE to a directory on a local disk that you may write.",
        CacheError,
    ):
        if Path(directory).is_relative_to(chunk_directory()):
            make_private(cache_directory())
        os.makedirs(directory, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=".probe-", dir=directory)
        os.close(descriptor)
        os.unlink(name)  # noqa: PTH108


def _parsed(text: str) -> int:
    try:
        return int(text) if text.isdigit() else parse_bytes(text)
    except ValueError as error:
        raise UsageError(
            f"{LIMIT_VARIABLE}: {text!r} is no size.", "Write one such as 20GB, 512MiB or 1000000."
        ) from error
