"""`bounded`: what a provider of single sign-on answers is small, and comes soon, or is not taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import httpx2

#: Keys and tokens have some kilobytes.
MOST_BYTES: Final = 1 << 20
_MOST_S: Final = 30.0


class _Bounded(httpx2.SyncByteStream):
    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream, self._until_s = stream, time.monotonic() + _MOST_S

    def __iter__(self) -> Iterator[bytes]:
        left = MOST_BYTES
        for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"it answers with more than {MOST_BYTES:,} bytes")
            if time.monotonic() > self._until_s:
                raise httpx2.ReadTimeout(f"its answer takes longer than {_MOST_S:.0f} s")
            yield piece

    def close(self) -> None:
        self._stream.close()


def _bound(response: httpx2.Response) -> None:
    """A little that is packed may become anything."""
    if "content-encoding" in response.headers:
        raise httpx2.DecodingError("it packs what was asked for as it is")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Bounded(response.stream)


def bounded(timeout_s: float) -> dict[str, Any]:
    """Arguments of a client.

    Args:
        timeout_s: of each piece of an answer.
    """
    return {
        "timeout": timeout_s,
        "headers": {"accept-encoding": "identity"},
        "event_hooks": {"response": [_bound]},
        "follow_redirects": False,
    }
