"""A file of a volume as Python knows files."""

import io
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

    from trainmaster.volumes.reading.volume import Volume

_PIECE_BYTES = 8 << 20


class VolumeFile(io.RawIOBase):
    """Bytes of one row, read-only.

    Attributes:
        name: the path.
        size_bytes: of the file.
    """

    def __init__(self, volume: "Volume", row: int) -> None:
        super().__init__()
        self._volume = volume
        self._row = row
        self._position = 0
        self.size_bytes: int = volume.table.sizes[row]
        self.name = volume.table.path(row)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a place, which may lie behind the end."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """Where the next byte comes from."""
        return self._position

    def readall(self) -> bytes:
        """Reads what is left in one piece, and not in many small ones."""
        data = self._volume.read_range(self._row, self._position, self.size_bytes)
        self._position += len(data)
        return data

    def readinto(self, buffer: "Buffer") -> int:
        """Fills a buffer; less at the end."""
        target = memoryview(buffer).cast("B")
        length = min(len(target), _PIECE_BYTES)
        data = self._volume.read_range(self._row, self._position, length)
        target[: len(data)] = data
        self._position += len(data)
        return len(data)
