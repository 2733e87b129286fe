"""`AppProxy`: an origin of its own for apps and services; requests and websockets go through as bytes.

Not an ASGI server with an HTTP client: these take websockets apart and put them together again, with limits
of their own, and need more CPU than `h11` and two streams do (benchmarks/apps.py).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import TYPE_CHECKING, Final

import h11

from trainmaster.api.proxy.connection import FIRST_S, BrowserConnection
from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.services import ServiceProxy
from trainmaster.api.proxy.upstream import PIECE_BYTES
from trainmaster.api.server_names import ServerNames

if TYPE_CHECKING:
    import ssl

#: After so long an app that does not answer is given up.
ANSWER_S: Final = 300.0
MOST_CONNECTIONS: Final = 1000
#: From one address, of those that were let in nowhere yet: they do not take the places of others.
MOST_STRANGERS: Final = 200
#: What is under way at the end is given so long.
_END_S: Final = 2.0

log = logging.getLogger(__name__)


class AppProxy:
    """One listener.

    Args:
        grants: who may use which app; None if there are none.
        services: the way to services; None if there are none.
        answer_s: an app that does not answer is given up after so long.
        hosts: names of the listener.
    """

    def __init__(
        self,
        grants: Grants | None,
        services: ServiceProxy | None = None,
        *,
        answer_s: float = ANSWER_S,
        hosts: ServerNames | None = None,
    ) -> None:
        self._grants, self._services, self._answer_s = grants, services, answer_s
        self._hosts = hosts or ServerNames()
        self._connections: dict[asyncio.Task[None], BrowserConnection] = {}
        self._server: asyncio.Server | None = None
        self._watches: list[asyncio.Task[None]] = []

    async def start(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Take connections from now on."""
        self._server = await asyncio.start_server(
            self._connected,
            sock=listener,
            ssl=tls,
            ssl_handshake_timeout=FIRST_S if tls else None,
            limit=PIECE_BYTES,
        )
        if self._grants is not None:
            self._watches.append(asyncio.create_task(self._grants.watch()))
        if self._services is not None:
            self._watches += map(asyncio.create_task, (self._services.watch(), self._services.tell()))

    async def stop(self) -> None:
        """Take no more, and end what is open."""
        if self._server is not None:
            self._server.close()
        tasks = [*self._connections, *self._watches]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)
        if self._services is not None:
            self._services.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = BrowserConnection(
            self._grants, self._services, self._hosts, reader, writer, self._answer_s
        )
        if self._is_full(connection.address):
            writer.transport.abort()
            return
        self._connections[task] = connection
        # asyncio does so itself only for sockets that it has opened. What is small waits for nothing.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await connection.serve()
        except asyncio.CancelledError:  # its rights have ended, or the server does
            writer.transport.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            writer.transport.abort()  # the browser or the app is gone: half an answer must not look whole
        except Exception:
            writer.transport.abort()
            log.exception("a connection to an app was ended by a mistake of ours")
        finally:
            del self._connections[task]
            writer.close()

    def _is_full(self, address: str) -> bool:
        if len(self._connections) >= MOST_CONNECTIONS:
            return True
        others = self._connections.values()
        return sum(each.address == address and not each.is_known for each in others) >= MOST_STRANGERS


def listen_in_thread(proxy: AppProxy, port: int = 0) -> int:
    """Take connections from this machine as long as this process lives; the port.

    Raises:
        OSError: it is taken.
    """
    listener = socket.create_server(("127.0.0.1", port))

    async def serve() -> None:
        await proxy.start(listener)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name="proxy", daemon=True).start()
    return int(listener.getsockname()[1])
