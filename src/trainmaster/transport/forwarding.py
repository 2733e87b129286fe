"""`Forwarding`: whoever connects to a socket here is led elsewhere, by two threads a connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final, Protocol

from trainmaster.spec.errors import TrainmasterError

_PIECE_BYTES: Final = 1 << 18
#: After a connection that could not be taken.
_PAUSE_S: Final = 0.5


class ByteStream(Protocol):
    """A connection to somewhere. Two threads share it: one receives, one sends."""

    def receive(self) -> bytes:
        """What comes; nothing is the end."""

    def send(self, data: bytes) -> None:
        """Say something; nothing is the end of it."""

    def close(self) -> None:
        """Hang up; a thread that waits for something is let go."""


class SocketStream:
    """A connected socket.

    Args:
        raw: it is closed with this.
    """

    def __init__(self, raw: socket.socket) -> None:
        self._raw = raw

    def receive(self) -> bytes:
        """See `ByteStream`."""
        return self._raw.recv(_PIECE_BYTES)

    def send(self, data: bytes) -> None:
        """See `ByteStream`."""
        if data:
            self._raw.sendall(data)
        else:
            self._raw.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """See `ByteStream`."""
        with contextlib.suppress(OSError):
            self._raw.shutdown(socket.SHUT_RDWR)
        self._raw.close()


class Forwarding:
    """Leads whoever connects to a stream, until it is closed.

    Args:
        listener: a listening socket, closed with this.
        open_stream: makes a connection to there; in a thread of its own.
        tell: is told why a connection could not be made.
    """

    def __init__(
        self,
        listener: socket.socket,
        open_stream: Callable[[], ByteStream],
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._listener, self._open_stream, self._tell = listener, open_stream, tell
        self._over = threading.Event()
        self._streams: set[ByteStream] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    def close(self) -> None:
        """Listen no more, and end all connections."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # lets `accept` return
        self._listener.close()
        with self._lock:
            streams, self._streams = self._streams, set()
        for stream in streams:
            with contextlib.suppress(OSError):
                stream.close()

    def _accept(self) -> None:
        while True:
            near = None
            try:
                near = self._listener.accept()[0]
                if near.family != socket.AF_UNIX:
                    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(SocketStream(near),), daemon=True).start()
            except (OSError, RuntimeError) as error:  # it is closed, or there are too many files or threads
                if near is not None:
                    near.close()
                if self._over.wait(_PAUSE_S):
                    return
                self._tell(f"a connection could not be taken: {error}")

    def _serve(self, near: SocketStream) -> None:
        try:
            far = self._open_stream()
        except (TrainmasterError, OSError) as error:
            self._tell(str(error.args[0]) if isinstance(error, TrainmasterError) else str(error))
            near.close()
            return
        with self._lock:
            self._streams |= {near, far}
        up = threading.Thread(target=self._move, args=(near, far), daemon=True)
        up.start()
        self._move(far, near)
        up.join()
        near.close()
        far.close()
        with self._lock:
            self._streams -= {near, far}

    def _move(self, source: ByteStream, sink: ByteStream) -> None:
        """Until one of them ends; a side that only says no more leaves the other way open."""
        try:
            while data := source.receive():
                sink.send(data)
            sink.send(b"")
        except OSError as error:
            if not isinstance(error, ConnectionError | BrokenPipeError) and error.errno is None:
                self._tell(str(error))  # what the server says of it
            source.close()
            sink.close()
