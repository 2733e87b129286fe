"""Whose command is cut off is told why: a right that has ended, or a server that is away."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

pytest.importorskip("websockets", reason="the extra `tunnel` is not installed")

from websockets.sync.server import ServerConnection, serve

from trainmaster.api.remote.connection import RestConnection, ServerUnreachableError
from trainmaster.api.remote.tunnels import execute
from trainmaster.spec.errors import AccessError, TrainmasterError


@contextmanager
def server(cut: Callable[[ServerConnection], None]) -> Iterator[tuple[str, int]]:
    """Its address: it lets in, says something, and then cuts off."""

    def answer(websocket: ServerConnection) -> None:
        websocket.send(b"\x01said before")
        cut(websocket)

    with serve(answer, "127.0.0.1", 0) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.socket.getsockname()
        serving.shutdown()
        thread.join()


class There:
    """What is asked of a connection."""

    host, url = "there", "http://there"

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def raw_socket(self, path: str, _: object) -> tuple[socket.socket, str, dict[str, str]]:
        return socket.create_connection(self._address), path, {}


@pytest.mark.parametrize(
    ("cut", "kind", "said"),
    [
        (
            lambda it: it.close(1008, "you may not use this run any more"),
            AccessError,
            "use this run any more\n.*trainmaster login http://there",
        ),
        (lambda it: it.close(1001), ServerUnreachableError, "how that ended is unknown\nIs the server up"),
        (
            lambda it: it.socket.shutdown(socket.SHUT_RDWR),
            ServerUnreachableError,
            "http://there was cut off before the command had ended",
        ),
    ],
)
def test_it_says_why_and_exits_as_ssh_does(
    cut: Callable[[ServerConnection], None], kind: type[TrainmasterError], said: str
) -> None:
    read, write = os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    files: Any = (nothing, write, write)
    with server(cut) as address, pytest.raises(kind, match=said) as raised:
        execute(cast("RestConnection", There(address)), "r", None, ["x"], files, print, is_terminal=False)
    assert raised.value.exit_code == 255, "no code of the command's own"
    assert os.read(read, 100) == b"said before"
    for descriptor in (read, write, nothing):
        os.close(descriptor)
