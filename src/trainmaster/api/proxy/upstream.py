"""`Upstream`: a connection to an app or a replica."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import h11

from trainmaster.api.proxy.admissions import RequestRefusedError
from trainmaster.api.proxy.headers import UpstreamTarget
from trainmaster.dataclass import dataclass, field

PIECE_BYTES: Final = 64 << 10
#: Of a request or an answer, all headers together.
_MOST_HEADERS_BYTES: Final = 64 << 10


class UpstreamUnreachableError(RequestRefusedError):
    """No connection: nothing was sent."""


class BrokenOffError(RequestRefusedError):
    """The connection has ended before an answer: the process that was asked may have begun to do it."""


@dataclass(slots=True)
class Upstream:
    """A connection to an app or a replica, kept for the next request."""

    target: UpstreamTarget
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    used: bool = False
    used_at: float = field(default_factory=time.monotonic)

    @classmethod
    async def open(cls, target: UpstreamTarget) -> Upstream:
        """Connect.

        Raises:
            UnreachableError: nothing listens there.
        """
        try:
            async with asyncio.timeout(target.connect_s):
                if target.connect is not None:
                    reader, writer = await target.connect()
                else:
                    reader, writer = await asyncio.open_connection(
                        "127.0.0.1", target.port, limit=PIECE_BYTES
                    )
        except (OSError, TimeoutError) as error:
            # What leads to a member says why it cannot; errors of sockets say nothing to users.
            why = str(error) if target.connect is not None and isinstance(error, ConnectionError) else ""
            text = why or "The app does not answer.\nIt may have ended: open it again."
            raise UpstreamUnreachableError(502, text) from None
        return cls(target, reader, writer, http_of(h11.CLIENT))

    @property
    def is_idle(self) -> bool:
        """Whether it takes another request."""
        return self.http.our_state is h11.IDLE and not self.reader.at_eof()


def http_of(role: type[h11.CLIENT] | type[h11.SERVER]) -> h11.Connection:
    """One end of a connection."""
    return h11.Connection(role, max_incomplete_event_size=_MOST_HEADERS_BYTES)


async def next_event(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    """What comes next.

    Raises:
        ConnectionResetError: a second request before the first one was answered.
    """
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(PIECE_BYTES))
        elif event is h11.PAUSED:
            raise ConnectionResetError("more than one request at a time")
        else:
            assert not isinstance(event, type)
            return event
