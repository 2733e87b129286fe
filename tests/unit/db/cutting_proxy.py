"""`CuttingProxy`: between a store and PostgreSQL, it cuts connections where it hurts."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
from pathlib import Path


class CuttingProxy:
    """Forwards a Unix socket, and now and then cuts a connection.

    Args:
        upstream: socket of the server.
        directory: where its own socket is made.
        seed: of the cuts.
        chance: of a cut at each message of the client.

    Attributes:
        cuts: how often it cut before a message was forwarded, after it, and after its answer came.
        calm: True to cut no more.
    """

    def __init__(self, upstream: Path, directory: Path, seed: int, chance: float) -> None:
        self.directory = directory
        self.cuts = {"before": 0, "after": 0, "answered": 0}
        self.calm = False
        self._upstream = upstream
        self._random = random.Random(seed)
        self._chance = chance
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, selectors.DefaultSelector() as selector, contextlib.suppress(OSError):
            server.connect(str(self._upstream))
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    data = key.fileobj.recv(65536)
                    if not data or not self._forward(data, key.fileobj is client, key.data):
                        return

    def _forward(self, data: bytes, to_server: bool, peer: socket.socket) -> bool:
        # An answer that is lost after COMMIT is what must not do things twice: it gets its share.
        chance = self._chance * (4 if b"COMMIT" in data else 1)
        if not to_server or self.calm or self._random.random() > chance:
            peer.sendall(data)
            return True
        where = self._random.choice(list(self.cuts))
        self.cuts[where] += 1
        if where != "before":
            peer.sendall(data)
        if where == "answered":
            peer.settimeout(0.2)  # not every message has an answer of its own
            peer.recv(65536)
        return False
