"""Opening a volume for reading."""

import contextlib
import errno
import os
import shutil
import tempfile
import time
import warnings
import weakref
from pathlib import Path

from trainmaster.dataclass import dataclass
from trainmaster.objects.object_store import ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.spec.private_files import make_private
from trainmaster.volumes.errors import DamagedChunkError, DamagedVolumeError, SourceChangedError
from trainmaster.volumes.packed.addresses import VolumeAddress, volume_address
from trainmaster.volumes.packed.chunk_source import ChunkSource
from trainmaster.volumes.packed.head import Head, read_head
from trainmaster.volumes.packed.materialising import materialised
from trainmaster.volumes.packed.table import FileTable
from trainmaster.volumes.reading.place import cache_directory

# A full disk is none of these: there, files for a while would not fit either.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


@dataclass(frozen=True, slots=True)
class OpenVolume:
    """One version of a volume, ready to be read.

    Attributes:
        uri: of this version, its number always given.
        store: where the volume is.
        head: what the version is.
        table: its files.
        chunks: their bytes.
        answer_s: how long the store took to say what the version is: some round trips.
    """

    uri: str
    store: ObjectStore
    head: Head
    table: FileTable
    chunks: ChunkSource
    answer_s: float = 0.0


def open_volume(uri: str, cache: Path | None = None) -> OpenVolume:
    """Opens a version of a volume; the first time on a node, its tables are fetched and prepared.

    Args:
        uri: ``URL``, ``NAME``, ``URL@VERSION`` or ``NAME@VERSION``; without a number the newest.
        cache: where to keep what can be made again; by default ``TRAINMASTER_CACHE``, or, with a
            warning, a directory of this process where that cannot be written.

    Raises:
        NotFoundError: there is no such volume or version.
        UsageError: this is no address of a volume.
        PublishError: it is damaged, the store fails, or the cache cannot be written.
    """
    address = volume_address(uri)
    store = ObjectStore(address.url)
    began = time.perf_counter()
    head = read_head(store, address.version)
    answer_s = time.perf_counter() - began
    check_source(store, head)
    table = FileTable(_columns(store, head, cache))
    return OpenVolume(
        str(VolumeAddress(store.url, head.version)),
        store,
        head,
        table,
        ChunkSource(store.url, head, table),
        answer_s,
    )


def _columns(store: ObjectStore, head: Head, cache: Path | None) -> Path:
    try:
        return materialised(store, head, cache or cache_directory())
    except PublishError as error:
        if cache is not None or not is_unwritable(error.__cause__):
            raise
        place, note = private_cache()
        warnings.warn(note, RuntimeWarning, stacklevel=3)
        return materialised(store, head, place)


def check_source(store: ObjectStore, head: Head) -> None:
    """Refuses a foreign volume that would have us read files of this machine for it.

    Raises:
        DamagedVolumeError: so it would.
    """
    if head.kind == "indexed" and not store.is_local and ObjectStore(head.source_url).is_local:
        raise DamagedVolumeError(
            f"{store.url}: it is said to consist of files of this machine ({head.source_url}).",
            "Nothing was read: only volumes on file:// may do that.",
        )


def ask_stores(uri: str, table: FileTable) -> None:
    """Asks the store of a volume, and that of the objects which it was indexed over.

    Args:
        uri: of a version.
        table: its files.

    Raises:
        PublishError: one does not answer, or does not let us in.
    """
    address = volume_address(uri)
    store = ObjectStore(address.url)
    head = read_head(store, address.version)
    if head.kind != "indexed":
        return
    first = next((chunk for chunk in range(table.chunk_count) if table.chunk_sizes[chunk]), None)
    if first is not None:
        with contextlib.suppress(SourceChangedError, DamagedChunkError):  # that is an answer, too
            ChunkSource(store.url, head, table).fetch(first, 0, 1)


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
