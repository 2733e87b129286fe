"""Clients that send a byte now and then, or do not read their answers: others are answered as before."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn
from served_home import Served

from trainmaster.api import timed_protocol
from trainmaster.api.rest import guards
from trainmaster.testing.waits import until

#: More than there are threads for requests.
MANY = 60


class Listening(Served):
    """A server over TCP, as `trainmaster server` has it."""

    def __init__(self, root):
        super().__init__(root)
        config = uvicorn.Config(
            self.app, port=0, http=timed_protocol.TimedProtocol, lifespan="off", log_level="critical"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()), daemon=True)
        self.thread.start()
        until(lambda: self.server.started, "the server listens")
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def end(self):
        self.server.should_exit = True
        self.state.hubs.end()
        self.thread.join(60)
        self.service.close()

    def answers(self):
        """Whether others are answered, also by what needs a thread and the database."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            headers = {"authorization": f"Bearer {self.tokens['blue-read']}"}
            connection.request("GET", "/api/v1/runs", headers=headers)
            answer = connection.getresponse()
            return answer.status == 200 and b"job-blue" in answer.read()

    def connect(self, text=""):
        found = socket.create_connection(("127.0.0.1", self.port), 60)
        found.sendall(text.encode())
        return found

    def head(self, method, path, *more, who="red-user"):
        lines = [f"{method} /api/v1{path} HTTP/1.1", "host: 127.0.0.1"]
        return "\r\n".join([*lines, f"authorization: Bearer {self.tokens[who]}", *more, "", ""])


@pytest.fixture
def listening(tmp_path):
    found = Listening(tmp_path)
    yield found
    found.end()


@pytest.fixture
def several():
    with contextlib.ExitStack() as stack:
        yield lambda opened: [stack.enter_context(each) for each in opened]


def is_closed(connection):
    """In the end; else it takes longer than a socket's patience."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def test_heads_that_do_not_come_take_no_place_for_long(listening, several, monkeypatch):
    at = listening
    with at.connect(at.head("GET", "/runs/job-red/stream")) as follows:
        until(lambda: b"event: " in follows.recv(65536), "it is answered")
        monkeypatch.setattr(timed_protocol, "HEAD_S", 0.05)
        silent = several(at.connect() for _ in range(MANY))
        slow = several(at.connect("GET / HTTP/1.1\r\nhost: a") for _ in range(MANY))
        kept = several([at.connect(at.head("GET", "/me"))])
        assert b" 200 " in kept[0].recv(65536)
        kept[0].sendall(b"GET /api/v1/me HT")
        assert at.answers()
        for each in slow:
            with contextlib.suppress(OSError):
                each.sendall(b"b")
        assert all(is_closed(each) for each in (*silent, *slow))
        assert all(is_closed(each) for each in kept), "also between two requests"
        follows.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            assert follows.recv(65536) != b"", "what is answered may take as long as it likes"


def test_a_body_that_does_not_come_is_not_waited_for(listening, several, monkeypatch):
    at = listening
    monkeypatch.setattr(guards, "BODY_S", 0.2)
    headers = ("content-type: application/json", "content-length: 1000000")
    slow = several(at.connect(at.head("POST", "/recipes/check", *headers) + "{") for _ in range(MANY))
    assert at.answers()
    for each in slow:
        with contextlib.suppress(OSError):
            each.sendall(b" ")
    for each in slow:
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := each.recv(65536):
                answer += piece
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"did not come within" in answer


def test_who_does_not_read_keeps_nobody_waiting(listening, several):
    at = listening
    place = at.service.home.attempt("job-red", "main", 0, 1)
    place.log("worker-0").write_text("x" * 1023 + "\n" + ("y" * 1023 + "\n") * 8192)
    deaf = several(at.connect(at.head("GET", "/runs/job-red/logs")) for _ in range(MANY))
    first = [each.recv(1024) for each in deaf]
    assert all(b" 200 " in each.split(b"\r\n")[0] for each in first)
    assert at.answers()
    until(lambda: len(at.state.transfers._all()) == MANY, "all wait for who reads")
    for each in deaf:
        each.close()
    until(lambda: not at.state.transfers._all(), "who is gone takes no place")
    assert at.answers()
