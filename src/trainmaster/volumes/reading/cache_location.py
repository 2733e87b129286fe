"""`CacheLocation`: which cache a volume uses, and a private one where no directory can be written."""

import tempfile
import threading
import warnings
import weakref
from pathlib import Path

from trainmaster.volumes.errors import CacheError
from trainmaster.volumes.packed.opening import remove_with
from trainmaster.volumes.reading.cache import ChunkCache
from trainmaster.volumes.reading.place import chunk_directory, require_writable
from trainmaster.volumes.reading.renewal import renew_after_fork

_PRIVATE_SLOTS = 8


class _OpenCaches:
    """The caches that this process has open: one for each directory and size of slots."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: weakref.WeakValueDictionary[tuple[Path, int], ChunkCache] = weakref.WeakValueDictionary()
        renew_after_fork(self)

    def get(self, directory: Path, slot_bytes: int, limit_bytes: int | None) -> ChunkCache:
        """Gives the one that is open, or opens one where its limit is another."""
        with self._mutex:
            cache = self._open.get((directory, slot_bytes))
            if cache is None or (limit_bytes is not None and cache.limit_bytes != limit_bytes):
                cache = ChunkCache(directory, slot_bytes=slot_bytes, limit_bytes=limit_bytes)
                self._open[directory, slot_bytes] = cache
            return cache

    def after_fork(self) -> None:
        """In a forked child: a thread of the parent may have been opening one."""
        self._mutex = threading.Lock()


_open_caches = _OpenCaches()


class CacheLocation:
    """Where a volume's tables and chunks are kept on this node.

    Attributes:
        given: the directory that was asked for; None: ``TRAINMASTER_CACHE``.
        root: the directory that is used.
    """

    def __init__(self, given: Path | None, limit_bytes: int | None) -> None:
        self.given = given
        self._limit_bytes = limit_bytes
        self._is_private = False
        chunks = given / "chunks" if given is not None else chunk_directory()
        self.root = chunks.parent
        try:
            require_writable(str(chunks))
        except CacheError as error:
            if given is not None:
                raise
            self.root = Path(tempfile.mkdtemp(prefix="trainmaster-cache-"))
            self._is_private = True
            remove_with(self, self.root)
            warnings.warn(
                f"{error} Until then this process keeps {_PRIVATE_SLOTS} chunks for itself in {self.root}.",
                RuntimeWarning,
                stacklevel=4,
            )

    def cache(self, slot_bytes: int) -> ChunkCache:
        """Gives the cache for chunks of a size: one object for all volumes of this process."""
        limit_bytes = self._limit_bytes
        if self._is_private and limit_bytes is None:
            limit_bytes = _PRIVATE_SLOTS * slot_bytes
        return _open_caches.get(self.root / "chunks", slot_bytes, limit_bytes)


def cache_location(cache: Path | None, limit_bytes: int | None) -> CacheLocation:
    """Finds where to keep things.

    Raises:
        CacheError: the directory that was asked for cannot be written.
    """
    return CacheLocation(cache.expanduser().absolute() if cache is not None else None, limit_bytes)
