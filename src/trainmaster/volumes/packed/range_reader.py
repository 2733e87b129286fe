"""An object as a file that can be read anywhere, fetching little more than is asked for."""

import io

from trainmaster.objects.object_store import ObjectDetail, ObjectStore

_FEW_BYTES = 64 << 10
_MANY_BYTES = 4 << 20
# Objects whose pieces are smaller than this on average are read as a whole: requests cost more than bytes.
_SPARSE_FROM_BYTES = 1 << 20


class RangeReader(io.RawIOBase):
    """Reads an object in windows: large ones where reads are dense, small ones where they are far apart.

    Args:
        store: where it is.
        detail: which; its ETag is checked with each request.
    """

    def __init__(self, store: ObjectStore, detail: ObjectDetail) -> None:
        self._store = store
        self._detail = detail
        self._position = 0
        self._window_start = 0
        self._window = memoryview(b"")
        self._fetches = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Gives the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Changes the position; asks nobody."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._detail.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Reads up to ``size`` bytes.

        Raises:
            FileNotFoundError: the object is gone.
            PublishError: it was written again, or the store fails.
        """
        left = self._detail.size_bytes - self._position
        size = max(0, left if size < 0 else min(size, left))
        pieces = []
        while size:
            start = self._position - self._window_start
            if not 0 <= start < len(self._window):
                self._fetch(size)
                start = 0
                if not self._window:
                    break
            piece = bytes(self._window[start : start + size])
            pieces.append(piece)
            self._position += len(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _fetch(self, size: int) -> None:
        self._fetches += 1
        is_sparse = self._position / self._fetches > _SPARSE_FROM_BYTES + _MANY_BYTES
        length = min(
            max(size, _FEW_BYTES if is_sparse else _MANY_BYTES), self._detail.size_bytes - self._position
        )
        self._window_start = self._position
        self._window = self._store.get_range(self._detail.key, self._position, length, self._detail.etag)
