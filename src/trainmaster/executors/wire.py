"""Frames between a control process and the supervisor: one JSON object per line.

JSON writes no newline inside a text, so a newline ends a frame. Environment values that are not
UTF-8 travel as lone surrogates, which JSON escapes and gives back unchanged.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

#: Raised when frames change their meaning; both ends say theirs in ``open``.
PROTOCOL = 2

#: Longer than any environment or batch; a peer that sends more without a newline is none of ours.
LIMIT_BYTES = 256 << 20


class WireError(Exception):
    """The peer does not speak this protocol."""


def encode(message: Message) -> bytes:
    """One frame."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


class Splitter:
    """Cuts a stream of bytes into frames.

    Args:
        limit_bytes: of a frame, at most; parsed it may take twenty times as much.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._parts: list[bytes] = []
        self._size_bytes = 0

    def feed(self, data: bytes) -> list[Message]:
        """The frames completed by ``data``.

        Raises:
            WireError: a frame is no JSON object, or has no end.
        """
        self._size_bytes += len(data)
        if b"\n" not in data:
            if self._size_bytes > self._limit_bytes:
                raise WireError(f"a frame is longer than {self._limit_bytes} bytes")
            self._parts.append(data)
            return []
        self._parts.append(data)
        *lines, rest = b"".join(self._parts).split(b"\n")
        self._parts = [rest] if rest else []
        self._size_bytes = len(rest)
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError(f"a frame is a {type(message).__name__}, not an object")
    return message
