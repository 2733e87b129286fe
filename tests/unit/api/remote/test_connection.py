"""What is sent again, what is not, and what errors become; streams go on where they were."""

from __future__ import annotations

import http.client

import pytest

from http_receiver import HttpReceiver, answer
from trainmaster.api.remote.connection import PAUSES_S, RestConnection, ServerUnreachableError, error_of
from trainmaster.api.remote.streaming import messages
from trainmaster.spec.errors import AccessError, NotFoundError, RecipeError, RunError, UsageError
from trainmaster.testing.private_server import free_ports


def json_answer(text, status="200 OK", more=None):
    return answer(status, {"content-type": "application/json", **(more or {})}, text)


def stream_answer(text):
    return f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{text}".encode()


@pytest.fixture
def script():
    with HttpReceiver() as found:
        yield found


@pytest.fixture
def slept():
    return []


@pytest.fixture
def connection(script, slept):
    found = RestConnection(script.url, "tm_x", sleep=slept.append)
    yield found
    found.close()


def test_what_changes_nothing_is_asked_again(script, connection, slept):
    script.answers = [None, json_answer("{}", "503 Away"), json_answer('{"a": 1}')]
    assert connection.get("/info", limit=2, none=None) == {"a": 1}
    assert [each.path for each in script.asked] == ["/api/v1/info?limit=2"] * 3
    assert script.asked[0].headers["Authorization"] == "Bearer tm_x"
    assert slept == list(PAUSES_S[:2])


def test_what_rents_is_sent_once_without_a_key_and_again_with_one(script, connection, slept):
    script.answers = [None]
    with pytest.raises(ServerUnreachableError, match="does not answer"):
        connection.post("/runs", {})
    script.answers = [None, json_answer('{"run": "r"}')]
    assert connection.post("/runs", {}, key="k") == {"run": "r"}
    assert [each.headers["Idempotency-Key"] for each in script.asked[1:]] == ["k", "k"]


def test_who_asks_too_often_waits_as_long_as_it_is_told(script, connection, slept):
    script.answers = [json_answer("{}", "429 Slow", {"retry-after": "3"}), json_answer("{}")]
    connection.post("/runs", {})
    assert slept == [3.0]


def test_a_server_that_is_away_is_said(slept):
    gone = RestConnection(f"http://127.0.0.1:{free_ports(1)[0]}", "tm_x", sleep=slept.append)
    with pytest.raises(ServerUnreachableError, match="goes on"):
        gone.get("/info")
    assert slept == list(PAUSES_S)


def test_a_page_that_is_no_server_is_said(script, connection):
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/html\r\n"
    script.answers = [head + b"content-length: 2\r\n\r\nhi"]
    with pytest.raises(ServerUnreachableError, match="no Trainmaster server"):
        connection.get("/info")


def test_problems_are_the_errors_that_they_are_at_home():
    found = error_of(404, {"error": "NotFoundError", "title": "no run", "hint": "Look."}, "u")
    assert (type(found), str(found), found.hint) == (NotFoundError, "no run\nLook.", "Look.")
    run = error_of(409, {"error": "RunError", "title": "r-1: it runs"}, "u")
    assert (type(run), run.run, str(run)) == (RunError, "r-1", "r-1: it runs")
    mistake = {"line": 2, "column": 3, "key": "a.b", "message": "no"}
    recipe = error_of(422, {"error": "RecipeError", "title": "x", "mistakes": [mistake]}, "u")
    assert (type(recipe), str(recipe)) == (RecipeError, "recipe:2:3: a.b: no")
    assert [type(error_of(status, {}, "u")) for status in (401, 404, 422)] == [
        AccessError,
        NotFoundError,
        UsageError,
    ]
    assert type(error_of(418, {"error": "os"}, "u")) is UsageError, "only names of ours"


def test_a_stream_goes_on_where_it_was(script, connection, slept):
    whole = "".join(f'id: {name}\nevent: log\ndata: {{"n": {n}}}\n\n' for n, name in enumerate("ab", 1))
    first = whole + 'id: c\nevent: log\ndata: {"n"'
    script.answers = [
        stream_answer(first),
        None,
        json_answer("{}", "502 Away"),
        json_answer("{}", "429 Slow"),
        stream_answer(': still here\n\nid: c\nevent: log\ndata: {"n": 3}\n\n'),
    ]
    told = messages(connection, "r", 5)
    seen = [next(told) for _ in range(5)]
    told.close()
    assert [(each.kind, each.data.get("n")) for each in seen] == [
        ("log", 1),
        ("log", 2),
        ("away", None),
        ("quiet", None),
        ("log", 3),
    ]
    assert [each.headers.get("Last-Event-ID") for each in script.asked] == [None, "b", "b", "b", "b"]


def test_files_go_on_behind_what_has_come(script, connection):
    part = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\nabc"
    script.answers = [part, part + b"def"]
    assert b"".join(connection.pieces("/f", {})) == b"abcdef"
    script.answers = [part]
    with pytest.raises((ServerUnreachableError, http.client.HTTPException)):
        list(connection.pieces("/logs", {}, is_same=False))


def test_what_is_no_server_or_token_is_refused():
    for url in ("example.org", "ftp://example.org", "https://"):
        with pytest.raises(UsageError, match="no URL of a server"):
            RestConnection(url)
    with pytest.raises(UsageError, match="characters that no token has"):
        RestConnection("https://example.org", "tm_x\r\nHost: other")
