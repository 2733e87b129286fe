"""A server with a certificate of its own: it is shown, agreed to, pinned; others are refused."""

from __future__ import annotations

import http.client
import stat
import threading
import warnings

import pytest

from command_line import invoke

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn

from trainmaster.api import Client
from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.remote.contexts import Contexts, certificate
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.cli import opening
from trainmaster.control.task.layout import Home
from trainmaster.service import Service
from trainmaster.service.self_signed import self_signed
from trainmaster.spec.errors import AccessError, UsageError
from trainmaster.testing.waits import until


@pytest.fixture
def state(tmp_path):
    root = tmp_path / "home"
    root.mkdir()
    service = Service(Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 't.db'}"))
    yield make_state(service, {}, is_secure=True)
    service.close()


@pytest.fixture
def served(state, tmp_path, monkeypatch):
    """URL, fingerprint and a token of a server with TLS; contexts are kept in a place of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(opening, "_is_local", False)
    root = tmp_path / "home"
    token = state.access.create_token("ann", ["read", "run"])["token"]
    pem, fingerprint = self_signed(root, "127.0.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = uvicorn.Config(
            make_app(state), port=0, log_level="critical", ssl_certfile=pem, ssl_keyfile=pem, lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started, "the server listens")
    yield f"https://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", fingerprint, token
    server.should_exit = True
    thread.join(60)


def test_a_certificate_is_made_once_and_for_its_owner_only(tmp_path):
    pem, fingerprint = self_signed(tmp_path, "train.example.org")
    assert self_signed(tmp_path, "other") == (pem, fingerprint)
    assert stat.S_IMODE(pem.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["server.pem"]
    pem.unlink()
    assert self_signed(tmp_path, "::1")[1] != fingerprint


def test_who_agrees_is_logged_in_and_talks_to_that_certificate_only(served):
    url, fingerprint, token = served
    seen = certificate(url)
    assert (seen.fingerprint, seen.is_trusted, certificate("http://x")) == (fingerprint, False, None)
    with pytest.raises(UsageError, match="another certificate"):
        invoke("login", url, "--token", "-", "--fingerprint", "ab" * 32, typed=token)
    done = invoke("login", url, "--token", "-", "--fingerprint", fingerprint, typed=token)
    assert (done.exit_code, f"logged in to {url} as ann" in done.stderr) == (0, True)
    assert Contexts().current().fingerprint == fingerprint
    assert invoke("status", "--json").stdout == '{"runs": []}\n'
    client = Client(url)
    assert client.runs() == []
    client.close()


def test_a_login_that_takes_the_place_of_another_ones_says_so(served, state):
    url, fingerprint, token = served
    login = ("login", url, "--token", "-", "--fingerprint", fingerprint)
    assert "forgotten" not in invoke(*login, typed=token).stderr
    assert "forgotten" not in invoke(*login, typed=token).stderr, "she is the same"
    other = state.access.create_token("bob", ["read"])["token"]
    words = f"the login as ann at {url}, which was called 127.0.0.1, is forgotten; `--name NAME` keeps both"
    assert words in invoke(*login, typed=other).stderr
    assert "forgotten" not in invoke(*login, "--name", "mine", typed=token).stderr
    assert [each.name for each in Contexts().all()[0]] == ["127.0.0.1", "mine"]
    assert Contexts().of_url(url).token == token, "the one in use, of several there"


def test_another_certificate_than_agreed_to_is_refused(served):
    url, fingerprint, token = served
    changed = RestConnection(url, token, "cd" * 32)
    with pytest.raises(AccessError, match=f"another certificate than when you logged in: {fingerprint}"):
        changed.get("/info")
    unpinned = RestConnection(url, token, sleep=lambda _: None)
    with pytest.raises(AccessError, match=r"not trusted(.|\n)*login"):
        unpinned.get("/info")


def test_a_socket_that_is_opened_again_has_its_certificate_checked_again(served):
    url, fingerprint, token = served
    connection = RestConnection(url, token, fingerprint)
    connection.get("/info")
    (socket,) = connection._sockets.values()
    socket.close()
    with pytest.raises(http.client.NotConnected):
        socket.request("GET", "/api/v1/info")
    connection.get("/info")
    next(iter(connection._sockets.values())).close()
    connection._fingerprint = "cd" * 32
    with pytest.raises(AccessError, match="another certificate"):
        connection.get("/info")
    connection.close()
