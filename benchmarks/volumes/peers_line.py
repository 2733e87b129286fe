"""A line with latency, windows and limited bandwidth before a TCP server: bytes are delayed, not looked at.

``python peers_line.py HOST:PORT LATENCY_MS MEGABYTES_PER_S [WINDOW_MIB]`` prints its own port and serves
until killed. What is modelled is what a client of a far object store feels:

- Latency: a request reaches the server a round trip after it was sent, so that this is the least from a
  request to the first byte of its answer. A new connection costs one more, as TCP's handshake does.
- A window for each connection, as TCP has: 10 segments of answers in its first round trip, and whenever a
  window was full twice as many in the next, up to ``WINDOW_MIB`` (6: what Linux long let a receiver have),
  which at 50 ms is 126 MB/s for one connection. So one connection does not fill a line, nor do new ones at
  once. A window that was reached is kept while its connection is idle.
- Bandwidth: that of all answers together; 0 for no limit.

Not modelled: lost packets, TLS, and window and bandwidth of what the client sends, here some hundred bytes.

Answers go from socket to socket by `splice`, neither copied nor mapped: the line shares its processors with
the server and the client that are measured.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from fcntl import F_SETPIPE_SZ, fcntl
from itertools import count

FIRST_WINDOW_BYTES = 10 * 1460
WINDOW_MIB = 6.0
PIPE_BYTES = 1 << 20
TURN_BYTES = 1 << 17
_REQUEST_BYTES = 1 << 16


class Bandwidth:
    """What all answers share.

    Args:
        bytes_per_s: of all together; 0 for no limit.

    Attributes:
        turn_bytes: how much a connection may take at once, so that all have their share.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.turn_bytes = TURN_BYTES if bytes_per_s else PIPE_BYTES

    def take(self, size_bytes: int) -> None:
        """Waits until so many bytes have left the server's end."""
        if self._bytes_per_s:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + size_bytes / self._bytes_per_s
                wait_s = self._free_at - now
            time.sleep(wait_s)


class Window:
    """How much a connection may have under way in a round trip.

    Args:
        latency_s: of the round trip; 0: there is no window.
        limit_bytes: which it reaches.
    """

    def __init__(self, latency_s: float, limit_bytes: int) -> None:
        self._latency_s, self._limit_bytes = latency_s, limit_bytes
        self._left = self._size = min(FIRST_WINDOW_BYTES, limit_bytes) if latency_s else PIPE_BYTES
        self._ends_at = 0.0

    def room_bytes(self) -> int:
        """How much may leave; waits for the end of the round trip if its window is full."""
        if not self._left:
            time.sleep(max(self._ends_at - time.monotonic(), 0.0))
            self._left = self._size = min(2 * self._size, self._limit_bytes)
            self._ends_at = 0.0
        return self._left

    def note(self, size_bytes: int) -> None:
        """So many bytes left: in this round trip, or as the first of a new one."""
        if self._latency_s:
            now = time.monotonic()
            if now >= self._ends_at:
                self._left, self._ends_at = self._size, now + self._latency_s
            self._left -= size_bytes


class Connection:
    """A client's connection and that to the server for it.

    Args:
        client: accepted.
        window: of the answers.
        bandwidth: of all connections.
    """

    def __init__(self, client: socket.socket, window: Window, bandwidth: Bandwidth) -> None:
        self.client = client
        self.server: socket.socket | None = None
        self._window, self._bandwidth = window, bandwidth
        self._lock = threading.Lock()
        self._ends = 2

    def connect(self, upstream: tuple[str, int]) -> None:
        """Connects to the server and begins to pass its answers on; ends if there is none."""
        try:
            self.server = socket.create_connection(upstream)
        except OSError:
            self.end_client()
            self.release()
            return
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._answer, args=(self.server,), daemon=True).start()

    def send(self, data: bytes) -> None:
        """Passes a request on."""
        if self.server is not None:
            with contextlib.suppress(OSError):
                self.server.sendall(data)

    def end_server(self) -> None:
        """The client has nothing more to say."""
        if self.server is not None:
            with contextlib.suppress(OSError):
                self.server.shutdown(socket.SHUT_RDWR)

    def end_client(self) -> None:
        """The server has nothing more to say: what waits for requests will see that."""
        with contextlib.suppress(OSError):
            self.client.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """One of the two directions is over; with the second the sockets are closed."""
        with self._lock:
            self._ends -= 1
            if self._ends:
                return
        self.client.close()
        if self.server is not None:
            self.server.close()

    def _answer(self, server: socket.socket) -> None:
        out, into = os.pipe()
        with contextlib.suppress(OSError):  # more than the user may have: then it is smaller
            fcntl(into, F_SETPIPE_SZ, PIPE_BYTES)
        most = self._bandwidth.turn_bytes
        try:
            while size := os.splice(server.fileno(), into, min(self._window.room_bytes(), most)):
                self._bandwidth.take(size)
                self._window.note(size)
                while size:
                    size -= os.splice(out, self.client.fileno(), size)
        except OSError:
            self.end_server()  # the client is gone
        finally:
            os.close(out)
            os.close(into)
            self.end_client()
            self.release()


def serve(upstream: str, latency_ms: float, megabytes_per_s: float, window_mib: float) -> None:
    """Accepts clients and passes their requests on when they are due, in one thread.

    Args:
        upstream: host and port of the server.
        latency_ms: of a round trip.
        megabytes_per_s: of all answers; 0 for no limit.
        window_mib: which a connection reaches.
    """
    host, _, port = upstream.rpartition(":")
    latency_s, bandwidth = latency_ms / 1e3, Bandwidth(megabytes_per_s * 1e6)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    due: list[tuple[float, int, Callable[[], None]]] = []
    order, connected_at = count(), {}

    def later(at: float, work: Callable[[], None]) -> None:
        heapq.heappush(due, (at, next(order), work))

    while True:
        wait_s = max(due[0][0] - time.monotonic(), 0.0) if due else None
        ready = selector.select(wait_s)
        now = time.monotonic()
        for key, _ in ready:
            one: Connection | None = key.data
            if one is None:
                client, _ = listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                one = Connection(client, Window(latency_s, int(window_mib * (1 << 20))), bandwidth)
                # The client thinks that it is connected now; it would know after a round trip.
                connected_at[one] = now + latency_s
                later(now + latency_s, lambda one=one: one.connect((host, int(port))))
                selector.register(client, selectors.EVENT_READ, one)
                continue
            try:
                data = one.client.recv(_REQUEST_BYTES)
            except OSError:
                data = b""
            at = max(now, connected_at[one]) + latency_s
            if data:
                later(at, lambda one=one, data=data: one.send(data))
            else:
                selector.unregister(one.client)
                del connected_at[one]
                later(at, one.end_server)
                later(at, one.release)
        while due and due[0][0] <= time.monotonic():
            heapq.heappop(due)[2]()


def main() -> None:
    upstream, latency_ms, megabytes_per_s, *rest = sys.argv[1:]
    serve(upstream, float(latency_ms), float(megabytes_per_s), float(rest[0]) if rest else WINDOW_MIB)


if __name__ == "__main__":
    main()
