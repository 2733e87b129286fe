"""A large code of this machine is sent to a server in pieces, over TCP; what breaks off goes on."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
from served_tcp import serving

from trainmaster.api.remote import uploads
from trainmaster.api.remote.connection import ServerUnreachableError
from trainmaster.api.remote.remote import RemoteClient
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.spec import Recipe
from trainmaster.spec.errors import AccessError

MIB = 1 << 20


@pytest.fixture
def server(home):
    with serving(home, ["read", "run"]) as connection:
        connection.sleep = lambda _: None
        yield connection


@pytest.fixture
def code(tmp_path):
    place = tmp_path / "code"
    (place / "deep" / "empty").mkdir(parents=True)
    (place / "train.py").write_text("print(1)\n")
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "run.sh").chmod(0o755)
    (place / "deep" / "ü.bin").write_bytes(os.urandom(3 * MIB))
    (place / "link.bin").symlink_to("deep/ü.bin")
    return place


def counted(server, monkeypatch, fails=lambda number: None):
    """How many bytes of code were sent with each request."""
    ask, sent = server.ask, []

    def watched(method, path, query, body=None, **more):
        if method in ("PATCH", "PUT"):
            sent.append(len(body) if isinstance(body, bytes) else body.seek(0, 2))
            if error := fails(len(sent)):
                raise error
        return ask(method, path, query, body, **more)

    monkeypatch.setattr(server, "ask", watched)
    return sent


def test_code_goes_on_where_it_broke_off_and_is_sent_once(server, code, monkeypatch):
    client = RemoteClient(server)
    with monkeypatch.context() as patched:
        killed = counted(server, patched, {3: KeyboardInterrupt()}.get)
        with pytest.raises(KeyboardInterrupt):
            client.first_recipe(code)
    assert killed == [MIB] * 3
    sent = counted(server, monkeypatch)
    assert "train.py" in client.first_recipe(code)["recipe"]
    assert len(sent) == 5, "two of seven pieces were there: a link is what it leads to"
    assert server.get("/uploads")["uploads"] == []
    sent.clear()
    client.first_recipe(code)
    assert sent == [], "what the server has made of it has the same name"
    (code / "deep" / "ü.bin").unlink()
    (code / "link.bin").unlink()
    client.first_recipe(code)
    assert len(sent) == 1, "little is sent at once"


def test_a_token_that_ends_in_the_middle_is_told_as_that(server, code, monkeypatch):
    def ended(number):
        if number == 3:
            server._token = "tm_over"
            return AccessError("what you may do here has changed meanwhile", "Ask again.")
        return None

    counted(server, monkeypatch, ended)
    with pytest.raises(AccessError, match="the token is not known"):
        RemoteClient(server).first_recipe(code)


def test_it_is_told_how_far_code_is_and_when_the_server_is_away(server, code, monkeypatch):
    times = itertools.count(0.0, 2.0)
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: next(times)))
    away = ServerUnreachableError("the server does not answer", "")
    counted(server, monkeypatch, {6: away}.get)
    recipe = Recipe.from_text("experiments: {main: {command: 'exit 1'}}", directory=code)
    told = RemoteClient(server).quote_recipe(recipe, QuoteOptions(measures=False))
    assert list(itertools.islice(told, 3)) == [
        "code: 1.0 MB of 6.3 MB sent, about 20 s left",
        "the server does not answer; trying again in 1 s",
        "code: 5.2 MB of 6.3 MB were sent before",
    ]
