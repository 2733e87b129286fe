"""The bytes of an archive as a stream: from a file, the web or a store, whatever compresses them."""

import http.client
import io
import os
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Protocol

from trainmaster.artifacts.unpacking import decompressed
from trainmaster.objects.object_store import ObjectDetail, ObjectStore
from trainmaster.spec.errors import PublishError, UsageError
from trainmaster.volumes.packed.push_source import changed

_ZSTD = b"\x28\xb5\x2f\xfd"
_MAGIC_BYTES = 6
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
        size_bytes: as it lies there; None if it is not stated.
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
            while len(self._ahead) < _MAGIC_BYTES and (more := self._stream.read(_MAGIC_BYTES)):
                self._ahead += more
            if self._ahead.startswith(_ZIP):
                raise PublishError(f"{place} is a zip archive, no tar.", _UNPACK)
        except BaseException:
            self.close()
            raise

    def unpacked(self) -> Any:  # noqa: ANN401 - whatever `tarfile` reads from
        """Gives the tar itself as a stream, whatever packed it."""
        if not self._ahead.startswith(_ZSTD):
            return decompressed(self, self._ahead)
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


_TIMEOUT_S = 60.0
_TRIES = 6
# Before the second try; doubled for each further one.
_PAUSE_S = 1.0
_BROKEN = (OSError, http.client.HTTPException)


class WebFile:
    """The body of a URL as a stream that goes on where it broke off.

    Args:
        url: http:// or https://.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._position = 0
        self._validator = ""
        self._response: Any = None
        self.size_bytes: int | None = None
        self._open()

    def read(self, size: int = -1) -> bytes:
        """Reads up to ``size`` bytes; nothing at the end.

        Raises:
            PublishError: the server fails again and again, or has another file now.
        """
        for left in reversed(range(_TRIES)):
            try:
                if self._response is None:
                    self._open()
                data: bytes = self._response.read(size if size >= 0 else None)
                if data or self.size_bytes is None or self._position >= self.size_bytes:
                    self._position += len(data)
                    return data
                raise http.client.IncompleteRead(b"")
            except _BROKEN as error:
                self.close()
                if not left:
                    raise PublishError(
                        f"{self._url}: the connection broke {_TRIES} times ({error}).",
                        "Check the network, then push again.",
                    ) from error
                time.sleep(_PAUSE_S * 2 ** (_TRIES - 1 - left))
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Ends the connection."""
        if self._response is not None:
            self._response.close()
            self._response = None

    def __enter__(self) -> "WebFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        headers = {"User-Agent": "trainmaster", "Accept-Encoding": "identity"}
        if self._position:
            headers["Range"] = f"bytes={self._position}-"
            if self._validator:
                headers["If-Range"] = self._validator
        request = urllib.request.Request(self._url, headers=headers)  # noqa: S310 - http(s) only
        try:
            response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)  # noqa: S310
        except urllib.error.HTTPError as error:
            error.close()
            if error.code >= 500 or error.code in (408, 429):
                raise
            raise UsageError(
                f"{self._url}: the server says {error.code} {error.reason}.",
                "Check the URL; nothing was pushed.",
            ) from error
        except urllib.error.URLError as error:
            if self._position:
                raise
            raise PublishError(
                f"{self._url} cannot be reached: {error.reason}.", "Check the URL and the network."
            ) from error
        if self._position and response.status != 206:
            response.close()
            raise PublishError(
                f"{self._url}: the connection broke, and it cannot go on there, or is another file now.",
                "Download it first, then push the file.",
            )
        if not self._position:
            length = response.headers.get("Content-Length")
            self.size_bytes = int(length) if length and length.isdigit() else None
            etag = response.headers.get("ETag") or "W/"
            self._validator = (
                etag if not etag.startswith("W/") else response.headers.get("Last-Modified") or ""
            )
        self._response = response
