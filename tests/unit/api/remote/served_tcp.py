"""A server of a home over TCP, in this process."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

import uvicorn

from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.rest.app import make_app, make_state
from trainmaster.service import Service
from trainmaster.testing.waits import until


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
    connection = RestConnection(f"http://127.0.0.1:{port}", token)
    try:
        yield connection
    finally:
        connection.close()
        server.should_exit = True
        state.hubs.end()
        thread.join(60)
        service.close()
