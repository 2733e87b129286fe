"""The gateway's end of a driver's connection: what it asks for, and what it has to be told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from trainmaster.executors.wire import Splitter, WireError, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster.executors.wire import Message

_READ_BYTES = 1 << 20
#: A driver that has not taken so much yet gets no more of members' files for now.
_FULL_BYTES = 4 << 20
_NEWS_PER_FRAME = 512
_OUTPUT_PAUSE_S = 0.05


class GatewayClient:
    """One connection; what changed is a set of attempts, so that a slow driver costs no memory.

    Attributes:
        run: on whose behalf it came; empty until it said so.
        token: of its lease of the run; 0 if it has none.
        env: base of its members' environment; lives here and nowhere else.
        watches: wants to know which members have written something.
        waits: why attempts of its run have no place, as it was told last.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.run = ""
        self.token = 0
        self.env: dict[str, str] = {}
        self.watches = False
        self.waits: dict[str, str] = {}
        self._reader = reader
        self._writer = writer
        self._changed: dict[str, None] = {}
        self._grew: dict[tuple[str, str], None] = {}
        self._grew_at = 0.0
        self._wanted = asyncio.Event()

    @property
    def full(self) -> bool:
        """It does not keep up."""
        return self._writer.transport.get_write_buffer_size() > _FULL_BYTES

    def send(self, message: Message) -> None:
        """As soon as it takes it."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def changed(self, attempt: str) -> None:
        """Tell it the status of an attempt."""
        self._changed[attempt] = None
        self._wanted.set()

    def grew(self, attempt: str, member: str) -> None:
        """Tell it, if it watches, that a member has written something."""
        if self.watches:
            self._grew[attempt, member] = None
            self._wanted.set()

    async def listen(
        self, handle: Callable[[GatewayClient, Message], None], note: Callable[[str], None]
    ) -> None:
        """Handle what it sends until it hangs up."""
        splitter = Splitter()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for message in splitter.feed(data):
                    if self._writer.is_closing():
                        return  # it was hung up on: what else it has said counts no more
                    handle(self, message)
        except OSError:
            pass
        except (WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            note(f"hung up on a driver of {self.run or 'no run'}: {error!r}")
        finally:
            self._writer.close()

    async def tell(self, row: Callable[[str], tuple[list[Any], dict[str, str]]]) -> None:
        """Write news as fast as it takes them, until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
            while self._changed:
                attempts = list(self._changed)[:_NEWS_PER_FRAME]
                for attempt in attempts:
                    del self._changed[attempt]
                self.send_rows("news", [row(attempt) for attempt in attempts])
                with contextlib.suppress(ConnectionError):
                    await self._writer.drain()
            if self._grew:
                wait_s = self._grew_at + _OUTPUT_PAUSE_S - clock()
                if wait_s > 0:
                    asyncio.get_running_loop().call_later(wait_s, self._wanted.set)
                    continue
                self.send({"output": list(self._grew)})
                self._grew.clear()
                self._grew_at = clock()

    def send_rows(self, key: str, rows: list[tuple[list[Any], dict[str, str]]], **more: object) -> None:
        """Statuses, and before them the addresses of members that have some."""
        addresses = {row[0]: found for row, found in rows if found}
        if addresses:
            self.send({"addresses": addresses})
        self.send({key: [row for row, _ in rows], **more})

    def close(self) -> None:
        """Hang up."""
        self._writer.close()
