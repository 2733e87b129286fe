"""Ranges of objects straight from a socket, for servers that speak plain HTTP.

A library that gives an answer as one piece of memory has copied it there, and it is cold when it
is written to where it belongs: half of what reading costs. Here an answer passes through a small
buffer that stays in the processor's cache. Whatever is not as it should be ends in
:class:`NotDirectError`, after which the library is asked, which knows about retries, errors and
everything else.
"""

import os
import socket
import struct
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

#: Written at once, at a multiple of it, this makes one huge page of a new file: a sixteenth of the time.
BLOCK_BYTES = 2 << 20
_HEAD_BYTES = 16 << 10
_EARLY_BYTES = 1 << 20
_CONNECT_S = 5.0
_SILENCE_S = 30
# A range is some megabytes: what takes so long trickles.
_RANGE_S = 300.0
_MOST_IDLE = 64
# After so many failures in a row the library is asked right away, for a while.
_MOST_FAILURES = 8
_PAUSE_S = 60.0
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class NotDirectError(Exception):
    """The range, or the rest of it, cannot be had this way."""


class Buffers:
    """Blocks of memory that are used again: touching new memory costs more than a copy."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """Gives a block of ``BLOCK_BYTES``."""
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(BLOCK_BYTES)

    def give_back(self, block: bytearray) -> None:
        """Nobody looks at the block any more."""
        if len(self._free) < _MOST_IDLE:
            self._free.append(block)


BUFFERS = Buffers()


class DirectReader:
    """Connections to one server; safe to use from several threads, and after a fork in the child."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._failures = 0
        self._not_before_s = 0.0
        _everyone.add(self)

    @property
    def is_usable(self) -> bool:
        """Whether it is worth a try."""
        if any(os.environ.get(name) for name in _PROXIES):
            return False
        return time.monotonic() >= self._not_before_s

    def blocks(self, url: str, start: int, length: int, etag: str = "") -> Iterator[memoryview]:
        """Reads a range of an object.

        Args:
            url: signed, and plain ``http``.
            start: of the first byte.
            length: in bytes, at least 1; all of them must be there.
            etag: of the object that is meant; empty: any.

        Yields:
            The bytes in their order; each block is overwritten when the next one is asked for. Before them
            three empty ones, so that the way can be timed: when the server is asked, when it answers, and
            when the first MiB is there.

        Raises:
            NotDirectError: not with this server, or not now. What was yielded is right.
        """
        block = BUFFERS.take()
        deadline = time.monotonic() + _RANGE_S
        connection: _Connection | None = None
        try:
            request = _request(url, start, length, etag)
            yield memoryview(b"")
            connection, rest = self._answered(url, request, length)
            yield memoryview(b"")
            left, part = length, memoryview(block)[: min(length, BLOCK_BYTES)]
            part[: len(rest)] = rest
            connection.fill(part[len(rest) : _EARLY_BYTES], deadline)
            yield memoryview(b"")
            connection.fill(part[max(len(rest), _EARLY_BYTES) :], deadline)
            while True:
                left -= len(part)
                yield part
                if not left:
                    break
                part = part[:left]
                connection.fill(part, deadline)
            self._failures = 0
            if connection.stays_open and len(self._idle) < _MOST_IDLE:
                self._idle.append(connection)
                connection = None
        except (OSError, ValueError) as error:
            self._failures += 1
            if self._failures >= _MOST_FAILURES:
                self._failures, self._not_before_s = 0, time.monotonic() + _PAUSE_S
            raise NotDirectError from error
        finally:
            BUFFERS.give_back(block)
            if connection is not None:
                connection.close()

    def _answered(self, url: str, request: bytes, length: int) -> "tuple[_Connection, bytes]":
        """Sends a request; a connection that was idle may have been closed meanwhile."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection, is_new = _Connection(url), True
            else:
                is_new = False
            try:
                return connection, connection.ask(request, length)
            except OSError as error:
                connection.close()
                # Another answer, or none for so long, is no better on the next connection.
                if is_new or not isinstance(error, (BrokenPipeError, ConnectionResetError)):
                    raise

    def forget_connections(self) -> None:
        """In a forked child: they are the parent's."""
        for connection in self._idle:
            connection.close()
        self._idle = []


class _Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port or 80), _CONNECT_S)
        # The kernel waits, and not Python: then one call brings a whole block.
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _SILENCE_S, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SILENCE_S, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stays_open = True

    def ask(self, request: bytes, length: int) -> bytes:
        """Sends a request and reads the head of the answer; gives what came of the body with it."""
        self._socket.sendall(request)
        seen = b""
        while (end := seen.find(b"\r\n\r\n")) < 0:
            piece = self._socket.recv(_HEAD_BYTES)
            if not piece and not seen:
                raise ConnectionResetError("closed while it was idle")
            if not piece or len(seen) > _HEAD_BYTES:
                raise ConnectionError("no answer")
            seen += piece
        status, *lines = seen[:end].split(b"\r\n")
        fields = dict(line.lower().split(b":", 1) for line in lines if b":" in line)
        self.stays_open = fields.get(b"connection", b"").strip() != b"close"
        is_whole = fields.get(b"content-length", b"").strip() == b"%d" % length
        if not status.startswith(b"HTTP/1.1 206") or not is_whole or b"transfer-encoding" in fields:
            raise ConnectionError("another answer")
        return seen[end + 4 :][:length]

    def fill(self, target: memoryview, deadline_s: float) -> None:
        """Receives as many bytes as there is room for, until a time of the monotonic clock."""
        while len(target):
            if time.monotonic() > deadline_s:
                raise TimeoutError("too slow")
            count = self._socket.recv_into(target, 0, socket.MSG_WAITALL)
            if count == 0:
                raise ConnectionError("cut off")
            target = target[count:]

    def close(self) -> None:
        """Ends it."""
        with suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # it was connected
            self.close()


def _request(url: str, start: int, length: int, etag: str) -> bytes:
    parts = urlsplit(url)
    if not all(" " <= character <= "~" for character in etag):  # it would write lines of its own
        raise ValueError("an ETag that cannot be sent")
    condition = f"If-Match: {etag}\r\n" if etag else ""
    return (
        f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: trainmaster\r\n"
        f"Accept-Encoding: identity\r\nRange: bytes={start}-{start + length - 1}\r\n{condition}\r\n"
    ).encode("ascii")


_everyone: "weakref.WeakSet[DirectReader]" = weakref.WeakSet()


def _forked() -> None:
    for reader in list(_everyone):
        reader.forget_connections()


os.register_at_fork(after_in_child=_forked)
