"""Both clients keep one contract: the one of a home, and the one of a server of that home over TCP."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn

from trainmaster.api.administration import HomeAdministration
from trainmaster.api.remote.administration import RemoteAdministration
from trainmaster.api.remote.connection import Connection
from trainmaster.api.remote.remote import RemoteClient
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.control.layout import Home
from trainmaster.service import Service
from trainmaster.testing.administration_contract import AdministrationContract
from trainmaster.testing.client_contract import ClientContract
from trainmaster.testing.waits import until


class TestEmbedded(ClientContract):
    @pytest.fixture
    def client(self, at_home):
        return at_home


@contextmanager
def serving(home, scopes):
    """A connection to a server of a home."""
    service = Service(home)
    state = make_state(service, {**os.environ, "TRAINMASTER_HOME": str(home.root)})
    token = state.access.create_token("t", scopes)["token"]
    config = uvicorn.Config(make_app(state), port=0, log_level="warning", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the server listens")
    port = server.servers[0].sockets[0].getsockname()[1]
    connection = Connection(f"http://127.0.0.1:{port}", token)
    try:
        yield connection
    finally:
        connection.close()
        server.should_exit = True
        state.hubs.end()
        thread.join(60)
        service.close()


class TestRemote(ClientContract):
    @pytest.fixture
    def client(self, home, at_home):
        with serving(home, ["read", "run"]) as connection:
            yield RemoteClient(connection)


class TestHomeAdministration(AdministrationContract):
    @pytest.fixture
    def at_home(self, tmp_path):
        home = Home(tmp_path, tmp_path / "cache", f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/t.db")
        service = Service(home)
        yield HomeAdministration(service)
        service.close()

    @pytest.fixture
    def administration(self, at_home):
        return at_home


class TestRemoteAdministration(TestHomeAdministration):
    @pytest.fixture
    def administration(self, at_home):
        with serving(at_home._service.home, ["admin"]) as connection:
            yield RemoteAdministration(connection)
