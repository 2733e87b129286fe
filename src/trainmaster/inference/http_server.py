"""`InferenceServer`: HTTP in front of a `Protocol`, by the standard library: it runs in anybody's Python."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from trainmaster.inference.errors import RequestError
from trainmaster.inference.protocol import Protocol

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 512
MOST_BODY_BYTES: Final = 64 << 20
#: Of all bodies that are read or wait.
MOST_HELD_BYTES: Final = 512 << 20
_PIECE_BYTES: Final = 1 << 20
_IDLE_S: Final = 120.0
_LINE_BYTES: Final = 64
_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class InferenceServer(ThreadingHTTPServer):
    """A thread per connection, of which there are so many at most.

    Args:
        address: host and port; 0 for any that is free.
        protocol: what answers.
        body_bytes: larger bodies are refused.
        held_bytes: bodies that would be more together are sent away for a moment.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        protocol: Protocol,
        body_bytes: int = MOST_BODY_BYTES,
        held_bytes: int = MOST_HELD_BYTES,
    ) -> None:
        self.protocol, self.body_bytes, self._held_bytes, self._now_bytes = (
            protocol,
            body_bytes,
            held_bytes,
            0,
        )
        self._connections: dict[socket.socket, bool] = {}  # whether it is answering
        self._changed = threading.Condition()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without asking for our own name: names take seconds where no resolver answers."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - of the standard library
        """Give it a thread, or send it away."""
        with self._changed:
            is_full = len(self._connections) >= MOST_CONNECTIONS
            if not is_full:
                self._connections[request] = False
        if is_full:
            with suppress(OSError):
                request.sendall(_FULL)
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401
        """Forget a connection."""
        with self._changed:
            self._connections.pop(request, None)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """A client that has gone is no trouble of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a connection was ended by a mistake of ours")

    def answering(self, request: socket.socket, is_so: bool) -> None:
        """Note that a request has come, or was answered."""
        with self._changed:
            if request in self._connections:
                self._connections[request] = is_so
            self._changed.notify_all()

    def hold(self, size: int) -> None:
        """Make room for so many bytes of a body.

        Raises:
            RequestError: there is none for the moment.
        """
        with self._changed:
            if self._now_bytes + size > self._held_bytes:
                raise RequestError("too many large requests wait already", 503, 1)
            self._now_bytes += size

    def release(self, size: int) -> None:
        """A body is needed no more."""
        with self._changed:
            self._now_bytes -= size

    def drain(self, patience_s: float) -> bool:
        """Take no more connections, and answer what has come; whether that was done in time."""
        self.protocol.is_draining = True
        self.shutdown()
        self.server_close()
        end = time.monotonic() + patience_s
        with self._changed:
            for each, is_answering in self._connections.items():
                if not is_answering:
                    with suppress(OSError):
                        each.shutdown(socket.SHUT_RD)  # what has come already is still read
            return self._changed.wait_for(lambda: not self._connections, max(0.0, end - time.monotonic()))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "trainmaster", ""
    timeout = _IDLE_S
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    server: InferenceServer

    def parse_request(self) -> bool:
        self.server.answering(self.connection, True)
        return super().parse_request()

    def handle_expect_100(self) -> bool:
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self._size = 0
        try:
            body = self._body()
            status, answer = self.server.protocol.answer(self.command, self.path, body)
            retry_after_s = 0
        except RequestError as error:
            status, answer = error.status, json.dumps({"error": str(error)}).encode()
            retry_after_s = error.retry_after_s
        finally:
            self.server.release(self._size)  # before it is answered: the next one may come then
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        if retry_after_s:
            self.send_header("Retry-After", str(retry_after_s))
        if self.server.protocol.is_draining or self.close_connection:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()
        self.server.answering(self.connection, False)

    def _body(self) -> bytes:
        """All of it; what is not read would be taken for the next request, so the connection ends then."""
        kept, self.close_connection = self.close_connection, True
        if self.headers.get("Content-Encoding", "identity") != "identity":
            raise RequestError("bodies are taken without Content-Encoding", 415)
        if self.headers.get("Transfer-Encoding"):
            body = self._chunks()
        else:
            try:
                size = int(self.headers.get("Content-Length") or 0)
            except ValueError:
                size = -1
            if size < 0:
                raise RequestError("Content-Length is no number")
            self._check_size(size)
            body = b"".join(self._pieces(size))
        self.close_connection = kept
        return body

    def _chunks(self) -> bytes:
        if self.headers["Transfer-Encoding"].lower() != "chunked" or self.headers.get("Content-Length"):
            raise RequestError("a body has a length or is chunked, nothing else")
        body = bytearray()
        while True:
            try:
                size = int(self.rfile.readline(_LINE_BYTES).partition(b";")[0], 16)
            except ValueError:
                raise RequestError("a chunk of the body has no length") from None
            if size < 0:
                raise RequestError("a chunk of the body has no length")
            self._check_size(len(body) + size)
            body += b"".join(self._pieces(size))
            self.rfile.readline(_LINE_BYTES)
            if not size:
                return bytes(body)

    def _pieces(self, size: int) -> Iterator[bytes]:
        """So much of the body; a client that says a length and sends nothing takes no room from others."""
        while size:
            piece = min(size, _PIECE_BYTES)
            self.server.hold(piece)
            self._size += piece
            read = self.rfile.read(piece)
            if len(read) < piece:
                raise ConnectionResetError("the client has gone")
            yield read
            size -= piece

    def _check_size(self, size: int) -> None:
        if size > self.server.body_bytes:
            raise RequestError(f"the body has more than {self.server.body_bytes} bytes", 413)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - of the standard library
        """Requests are not logged: a service has millions."""
