"""Who may not use a run any more is told so, not that the server is away."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

pytest.importorskip("websockets", reason="the extra `tunnel` is not installed")

from websockets.sync.server import ServerConnection, serve

from trainmaster.api.remote.connection import RestConnection
from trainmaster.api.remote.tunnels import execute
from trainmaster.spec.errors import AccessError


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Of a server that lets in and then cuts off."""

    def cut(websocket: ServerConnection) -> None:
        websocket.send(b"\x01said before")
        websocket.close(1008, "you may not use this run any more")

    with serve(cut, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()
        server.shutdown()
        thread.join()


class There:
    """What is asked of a connection."""

    host, url = "there", "http://there"

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def raw_socket(self, path: str, _: object) -> tuple[socket.socket, str, dict[str, str]]:
        return socket.create_connection(self._address), path, {}


def test_it_says_why_and_what_to_do(address: tuple[str, int]) -> None:
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    files: Any = (nothing, write, write)
    with pytest.raises(AccessError, match="you may not use this run any more") as raised:
        execute(cast("RestConnection", There(address)), "r", None, ["x"], files, print, is_terminal=False)
    assert "trainmaster login http://there" in raised.value.hint
    assert os.read(read, 100) == b"said before"
    for descriptor in (read, write, nothing):
        os.close(descriptor)
