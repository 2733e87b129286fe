"""`TimedProtocol`: uvicorn's HTTP, but whoever sends no request takes no place for long."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: The head of a request has come after so long, or the connection is closed within twice that.
HEAD_S: Final = 10.0


class TimedProtocol(H11Protocol):
    """One connection.

    uvicorn waits for ever for the rest of a head: each such connection is an open file, and costs its sender
    a byte.
    """

    #: What went on at the last look; the request before if none did.
    _before: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at it from now on."""
        super().connection_made(transport)
        self.loop.call_later(HEAD_S, self._look)

    def _look(self) -> None:
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # it is over, or a websocket
        is_waiting = self.cycle is None or self.cycle.response_complete
        if is_waiting and self._before is self.cycle:
            self.transport.abort()
            return
        self._before = self.cycle if is_waiting else self
        self.loop.call_later(HEAD_S, self._look)
