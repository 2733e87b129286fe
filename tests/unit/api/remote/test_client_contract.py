"""Both clients keep one contract: the one of a home, and the one of a server of that home over TCP."""

from __future__ import annotations

import os
import threading

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
import uvicorn

from trainmaster.api.remote.connection import Connection
from trainmaster.api.remote.remote import RemoteClient
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.service import Service
from trainmaster.testing.client_contract import ClientContract
from trainmaster.testing.waits import until


class TestEmbedded(ClientContract):
    @pytest.fixture
    def client(self, at_home):
        return at_home


class TestRemote(ClientContract):
    @pytest.fixture
    def client(self, home, at_home):
        service = Service(home)
        state = make_state(service, {**os.environ, "TRAINMASTER_HOME": str(home.root)})
        token = state.access.create_token("t", ["read", "run"])["token"]
        config = uvicorn.Config(make_app(state), port=0, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        until(lambda: server.started, "the server listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        client = RemoteClient(Connection(f"http://127.0.0.1:{port}", token))
        yield client
        client.close()
        server.should_exit = True
        state.hubs.end()
        thread.join(60)
        service.close()
