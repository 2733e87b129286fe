"""Health checks of replicas, whatever becomes of one of them."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from trainmaster.control.loop import health
from trainmaster.control.loop.health import HealthChecks, ProbeHistory, check
from trainmaster.spec.serve import HealthCheck

READY = HealthCheck(path="/ready")


def test_a_check_that_breaks_is_not_the_last_one():
    def reach():
        raise RuntimeError("can't start new thread")

    heard = ProbeHistory(0.0, is_asking=True)
    HealthChecks(lambda: 1.0)._check(heard, reach, READY)
    assert (heard.is_asking, heard.is_healthy) == (False, False)
    assert heard.said == "GET /ready: internal error: can't start new thread"


def drips(stream):
    """Says something all the time, and never answers."""
    with contextlib.suppress(OSError):
        while True:
            stream.sendall(b"HTTP/1.1"[:1])


def silent(stream):
    stream.recv(1)


def says(text):
    def answer(stream):
        stream.recv(4096)
        stream.sendall(text)

    return answer


@contextlib.contextmanager
def replica(answer):
    """One that answers a single request so; host and port."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            stream, _ = listener.accept()
            with stream:
                answer(stream)
                if answer is silent:
                    over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(b"HTTP/1.1 200 OK\r\n\r\n"), ""),
        (says(b"HTTP/1.0 302 Found\r\nlocation: /login\r\n\r\n"), ""),
        (says(b"HTTP/1.1 503 Service Unavailable\r\n\r\nok"), "GET /ready: status 503"),
        (says(b"SSH-2.0-OpenSSH\r\n"), "GET /ready: what it answers is no HTTP"),
        (says(b"200 OK"), "GET /ready: what it answers is no HTTP"),
        (says(b""), "GET /ready: it has broken off"),
        (silent, "GET /ready: no answer within 0.05 s"),
        (drips, "GET /ready: what it answers is no HTTP"),
    ],
)
def test_a_replica_is_healthy_only_if_it_says_so_in_time(answer, said):
    how = HealthCheck(path="/ready", timeout_s=0.05) if answer is silent else READY
    with replica(answer) as where:
        assert check(lambda: contextlib.nullcontext(where), how) == said


def test_a_replica_is_asked_as_the_recipe_says():
    asked = []

    def answer(stream):
        asked.append(stream.recv(4096))
        stream.sendall(b"HTTP/1.1 201 Created\r\n\r\n")

    how = HealthCheck(path="/v1/chat", body='{"max_tokens": 1}', status=201)
    with replica(answer) as where:
        assert check(lambda: contextlib.nullcontext(where), how) == ""
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/chat HTTP/1.1\r\n")
    assert b"Content-Type: application/json\r\nContent-Length: 17" in head
    assert body == b'{"max_tokens": 1}'
    with replica(answer) as where:
        strict = how.model_copy(update={"status": 200})
        said = check(lambda: contextlib.nullcontext(where), strict)
    assert said == "POST /v1/chat: status 201"


def test_a_replica_that_comes_in_drops_is_not_waited_for(monkeypatch):
    """Each drop comes in time, the whole does not."""
    times = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr(health.time, "monotonic", lambda: next(times))
    drops = [b"H", b"T"]

    class Stream(contextlib.nullcontext):
        def __enter__(self):
            return self

        def sendall(self, data): ...
        def settimeout(self, seconds):
            self.left_s = seconds

        def recv(self, size):
            if self.left_s < 0.01:
                raise TimeoutError
            return drops.pop()

    monkeypatch.setattr(health.socket, "create_connection", lambda *_: Stream())
    said = check(lambda: contextlib.nullcontext(("127.0.0.1", 1)), READY)
    assert (said, drops) == ("GET /ready: no answer within 5 s", [])


def test_a_replica_that_was_healthy_and_lets_a_check_wait_is_silent():
    heard = ProbeHistory(0.0, is_healthy=True, healthy_at=100.0, asked_at=102.0, is_asking=True)
    assert heard.silent_s(110.0) == 0.0
    assert heard.silent_s(130.0) == 30.0
    assert ProbeHistory(0.0, is_asking=True).silent_s(1000.0) == 0.0, "it never was"
