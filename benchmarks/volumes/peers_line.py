# ruff: noqa: D102
# asyncio's protocols say what their methods mean.
"""A line with latency and limited bandwidth before a TCP server: bytes are delayed, not looked at.

``python peers_line.py HOST:PORT LATENCY_MS MEGABYTES_PER_S`` prints its own port and serves until killed.
The latency is that from a request to the first byte of its answer, and a new connection costs it once more,
as a handshake does. The bandwidth is that of all answers together; 0 for no limit. It passes bytes on and
looks at none of them: far cheaper than a proxy that reads HTTP.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

_AHEAD_S = 0.02
_NEXT_S = 1e-6


class Line:
    """What all connections share.

    Attributes:
        latency_s: before each answer.
        bytes_per_s: of all answers; 0 for no limit.
    """

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s
        self._free_at = 0.0

    def sent_at(self, now: float, size_bytes: int) -> float:
        """When so many bytes have left the server's end."""
        if not self.bytes_per_s:
            return now
        self._free_at = max(now, self._free_at) + size_bytes / self.bytes_per_s
        return self._free_at


class FromServer(asyncio.Protocol):
    """The answers."""

    def __init__(self, line: Line, client: FromClient) -> None:
        self._line, self._client = line, client
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        self._paused = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        sent = self._line.sent_at(now, len(data))
        # Later than the last, however little: a timer's order is that of its time alone.
        self._last = max(self._last + _NEXT_S, sent + self._line.latency_s)
        self._loop.call_at(self._last, self._client.write, data)
        if sent - now > _AHEAD_S:
            self.transport.pause_reading()
            self._loop.call_at(sent - _AHEAD_S / 2, self._resume)

    def _resume(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._loop.call_at(max(self._last + _NEXT_S, self._loop.time()), self._client.close)


class FromClient(asyncio.Protocol):
    """The requests."""

    def __init__(self, line: Line, host: str, port: int) -> None:
        self._line, self._host, self._port = line, host, port
        self._waiting: deque[bytes] | None = deque()
        self._server: FromServer | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=64 << 20)
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        await asyncio.sleep(self._line.latency_s)
        loop = asyncio.get_running_loop()
        try:
            _, self._server = await loop.create_connection(
                lambda: FromServer(self._line, self), self._host, self._port
            )
        except OSError:
            self.close()
            return
        for data in self._waiting or ():
            self._server.transport.write(data)
        self._waiting = None
        if self.transport.is_closing():
            self._server.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(data)
        else:
            self._server.transport.write(data)

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if self._server is not None and self._server.transport is not None:
            self._server.transport.close()


async def serve(upstream: str, latency_ms: float, megabytes_per_s: float) -> None:
    host, _, port = upstream.rpartition(":")
    line = Line(latency_ms / 1e3, megabytes_per_s * 1e6)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: FromClient(line, host, int(port)), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
