"""The inference server over TCP: the V2 protocol, its queue, and its end."""

from __future__ import annotations

import http.client
import json
import socket
import threading

import numpy as np
import pytest

from trainmaster.inference.errors import RequestError
from trainmaster.inference.http_server import InferenceServer
from trainmaster.inference.protocol import Protocol
from trainmaster.inference.tensors import TensorSpec

WAIT_S = 60
BODY = json.dumps({"inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]}]})


class Doubling:
    """Gives twice what it gets; waits until it may, if it is held."""

    platform, at_once = "test", 1
    inputs = (TensorSpec("x", "INT64", (-1,)),)
    outputs = (TensorSpec("y", "INT64", (-1,)),)

    def __init__(self):
        self.free, self.begun = threading.Event(), threading.Semaphore(0)
        self.free.set()

    def infer(self, inputs, wanted):
        self.begun.release()
        assert self.free.wait(WAIT_S)
        if inputs["x"].size == 0:
            raise ZeroDivisionError
        if inputs["x"][0] < 0:
            raise RequestError("less than nothing")
        return {"y": inputs["x"] * np.int64(2)}


@pytest.fixture
def model():
    return Doubling()


@pytest.fixture
def server(model):
    protocol = Protocol("m", queue=0)
    protocol.serve(model)
    found = InferenceServer(("127.0.0.1", 0), protocol, body_bytes=4096, held_bytes=6000)
    thread = threading.Thread(target=found.serve_forever, args=(0.01,))
    thread.start()
    yield found
    model.free.set()
    found.drain(WAIT_S)
    thread.join()


def connect(server):
    return http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=WAIT_S)


def ask(server, method, path, body=None, headers=None, on=None):
    connection = on or connect(server)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    text = answer.read()
    if on is None:
        connection.close()
    return answer.status, json.loads(text), answer


def test_the_protocol_from_metadata_to_an_answer(server):
    on = connect(server)
    for path, expected in (
        ("/v2", {"name": "trainmaster", "version": "1", "extensions": []}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
    ):
        assert ask(server, "GET", path, on=on)[:2] == (200, expected)
    _, metadata, _ = ask(server, "GET", "/v2/models/m", on=on)
    assert metadata["inputs"] == [{"name": "x", "datatype": "INT64", "shape": [-1]}]
    status, answer, _ = ask(server, "POST", "/v2/models/m/infer", BODY, on=on)
    on.close()
    assert status == 200
    assert answer["outputs"] == [{"name": "y", "datatype": "INT64", "shape": [2], "data": [2, 4]}]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/", None, 404, "the protocol is below /v2"),
        ("GET", "/v2/models/other", None, 404, "there is no model 'other'; this serves 'm'"),
        ("GET", "/v2/models/m/infer", None, 405, "POST is"),
        ("POST", "/v2/health/live", "{}", 405, "GET is"),
        ("GET", "/v2/models/m/versions/1", None, 404, "see /v2/models/m"),
        ("POST", "/v2/models/m/infer", "{", 400, "the body is no JSON"),
        ("POST", "/v2/models/m/infer", "x" * 5000, 413, "more than 4096 bytes"),
        ("POST", "/v2/models/m/infer", BODY.replace("[1, 2]", "[-1, 2]"), 400, "less than nothing"),
        ("POST", "/v2/models/m/infer", BODY.replace("[1, 2]", "[]").replace("[2]", "[0]"), 500, "its log"),
        (
            "POST",
            "/v2/models/m/infer",
            BODY.replace("{", '{"outputs": [{"name": "z"}], ', 1),
            400,
            "no output 'z'",
        ),
    ],
)
def test_mistakes_are_told_as_json(server, method, path, body, status, message):
    found, answer, _ = ask(server, method, path, body)
    assert (found, message in answer["error"]) == (status, True)


def test_a_body_in_chunks_is_read(server):
    status, answer, _ = ask(
        server, "POST", "/v2/models/m/infer", iter([BODY[:9].encode(), BODY[9:].encode()])
    )
    assert (status, answer["outputs"][0]["data"]) == (200, [2, 4])


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", 415),
        ("content-length: two\r\n\r\n{}", 400),
        ("content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}", 400),
        ("transfer-encoding: gzip\r\n\r\n{}", 400),
        ("transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        ("transfer-encoding: chunked\r\n\r\n-1\r\n", 400),
        ("transfer-encoding: chunked\r\n\r\nffffff\r\n", 413),
    ],
)
def test_a_body_that_cannot_be_read_ends_the_connection(server, head, status):
    with socket.create_connection(("127.0.0.1", server.server_port), WAIT_S) as plain:
        plain.sendall(f"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\n{head}".encode())
        answer = b""
        while data := plain.recv(65536):  # until it closes
            answer += data
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


def test_who_finds_the_queue_full_is_sent_away_and_the_other_one_is_answered(server, model):
    model.free.clear()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/v2/models/m/infer", BODY)))
    asking.start()
    assert model.begun.acquire(timeout=WAIT_S)
    status, answer, head = ask(server, "POST", "/v2/models/m/infer", BODY)
    assert (status, answer["error"], head.getheader("Retry-After")) == (
        503,
        "too many requests wait already",
        "1",
    )
    model.free.set()
    asking.join(WAIT_S)
    assert answers[0][0] == 200


@pytest.mark.parametrize("how", ["content-length: 4000\r\n\r\n", "transfer-encoding: chunked\r\n\r\nfa0\r\n"])
def test_bodies_that_would_be_too_much_together_are_sent_away(server, model, how):
    model.free.clear()
    large, answers = BODY.ljust(4000), []
    asking = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/v2/models/m/infer", large)))
    asking.start()
    assert model.begun.acquire(timeout=WAIT_S)
    with socket.create_connection(("127.0.0.1", server.server_port), WAIT_S) as plain:
        plain.sendall(f"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\n{how}".encode())
        answer = b""
        while data := plain.recv(65536):  # until it closes
            answer += data
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1" in answer
    assert b"too many large requests" in answer
    model.free.set()
    asking.join(WAIT_S)
    assert answers[0][0] == 200
    assert ask(server, "POST", "/v2/models/m/infer", large)[0] == 200, "there is room again"


def test_what_is_under_way_at_the_end_is_answered(server, model):
    model.free.clear()
    idle = connect(server)
    ask(server, "GET", "/v2", on=idle)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(server, "POST", "/v2/models/m/infer", BODY)))
    asking.start()
    assert model.begun.acquire(timeout=WAIT_S)
    draining = threading.Thread(target=server.drain, args=(WAIT_S,))
    draining.start()
    assert idle.sock.recv(1) == b""  # nobody waits for a client that says nothing
    idle.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.server_port), WAIT_S)
    model.free.set()
    asking.join(WAIT_S)
    draining.join(WAIT_S)
    assert not draining.is_alive()
    status, answer, head = answers[0]
    assert (status, answer["outputs"][0]["data"], head.getheader("Connection")) == (200, [2, 4], "close")


def test_a_model_that_is_being_loaded_is_alive_and_not_ready():
    protocol = Protocol("m", queue=1)
    assert protocol.answer("GET", "/v2/health/live", b"") == (200, b'{"live": true}')
    assert protocol.answer("GET", "/v2/health/ready", b"") == (503, b'{"ready": false}')
    assert protocol.answer("GET", "/v2/models/m/ready", b"")[0] == 503
    with pytest.raises(RequestError, match="is being loaded") as raised:
        protocol.answer("POST", "/v2/models/m/infer", b"")
    assert (raised.value.status, raised.value.retry_after_s) == (503, 1)
