"""`HttpReceiver`: a server over TCP that notes what it is asked, and answers what a test has told it to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self


class Asked(NamedTuple):
    """A request that has come."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def answer(status: int | str, headers: Mapping[str, str] | None = None, text: str = "") -> bytes:
    """A whole answer; the status may have its words, such as ``503 Away``."""
    body = text.encode()
    said = {"content-length": str(len(body)), "connection": "close", **(headers or {})}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in said.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


class HttpReceiver:
    """A server on a port of its own; a context manager, which ends it.

    Attributes:
        answers: for the next requests, in their order: bytes as they are sent, or None to hang up.
        usual: what is answered when there are no more.
        asked: what has come so far.
    """

    def __init__(self, usual: bytes | None = None) -> None:
        self.answers: list[bytes | None] = []
        self.usual = usual
        self.asked: list[Asked] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                receiver.asked.append(Asked(self.command, self.path, dict(self.headers), body))
                told = receiver.answers.pop(0) if receiver.answers else receiver.usual
                if told is not None:
                    self.wfile.write(told)
                self.close_connection = True

            do_POST = do_PUT = do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
