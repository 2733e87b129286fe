"""A port of this machine that leads elsewhere goes on when connections cannot be taken for a while."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from trainmaster.api.port_forward import PortForward
from trainmaster.transport import forwarding
from trainmaster.transport.forwarding import SocketStream


class Scarce(socket.socket):
    """A listener that lacks descriptors at first."""

    lacks = 3

    def accept(self) -> Any:
        if self.lacks:
            self.lacks -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_too_many_open_files_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(address: tuple[str, int], **_: object) -> Scarce:
        listener = Scarce()
        listener.bind(address)
        listener.listen()
        return listener

    told: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as there:
        monkeypatch.setattr(socket, "create_server", listen)
        monkeypatch.setattr(forwarding, "_PAUSE_S", 0.0)
        address = there.getsockname()
        opened = lambda: SocketStream(socket.create_connection(address))  # noqa: E731
        with (
            PortForward(opened, 0, told.append) as forward,
            socket.create_connection(("127.0.0.1", forward.port), timeout=60) as near,
        ):
            there.accept()[0].close()  # the first one only tries
            far = there.accept()[0]
            far.sendall(b"here")
            assert near.recv(4) == b"here"
            far.close()
    assert told == ["a connection could not be taken: [Errno 24] Too many open files"] * 3
