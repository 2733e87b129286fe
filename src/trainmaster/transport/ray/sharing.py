"""Processes of one home share a connection to a Ray: a run listens for lines of JSON at a socket file.

To start a proxy of its own takes a process seconds, and many on a busy head.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from trainmaster.spec.errors import ProviderError, TrainmasterError
from trainmaster.transport.base import ConnectionLostError

#: Longer paths no socket file may have.
_MOST_BYTES: Final = 100
_CONNECT_S: Final = 2.0
READY: Final = b'{"ready": true}\n'


def shared_connection(file: Path) -> socket.socket | None:
    """A connection through a run that listens at the socket file; None if none does."""
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(_CONNECT_S)
    try:
        line.connect(os.fspath(file))
    except OSError:  # none, or its path is too long
        line.close()
        return None
    line.settimeout(None)
    return line


class ProxySocket:
    """A socket file through which other processes of this user ask Ray, from `offer` until it is closed.

    Args:
        file: the socket file; in a directory of its own, which others cannot enter.
        begin: asks Ray.
    """

    def __init__(self, file: Path, begin: Callable[..., concurrent.futures.Future[Any]]) -> None:
        self._file, self._begin = file, begin
        self._server = socket.socket(socket.AF_UNIX)
        self._open = set[socket.socket]()
        self._inode = 0

    def offer(self) -> None:
        """Be found at the file, unless another run answers there."""
        if self._is_found or len(os.fsencode(self._file)) > _MOST_BYTES:
            return
        if (other := shared_connection(self._file)) is not None:
            other.close()
            return
        self._end_server()
        self._server = socket.socket(socket.AF_UNIX)
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            self._file.unlink(missing_ok=True)
            self._server.bind(os.fspath(self._file))
            self._inode = self._file.stat().st_ino
            self._server.listen(64)
        except OSError:  # a file system without socket files: others have a connection of their own
            return
        threading.Thread(
            target=self._accept, args=(self._server,), name="ray proxy socket", daemon=True
        ).start()

    def close(self) -> None:
        """Stop to listen, and end connections that are open."""
        with contextlib.suppress(OSError):
            if self._is_found:
                self._file.unlink()
        self._end_server()
        for client in list(self._open):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    @property
    def _is_found(self) -> bool:
        """Whether the file is ours: another run may listen there, or somebody has removed it."""
        try:
            return self._file.stat().st_ino == self._inode
        except OSError:
            return False

    def _end_server(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                self._open.add(client)
                threading.Thread(
                    target=self._serve, args=(client,), name="ray proxy client", daemon=True
                ).start()

    def _serve(self, client: socket.socket) -> None:
        said = queue.SimpleQueue[bytes]()
        # Who does not listen keeps nobody but itself waiting.
        threading.Thread(target=_send, args=(client, said), name="ray proxy client", daemon=True).start()

        def answer(number: int, answered: concurrent.futures.Future[Any]) -> None:
            said.put(json.dumps({"id": number, **_told(answered)}).encode() + b"\n")

        told = (OSError, ValueError, TrainmasterError)
        with contextlib.suppress(*told), client, client.makefile("rb") as heard:
            self._begin("versions")  # who cannot ask through us dials, and hears the error itself
            said.put(READY)
            for line in heard:
                asked = json.loads(line)
                self._ask(asked["do"], asked["args"]).add_done_callback(partial(answer, asked["id"]))
        self._open.discard(client)
        said.put(b"")

    def _ask(self, do: str, args: list[Any]) -> concurrent.futures.Future[Any]:
        try:
            return self._begin(do, *args)
        except ProviderError as error:
            refused = concurrent.futures.Future[Any]()
            refused.set_exception(error)
            return refused


def _send(client: socket.socket, said: queue.SimpleQueue[bytes]) -> None:
    with contextlib.suppress(OSError):
        while line := said.get():
            client.sendall(line)


def _told(answered: concurrent.futures.Future[Any]) -> dict[str, Any]:
    """An answer, as the program that speaks with Ray writes it."""
    try:
        return {"result": answered.result()}
    except ConnectionLostError as error:
        return {"lost": Exception.__str__(error)}
    except TrainmasterError as error:
        return {"error": Exception.__str__(error).removeprefix("Ray: ")}
    except Exception as error:  # noqa: BLE001 - else nobody answers
        return {"error": f"{type(error).__name__}: {error}"}
