"""Ranges straight from a socket, from servers that answer as a test says."""

import os
import random
import socket
import threading
from contextlib import suppress
from typing import BinaryIO

import pytest

from trainmaster.objects import direct
from trainmaster.objects.direct import BLOCK_BYTES, DirectReader, NotDirectError
from trainmaster.objects.s3 import S3Backend

DATA = random.Random(0).randbytes(2 * BLOCK_BYTES + 12_345)


class Server:
    """Answers each request with what ``answer`` makes of its range.

    Attributes:
        requests: their heads.
        connections: how many were made.
        answer: (first, last) -> head, body, and whether the connection stays open.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.connections = 0
        self.answer = lambda first, last: (self.head(last - first + 1), DATA[first : last + 1], True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/bucket/key?X-Amz-Signature=abc"
        threading.Thread(target=self._serve, daemon=True).start()

    @staticmethod
    def head(length: int, status: str = "206 Partial Content", more: str = "") -> bytes:
        return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{more}\r\n".encode()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as file:
            while request := self._request(file):
                self.requests.append(request)
                wanted = next(line for line in request.split("\r\n") if line.startswith("Range: bytes="))
                first, last = map(int, wanted.partition("=")[2].split("-"))
                head, body, stays = self.answer(first, last)
                connection.sendall(head + body[:100])
                connection.sendall(body[100:])
                if not stays:
                    return

    @staticmethod
    def _request(file: BinaryIO) -> str:
        """Up to its empty line; nothing when the other end has hung up."""
        lines = []
        while (line := file.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines).decode()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server(monkeypatch):
    for name in direct._PROXIES:
        monkeypatch.delenv(name, raising=False)
    server = Server()
    yield server
    server.close()


def read(reader: DirectReader, url: str, start: int, length: int, etag: str = "") -> bytes:
    return b"".join(bytes(block) for block in reader.blocks(url, start, length, etag))


def test_ranges_over_one_connection(server):
    reader = DirectReader()
    assert read(reader, server.url, 0, len(DATA)) == DATA
    assert read(reader, server.url, 17, 1) == DATA[17:18]
    assert read(reader, server.url, 5, BLOCK_BYTES + 1, '"tag"') == DATA[5 : BLOCK_BYTES + 6]
    assert server.connections == 1
    assert server.requests[0].startswith("GET /bucket/key?X-Amz-Signature=abc HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "If-Match" not in server.requests[0]
    assert 'If-Match: "tag"\r\n' in server.requests[2]


def test_a_connection_that_was_closed_meanwhile(server):
    reader = DirectReader()
    plain = server.answer
    server.answer = lambda first, last: (*plain(first, last)[:2], False)
    for _ in range(3):
        assert read(reader, server.url, 3, 5000) == DATA[3:5003]
    assert server.connections == 3
    server.answer = lambda first, last: (server.head(10, more="Connection: close\r\n"), b"0123456789", True)
    assert [read(reader, server.url, 0, 10) for _ in range(2)] == [b"0123456789"] * 2
    assert server.connections == 5, "what a server will close is not used again"


@pytest.mark.parametrize(
    "answer",
    [
        lambda first, last: (Server.head(9), b"too short", True),
        lambda first, last: (Server.head(last + 1, "200 OK"), DATA, False),
        lambda first, last: (Server.head(5, "404 Not Found"), b"sorry", True),
        lambda first, last: (
            b"HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"5\r\n01234\r\n0\r\n",
            True,
        ),
        lambda first, last: (b"", b"", False),
        lambda first, last: (b"x" * 100_000, b"", False),
    ],
    ids=["short", "whole", "missing", "chunked", "nothing", "no http"],
)
def test_other_answers_are_not_taken(server, answer):
    server.answer = answer
    reader = DirectReader()
    with pytest.raises(NotDirectError):
        read(reader, server.url, 0, 100)
    server.answer = lambda first, last: (server.head(last - first + 1), DATA[first : last + 1], True)
    assert read(reader, server.url, 0, 100) == DATA[:100], "the next one is not confused"


def test_the_way_can_be_timed(server):
    """An empty block when the server is asked, when it answers, and when the first MiB is there."""
    held = [threading.Event(), threading.Event()]
    early = 1 << 20

    def head(length):
        held[0].wait(10)
        return server.head(length)

    class Body(bytes):
        def __getitem__(self, part):  # what is sent behind the first 100 bytes
            if part != slice(100, None):
                return super().__getitem__(part)
            first, last = super().__getitem__(slice(100, early)), super().__getitem__(slice(early, None))
            socket_of_answer[0].sendall(first)
            held[1].wait(10)
            return last

    socket_of_answer = []
    answered = server._answer

    def answer(connection):
        socket_of_answer.append(connection)
        answered(connection)

    server._answer = answer
    server.answer = lambda first, last: (head(last - first + 1), Body(DATA[first : last + 1]), True)
    blocks = DirectReader().blocks(server.url, 0, len(DATA))
    assert len(next(blocks)) == 0
    assert server.requests == [], "not asked yet"
    held[0].set()
    assert len(next(blocks)) == len(next(blocks)) == 0, "the rest is not sent yet"
    held[1].set()
    assert b"".join(map(bytes, blocks)) == DATA


def test_what_came_before_a_cut_is_right(server):
    server.answer = lambda first, last: (server.head(last - first + 1), DATA[first : BLOCK_BYTES + 99], False)
    blocks = DirectReader().blocks(server.url, 0, len(DATA))
    assert next(block for block in blocks if len(block)) == DATA[:BLOCK_BYTES]
    with pytest.raises(NotDirectError):
        next(blocks)


def test_a_server_that_never_answers_so_is_left_alone_for_a_while(server, monkeypatch):
    server.answer = lambda first, last: (server.head(0, "403 Forbidden"), b"", True)
    reader = DirectReader()
    now = [100.0]
    monkeypatch.setattr(direct.time, "monotonic", lambda: now[0])
    for _ in range(8):
        assert reader.is_usable
        with pytest.raises(NotDirectError):
            read(reader, server.url, 0, 10)
    assert not reader.is_usable
    now[0] += 61
    assert reader.is_usable
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert not reader.is_usable, "only the library goes through proxies"


def test_a_child_makes_connections_of_its_own(server):
    reader = DirectReader()
    read(reader, server.url, 0, 10)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if read(reader, server.url, 5, 10) == DATA[5:15] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read(reader, server.url, 0, 10) == DATA[:10]
    assert server.connections == 2


def test_the_library_reads_the_rest(server, monkeypatch):
    # Direct for a block, then cut: what follows comes from the library, from where it was.
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url.partition("/bucket")[0])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    server.answer = lambda first, last: (server.head(last - first + 1), DATA[first : BLOCK_BYTES + 99], False)
    backend = S3Backend("bucket/some")
    asked = []

    def get_range(key, start, length, etag):
        asked.append((key, start, length, etag))
        return memoryview(DATA)[start : start + length]

    monkeypatch.setattr(backend, "get_range", get_range)
    blocks = [bytes(block) for block in backend.range_blocks("thing", 0, len(DATA), "e")]
    assert b"".join(blocks) == DATA
    assert asked == [("thing", BLOCK_BYTES, len(DATA) - BLOCK_BYTES, "e")]
    assert "GET /bucket/some/thing?X-Amz-" in server.requests[0]
