"""`CountingProxy`: a TCP relay before a server that counts what each side sent and got, and may be narrow."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from types import TracebackType
from urllib.parse import urlsplit

_BLOCK_BYTES = 64 << 10


class CountingProxy:
    """Listens until its context ends.

    Args:
        upstream: URL of the server.
        address: to listen at.

    Attributes:
        url: of the proxy.
        sent_bytes: to the server, by the client's address.
        got_bytes: from the server, by the client's address.
        bytes_per_s: that clients may send, all together; None for no limit.
        refusal: an HTTP answer that everybody gets instead of the server's; None lets them through.
    """

    def __init__(self, upstream: str, address: str = "127.0.0.1") -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._server = socket.create_server((address, 0), backlog=256)
        self.url = f"http://{address}:{self._server.getsockname()[1]}"
        self.sent_bytes: Counter[str] = Counter()
        self.got_bytes: Counter[str] = Counter()
        self.bytes_per_s: float | None = None
        self.refusal: bytes | None = None
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._sockets: set[socket.socket] = {self._server}
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> CountingProxy:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def refuse(self, code: str, status: str = "403 Forbidden") -> None:
        """From now on everybody is told so, as S3 tells it: of what is under way, too.

        Args:
            code: of the error, such as ``ExpiredToken``.
            status: of the answer.
        """
        text = f"<Error><Code>{code}</Code><Message>refused for a test</Message></Error>"
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(text)}\r\n"
        self.refusal = f"{head}Connection: close\r\n\r\n{text}".encode()
        with self._lock:
            sockets = self._sockets - {self._server}
        for each in sockets:
            _end(each)

    def _say_no(self, client: socket.socket, answer: bytes) -> None:
        client.settimeout(0.1)  # what is still sent is not read: the answer might be lost with it
        with contextlib.suppress(OSError):
            while client.recv(_BLOCK_BYTES):
                pass
        with contextlib.suppress(OSError):
            client.sendall(answer)
        _end(client)

    def close(self) -> None:
        """End it and every connection."""
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _end(each)
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, (host, _) = self._server.accept()
                if (refusal := self.refusal) is not None:
                    threading.Thread(target=self._say_no, args=(client, refusal), daemon=True).start()
                    continue
                server = socket.create_connection(self._upstream, 10)
            except OSError:
                if self._server.fileno() < 0 or not self._is_listening():
                    return
                _end(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            for source, target, counts, is_paced in (
                (client, server, self.sent_bytes, True),
                (server, client, self.got_bytes, False),
            ):
                arguments = (source, target, counts, host, is_paced)
                threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _is_listening(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._server.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        return False

    def _relay(
        self, source: socket.socket, target: socket.socket, counts: Counter[str], host: str, is_paced: bool
    ) -> None:
        try:
            while data := source.recv(_BLOCK_BYTES):
                if is_paced:
                    self._pace(len(data))
                with self._lock:
                    counts[host] += len(data)
                target.sendall(data)
        except OSError:
            pass
        finally:
            for each in (source, target):
                _end(each)
            with self._lock:
                self._sockets -= {source, target}

    def _pace(self, size_bytes: int) -> None:
        if not self.bytes_per_s:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + size_bytes / self.bytes_per_s
            wait_s = self._free_at - now
        time.sleep(wait_s)


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
