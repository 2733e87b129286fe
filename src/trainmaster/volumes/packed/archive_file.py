"""The bytes of an archive as a stream: from a file, the web or a store, whatever compresses them."""

import io
import os
from typing import Any, Protocol

from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import PublishError
from trainmaster.volumes.packed.sources import changed
from trainmaster.volumes.packed.web_file import WebFile

_ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_UNPACK = "Unpack it into a directory and push that; no version was made."


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


class ArchiveFile(io.RawIOBase):
    """A stream that knows how far it has been read.

    Args:
        place: a path or an http(s):// URL.
        stored: the object of a store instead.

    Attributes:
        size_bytes: as it lies there; None if nobody says it.
        position: bytes read so far.

    Raises:
        PublishError: it is an archive of a kind that cannot be read, or cannot be reached.
    """

    def __init__(self, place: str, stored: tuple[ObjectStore, ObjectDetail] | None = None) -> None:
        self.size_bytes: int | None
        if stored is not None:
            self._stream: _Bytes = _ObjectStream(*stored)
            self.size_bytes = stored[1].size_bytes
        elif "://" in place:
            web = WebFile(place)
            self._stream, self.size_bytes = web, web.size_bytes
        else:
            file = open(place, "rb")  # noqa: PTH123, SIM115 - closed with this
            self._stream, self.size_bytes = file, os.fstat(file.fileno()).st_size
        self.position = 0
        self._ahead = b""
        try:
            while len(self._ahead) < len(_ZSTD) and (more := self._stream.read(len(_ZSTD))):
                self._ahead += more
            if self._ahead.startswith(_ZIP):
                raise PublishError(f"{place} is a zip archive, no tar.", _UNPACK)
        except BaseException:
            self.close()
            raise

    def unpacked(self) -> Any:  # noqa: ANN401 - whatever `tarfile` reads from
        """Gives the stream to read from; zstd, which `tarfile` does not know, is undone."""
        if not self._ahead.startswith(_ZSTD):
            return self
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(self, mode="r"), "zstd")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any writable buffer
        """Reads as much as there is room for, less only at the end: formats are told by their first bytes."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            room = len(view) - done
            data = self._ahead[:room] or self._stream.read(room)
            if not data:
                break
            self._ahead = self._ahead[len(data) :]
            view[done : done + len(data)] = data
            done += len(data)
        self.position += done
        return done

    def close(self) -> None:
        """Ends it."""
        if not self.closed:
            self._stream.close()
        super().close()


class _ObjectStream:
    """An object, read from its beginning to its end."""

    def __init__(self, store: ObjectStore, detail: ObjectDetail) -> None:
        self._url = store.url_of(detail.key)
        self._blocks = store.blocks(detail.key)
        self._block = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        if not self._block:
            try:
                self._block = memoryview(next(self._blocks, b""))
            except FileNotFoundError:
                raise changed(self._url, "vanished") from None
        data = bytes(self._block[:size])
        self._block = self._block[size:]
        return data

    def close(self) -> None:
        self._blocks.close()
