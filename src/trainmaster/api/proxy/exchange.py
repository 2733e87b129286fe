"""`ProxyExchange`: a request carried to an app or a replica, its answer back; then perhaps a websocket."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Final

import h11

from trainmaster.api.proxy.admissions import RequestRefusedError
from trainmaster.api.proxy.headers import UpstreamTarget, header, to_browser
from trainmaster.api.proxy.upstream import PIECE_BYTES, BrokenOffError, Upstream, http_of, next_event
from trainmaster.transport.remote_command import until_first

#: A client may be silent for so long.
IDLE_S: Final = 75.0
#: Whether a browser is still there is looked at only when an answer takes longer.
_SOON_S: Final = 1.0
#: Opcode of a pong with the bit that says that it is whole: what a page says by itself.
_PONG: Final = 0x8A
#: Methods that may be sent twice.
READS: Final = (b"GET", b"HEAD", b"OPTIONS")


class BrowserGoneError(Exception):
    """The browser has closed its connection."""


class ProxyExchange:
    """One connection of a browser, and what it is led to.

    Args:
        reader: from the browser.
        writer: to the browser.
        answer_s: a server that does not answer for so long is given up.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_s: float) -> None:
        self._reader, self._writer, self._answer_s = reader, writer, answer_s
        self._http = http_of(h11.SERVER)
        self._upstream: Upstream | None = None
        self._most_body_bytes: float = math.inf
        self._body_bytes = 0
        self._status = 0  # of the last answer
        self._used: Callable[[UpstreamTarget], None] = lambda _: None

    async def _exchange(
        self,
        passed: h11.Request,
        request: h11.Request,
        target: UpstreamTarget,
        origin: str,
        *,
        is_socket: bool,
    ) -> bool:
        upstream = self._upstream
        if upstream is None or upstream.target != target or not upstream.is_idle:
            self._drop_upstream()
            upstream = self._upstream = await Upstream.open(target)
        body: asyncio.Task[None] | None = None
        try:
            upstream.writer.write(upstream.http.send(passed) or b"")
            answer = await self._answered_soon(upstream)
            if answer is None:
                body = asyncio.create_task(self._send_body(upstream))
                answer = await self._head_of_answer(upstream, body)
        except TimeoutError:
            raise RequestRefusedError(504, "The app does not answer in time.") from None
        except (OSError, h11.RemoteProtocolError):
            if body is not None:
                body.cancel()
            self._drop_upstream()
            if upstream.used and request.method in READS and self._is_without_body:
                # It was about to close what it had kept open: this was never looked at.
                return await self._exchange(passed, request, target, origin, is_socket=is_socket)
            raise BrokenOffError(502, "The app has broken off.\nIt may have ended: open it again.") from None
        except BaseException:
            if body is not None:
                body.cancel()
            raise
        upstream.used = True
        try:
            if isinstance(answer, h11.InformationalResponse):
                if not is_socket or header(answer.headers, b"upgrade").lower() != "websocket":
                    raise RequestRefusedError(502, "The app has switched to another protocol.")
                await self._go_on_as_socket(upstream, answer, target, origin)
                return True
            await self._pass_on(upstream, answer, target, origin)
            # One that has answered before it had read all does not get the rest.
            return body is not None and not body.done()
        finally:
            if body is not None:
                body.cancel()

    async def _answered_soon(self, upstream: Upstream) -> h11.Response | h11.InformationalResponse | None:
        """The first of the answer to a request that has come whole, as most do; None if it takes longer.

        Nothing looks meanwhile whether the browser is still there: that needs tasks, and these need CPU.
        """
        while self._http.their_state is h11.SEND_BODY:  # else this is the second try
            event = self._http.next_event()
            if isinstance(event, h11.Data):
                upstream.writer.write(upstream.http.send(self._counted(event)) or b"")
            elif not isinstance(event, h11.EndOfMessage):
                return None
        upstream.writer.write(upstream.http.send(h11.EndOfMessage()) or b"")
        try:
            async with asyncio.timeout(min(_SOON_S, self._answer_s)):
                return await _head(upstream)
        except TimeoutError:
            return None

    async def _send_body(self, upstream: Upstream) -> None:
        """What comes with a request, as it comes."""
        if upstream.http.our_state is not h11.SEND_BODY:
            return
        if self._http.they_are_waiting_for_100_continue:
            await send(self._http, self._writer, h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            async with asyncio.timeout(IDLE_S):
                event = await next_event(self._http, self._reader)
            if isinstance(event, h11.Data):
                await send(upstream.http, upstream.writer, self._counted(event))
            elif isinstance(event, h11.EndOfMessage):
                await send(upstream.http, upstream.writer, h11.EndOfMessage())
                return
            else:
                raise BrowserGoneError

    @property
    def _is_without_body(self) -> bool:
        return self._http.their_state is h11.DONE and not self._body_bytes

    def _counted(self, event: h11.Data) -> h11.Data:
        """Refuse a body that is longer than it may be, whatever it says of itself."""
        self._body_bytes += len(event.data)
        if self._body_bytes > self._most_body_bytes:
            raise RequestRefusedError(413, f"the body has more than {self._most_body_bytes} bytes")
        return h11.Data(data=event.data)

    async def _head_of_answer(
        self, upstream: Upstream, body: asyncio.Task[None]
    ) -> h11.Response | h11.InformationalResponse:
        """The first of an answer; given up when the browser is gone."""
        answer = asyncio.create_task(_head(upstream))
        try:
            await asyncio.wait({answer, body}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() and body.exception() is not None:
                await body
            async with asyncio.timeout(self._answer_s):  # it has all that it needs
                await self._listened(answer)
            return await answer
        finally:
            answer.cancel()

    async def _listened(self, answer: asyncio.Task[h11.Response | h11.InformationalResponse]) -> None:
        """Wait for an answer, and see whether the browser goes meanwhile."""
        while not answer.done():
            data = asyncio.create_task(self._reader.read(PIECE_BYTES))
            try:
                await asyncio.wait({answer, data}, return_when=asyncio.FIRST_COMPLETED)
                if data.done():
                    if not data.result():
                        raise BrowserGoneError
                    self._http.receive_data(data.result())  # of the next request
                    await asyncio.wait({answer})
            finally:
                if not data.done():
                    data.cancel()
                    with suppress(asyncio.CancelledError):
                        await data

    async def _pass_on(
        self, upstream: Upstream, answer: h11.Response, target: UpstreamTarget, origin: str
    ) -> None:
        headers, outside = to_browser(list(answer.headers), target, origin)
        if outside:
            self._drop_upstream()
            raise RequestRefusedError(
                502, f"The app sends you to another place, {outside}\nOpen that yourself if you trust it."
            )
        self._status = answer.status_code
        head = h11.Response(status_code=answer.status_code, headers=[*headers, *target.answers])
        out = [self._http.send(head) or b""]  # with what has come with it: one write, one packet
        while True:
            event = upstream.http.next_event()
            if event is h11.NEED_DATA:
                self._writer.write(b"".join(out))
                await self._writer.drain()
                out.clear()
                upstream.http.receive_data(await upstream.reader.read(PIECE_BYTES))
            elif isinstance(event, h11.Data):
                out.append(self._http.send(h11.Data(data=event.data)) or b"")
            elif isinstance(event, h11.EndOfMessage):
                out.append(self._http.send(h11.EndOfMessage()) or b"")
                break
            else:
                raise ConnectionResetError("the app is gone")
        self._writer.write(b"".join(out))
        await self._writer.drain()
        if upstream.http.our_state is h11.DONE and upstream.http.their_state is h11.DONE:
            upstream.http.start_next_cycle()
        else:
            self._drop_upstream()

    async def _go_on_as_socket(
        self, upstream: Upstream, answer: h11.InformationalResponse, target: UpstreamTarget, origin: str
    ) -> None:
        """Both directions, as they are: with its subprotocol, extensions and messages of any size."""
        headers, _ = to_browser(list(answer.headers), target, origin, switches=True)
        await send(self._http, self._writer, h11.InformationalResponse(status_code=101, headers=headers))
        self._upstream = None
        used = self._used
        begun_up, begun_down = self._http.trailing_data[0], upstream.http.trailing_data[0]
        note = lambda data: None if data[0] == _PONG else used(target)  # noqa: E731
        down = _copy(begun_down, upstream.reader, self._writer, lambda _: None)
        up = _copy(begun_up, self._reader, upstream.writer, note)
        with closing(upstream.writer):
            async with until_first(down, up):
                pass

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.writer.close()
            self._upstream = None


async def _head(upstream: Upstream) -> h11.Response | h11.InformationalResponse:
    while True:
        event = await next_event(upstream.http, upstream.reader)
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return event
        if not isinstance(event, h11.InformationalResponse):
            raise ConnectionResetError("the app is gone")


async def send(http: h11.Connection, writer: asyncio.StreamWriter, event: h11.Event) -> None:
    """Write what an event is, and wait while the other end is slow."""
    data = http.send(event)
    if data:
        writer.write(data)
        await writer.drain()


async def _copy(
    begun: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: Callable[[bytes], None]
) -> None:
    data = begun or await reader.read(PIECE_BYTES)
    while data:
        seen(data)
        writer.write(data)
        await writer.drain()
        data = await reader.read(PIECE_BYTES)
