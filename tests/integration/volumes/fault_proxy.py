"""A proxy in front of an object store that fails as asked: slow, narrow, with errors, cut off, wrong.

Requests are passed on as they are, signatures included, so it works before any server that speaks
HTTP. Usable outside tests: ``with FaultProxy("http://127.0.0.1:8333") as proxy: ... proxy.url``.
"""

import contextlib
import http.client
import socket
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

BLOCK_BYTES = 64 * 1024
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}


@dataclass
class Fault:
    """What is to go wrong.

    Attributes:
        kind: ``status`` (answer with it, asking nobody), ``cut`` (break the connection in the body of
            the answer), ``refuse`` (break it before an answer), ``lose`` (pass the request on, then
            break the connection: it was done, and nobody hears of it), ``corrupt`` (change a byte of
            the body), ``truncate`` (end the body early, with a length that says so),
            ``overwrite`` (pass a conditional write on without its condition).
        times: how often; a large number for always.
        method: of the requests it is for; empty for all.
        path: a part of their path and query; empty for all.
        status: for ``status``.
        after_bytes: for ``cut``, ``corrupt`` and ``truncate``: where in the body.
    """

    kind: str
    times: int = 1
    method: str = ""
    path: str = ""
    status: int = 500
    after_bytes: int = 0


class FaultProxy(ThreadingHTTPServer):
    """The proxy; give it faults, and look at what it was asked.

    Attributes:
        latency_s: before each answer.
        bytes_per_s: of all answers and requests together; None for no limit.
        requests: method, path and Range header of each request, in order.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream)
        self.latency_s = 0.0
        self.bytes_per_s: float | None = None
        self.requests: list[tuple[str, str, str]] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *_):
        self.close()

    def close(self) -> None:
        """Ends it and every connection."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._lock:
            for connection in self._open:  # their threads would wait for the next request
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request, client_address):
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def fail(self, kind: str, **conditions) -> Fault:
        """Adds a fault; the first one that fits a request and is not used up happens."""
        fault = Fault(kind, **conditions)
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Takes all faults away."""
        with self._lock:
            self._faults.clear()
        self.latency_s, self.bytes_per_s = 0.0, None

    def wait_until_idle(self) -> None:
        """Waits for what clients that are gone have sent: all of it has arrived, or is cut off."""
        deadline = time.monotonic() + 60
        while self._open:
            assert time.monotonic() < deadline, "a client is still connected"
            time.sleep(0.02)

    def asked(self, method: str = "", path: str = "") -> list[tuple[str, str, str]]:
        """Gives the requests so far that fit."""
        with self._lock:
            return [one for one in self.requests if one[0].startswith(method) and path in one[1]]

    def fault_for(self, method: str, path: str, range_header: str) -> Fault | None:
        with self._lock:
            self.requests.append((method, path, range_header))
            for fault in self._faults:
                if fault.times > 0 and fault.method in ("", method) and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def pace(self, size_bytes: int) -> None:
        """Waits as long as so many bytes take on the line that all share."""
        if self.bytes_per_s:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(now, self._free_at) + size_bytes / self.bytes_per_s
                wait_s = self._free_at - now
            time.sleep(wait_s)

    def handle_error(self, request, client_address):
        pass  # connections are broken on purpose


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms
    server: FaultProxy
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, *arguments):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self):
        with contextlib.suppress(OSError):
            super().finish()
        if self.upstream is not None:
            self.upstream.close()

    def forward(self):
        server = self.server
        fault = server.fault_for(self.command, self.path, self.headers.get("Range", ""))
        kind = fault.kind if fault else ""
        if server.latency_s:
            time.sleep(server.latency_s)
        if kind == "refuse":
            self.broken()
            return
        body = self.body()
        if kind == "status":
            for _ in body:
                pass
            self.refused(fault.status)
            return
        response = self.asked(body, without_condition=kind == "overwrite")
        if kind == "lose":
            response.read()
            self.broken()
            return
        self.answer(response, fault if kind in ("cut", "corrupt", "truncate") else None)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            raise NotImplementedError("no client of ours sends requests in pieces of unknown number")
        left = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while left:
            block = self.rfile.read(min(BLOCK_BYTES, left))
            if not block:
                raise ConnectionResetError
            left -= len(block)
            self.server.pace(len(block))
            yield block

    def asked(self, body, *, without_condition):
        if self.upstream is None:
            upstream = self.server.upstream
            self.upstream = http.client.HTTPConnection(upstream.hostname, upstream.port, timeout=120)
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() in _HOP_BY_HOP | {"expect"}:
                continue
            if without_condition and name.lower() in ("if-none-match", "if-match"):
                continue
            self.upstream.putheader(name, value)
        self.upstream.endheaders()
        for block in body:
            self.upstream.send(block)
        return self.upstream.getresponse()

    def answer(self, response, fault):
        length = response.getheader("Content-Length")
        has_body = self.command != "HEAD" and response.status not in (204, 304)
        body = response.read() if has_body and length is None else None
        size = len(body) if body is not None else int(length or 0)
        if fault and fault.kind == "truncate":
            size = min(size, fault.after_bytes)
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if not has_body or not size:  # one without a byte has to be read all the same, before the next one
            response.read()
            return
        done = 0
        while done < size:
            block = (
                body[done : done + BLOCK_BYTES]
                if body is not None
                else response.read(min(BLOCK_BYTES, size - done))
            )
            if not block:
                break
            if fault and fault.kind == "corrupt" and done <= fault.after_bytes < done + len(block):
                changed = bytearray(block)
                changed[fault.after_bytes - done] ^= 0xFF
                block = bytes(changed)
            if fault and fault.kind == "cut" and done + len(block) > fault.after_bytes:
                self.wfile.write(block[: max(0, fault.after_bytes - done)])
                self.broken()
                return
            self.server.pace(len(block))
            self.wfile.write(block)
            done += len(block)
        if fault and fault.kind == "truncate":
            self.broken()  # the rest of the server's answer is in the way

    def refused(self, status):
        code = _CODES.get(status, "Error")
        body = f"<Error><Code>{code}</Code><Message>as asked</Message></Error>".encode()
        self.send_response_only(status, code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def broken(self):
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True
