"""A file on the web, read from its beginning to its end, however often the connection breaks."""

import http.client
import time
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any

from trainmaster.spec.errors import PublishError, UsageError

_TIMEOUT_S = 60.0
_TRIES = 6
_BROKEN = (OSError, http.client.HTTPException)


class WebFile:
    """The body of a URL as a stream that goes on where it broke off.

    Args:
        url: http:// or https://.
        pause_s: before the second try; doubled for each further one.
    """

    def __init__(self, url: str, pause_s: float = 1.0) -> None:
        self._url = url
        self._pause_s = pause_s
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
                time.sleep(self._pause_s * 2 ** (_TRIES - 1 - left))
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
            etag = response.headers.get("ETag") or ""
            self._validator = (
                etag if not etag.startswith("W/") else response.headers.get("Last-Modified") or ""
            )
        self._response = response
