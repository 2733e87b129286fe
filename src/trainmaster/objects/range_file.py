"""Bytes that are read range by range, as a file as Python knows them."""

import io
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

_PIECE_BYTES = 8 << 20


class RangeFile(io.RawIOBase):
    """Bytes that a function gives, read-only.

    Args:
        read: gives so many bytes of it from a place on; less at its end.
        name: the path.
        size_bytes: of the file.
    """

    def __init__(self, read: Callable[[int, int], bytes], name: str, size_bytes: int) -> None:
        super().__init__()
        self._read = read
        self._position = 0
        self.name, self.size_bytes = name, size_bytes

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
        data = self._read(self._position, self.size_bytes)
        self._position += len(data)
        return data

    def readinto(self, buffer: "Buffer") -> int:
        """Fills a buffer; less at the end."""
        target = memoryview(buffer).cast("B")
        length = min(len(target), _PIECE_BYTES)
        data = self._read(self._position, length)
        target[: len(data)] = data
        self._position += len(data)
        return len(data)
