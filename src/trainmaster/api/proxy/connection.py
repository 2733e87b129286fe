"""`Connection`: requests of one browser connection, carried to an app and back; then perhaps a websocket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import h11

from trainmaster.api.proxy.grants import Grants, RefusedError
from trainmaster.api.proxy.headers import (
    ENTER,
    Target,
    app_of,
    cookies,
    header,
    is_websocket,
    to_app,
    to_browser,
)

#: Of a request or an answer, all headers together.
_MOST_HEADERS_BYTES: Final = 64 << 10
PIECE_BYTES: Final = 64 << 10
#: A browser may be silent for so long between two requests; one that was not let in yet, for less.
_IDLE_S: Final = 75.0
FIRST_S: Final = 10.0
#: Whether a browser is still there is looked at only when an answer takes longer.
_SOON_S: Final = 1.0
#: A body that nobody wants is read for so long.
_LINGER_S: Final = 2.0
#: An app listens on this machine, or not at all.
_CONNECT_S: Final = 5.0
#: Opcode of a pong with the bit that says that it is whole: what a page says by itself.
_PONG: Final = 0x8A
_READS: Final = (b"GET", b"HEAD", b"OPTIONS")


class GoneError(Exception):
    """The browser has closed its connection: nobody is left to answer."""


@dataclass(slots=True)
class _Upstream:
    """A connection to an app, kept for the next request of the same browser connection."""

    target: Target
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    used: bool = False

    @classmethod
    async def open(cls, target: Target) -> _Upstream:
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection("127.0.0.1", target.port, limit=PIECE_BYTES), _CONNECT_S
            )
        except (OSError, TimeoutError):
            raise RefusedError(502, "The app does not answer.\nIt may have ended: open it again.") from None
        return cls(target, reader, writer, _http(h11.CLIENT))

    @property
    def is_idle(self) -> bool:
        return self.http.our_state is h11.IDLE and not self.reader.at_eof()


class Connection:
    """One connection of a browser: requests one after the other.

    Attributes:
        address: of the browser, or of a proxy in front of us.
        is_known: it was let in to an app.
    """

    def __init__(
        self, grants: Grants, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_s: float
    ) -> None:
        self._grants, self._reader, self._writer, self._answer_s = grants, reader, writer, answer_s
        self._http = _http(h11.SERVER)
        self._upstream: _Upstream | None = None
        peer = writer.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.is_known = False

    async def serve(self) -> None:
        """Until either end closes it."""
        try:
            while True:
                async with asyncio.timeout(_IDLE_S if self.is_known else FIRST_S):
                    request = await _next(self._http, self._reader)
                if not isinstance(request, h11.Request):
                    return
                try:
                    if await self._answer(request):
                        return
                except RefusedError as refused:
                    await self._grants.note(refused, self.address, request.method, request.target)
                    await self._refuse(request, refused)
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except GoneError:
            return
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._refuse(None, RefusedError(error.error_status_hint, "That is no request."))
        finally:
            self._drop_upstream()

    # --- one request ---------------------------------------------------------------------------------

    async def _answer(self, request: h11.Request) -> bool:
        """Have it answered; whether that ends the connection."""
        headers = list(request.headers)
        if {b"content-length", b"transfer-encoding"} <= {key for key, _ in headers}:
            # An app may read it otherwise than we do, and so find another request in the body.
            raise RefusedError(400, "A request has a length or is chunked, not both.")
        origin = f"{'https' if self._grants.is_secure else 'http'}://{header(headers, b'host')}"
        if request.target.startswith(ENTER.encode()) and request.method == b"GET":
            raise await self._grants.enter(request.target[len(ENTER) :].decode("latin-1"))
        found = app_of(request.target)
        if found is None:
            raise RefusedError(404, "There is no such app.")
        app, has_path = found
        is_socket = is_websocket(headers)
        came_from = header(headers, b"origin")
        if (is_socket or request.method not in _READS) and came_from not in ("", origin):
            raise RefusedError(403, "This came from another site's page.")
        kept = tuple(value for name, value in cookies(headers) if name == self._grants.gate.cookie)
        kind, _, bearer = header(headers, b"authorization").partition(" ")
        key = (app, kept, bearer.strip() if kind.lower() == "bearer" else "")
        grant = await self._grants.admitted(key)
        self.is_known = True
        if not has_path:
            query = request.target.partition(b"?")[2].decode("latin-1")
            raise RefusedError(308, "", [("location", f"{grant.target.prefix}{query and '?'}{query}")])
        task = asyncio.current_task()
        assert task is not None
        grant.open.add(task)
        self._grants.gate.used(app)
        try:
            passed = h11.Request(
                method=request.method,
                target=request.target,
                headers=to_app(headers, grant.target, origin, self.address),
            )
            return await self._exchange(passed, request, grant.target, origin, is_socket=is_socket)
        finally:
            grant.open.discard(task)

    async def _exchange(
        self, passed: h11.Request, request: h11.Request, target: Target, origin: str, *, is_socket: bool
    ) -> bool:
        upstream = self._upstream
        if upstream is None or upstream.target != target or not upstream.is_idle:
            self._drop_upstream()
            upstream = self._upstream = await _Upstream.open(target)
        body: asyncio.Task[None] | None = None
        try:
            upstream.writer.write(upstream.http.send(passed) or b"")
            answer = await self._answered_soon(upstream)
            if answer is None:
                body = asyncio.create_task(self._send_body(upstream))
                answer = await self._head_of_answer(upstream, body)
        except TimeoutError:
            raise RefusedError(504, "The app does not answer in time.") from None
        except (OSError, h11.RemoteProtocolError):
            if body is not None:
                body.cancel()
            self._drop_upstream()
            if upstream.used and request.method in _READS and self._http.their_state is h11.DONE:
                # It was about to close what it had kept open: this was never looked at.
                return await self._exchange(passed, request, target, origin, is_socket=is_socket)
            raise RefusedError(502, "The app has broken off.\nIt may have ended: open it again.") from None
        except BaseException:
            if body is not None:
                body.cancel()
            raise
        upstream.used = True
        try:
            if isinstance(answer, h11.InformationalResponse):
                if not is_socket:
                    raise RefusedError(502, "The app has changed the protocol without being asked to.")
                await self._go_on_as_socket(upstream, answer, target, origin)
                return True
            await self._pass_on(upstream, answer, target, origin)
            # One that has answered before it had read all does not get the rest.
            return body is not None and not body.done()
        finally:
            if body is not None:
                body.cancel()

    async def _answered_soon(self, upstream: _Upstream) -> h11.Response | h11.InformationalResponse | None:
        """The first of the answer to a request without a body, which most are; None if it takes longer.

        Nothing looks meanwhile whether the browser is still there: that needs tasks, and these need CPU.
        """
        if self._http.their_state is h11.SEND_BODY:  # else this is the second try
            event = self._http.next_event()
            if not isinstance(event, h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    upstream.writer.write(upstream.http.send(h11.Data(data=event.data)) or b"")
                return None
        upstream.writer.write(upstream.http.send(h11.EndOfMessage()) or b"")
        try:
            async with asyncio.timeout(min(_SOON_S, self._answer_s)):
                return await _head(upstream)
        except TimeoutError:
            return None

    async def _send_body(self, upstream: _Upstream) -> None:
        """What comes with a request, as it comes."""
        if upstream.http.our_state is not h11.SEND_BODY:
            return
        if self._http.they_are_waiting_for_100_continue:
            await _send(self._http, self._writer, h11.InformationalResponse(status_code=100, headers=[]))
        while True:
            async with asyncio.timeout(_IDLE_S):
                event = await _next(self._http, self._reader)
            if isinstance(event, h11.Data):
                await _send(upstream.http, upstream.writer, event)
            elif isinstance(event, h11.EndOfMessage):
                await _send(upstream.http, upstream.writer, h11.EndOfMessage())
                return
            else:
                raise GoneError

    async def _head_of_answer(
        self, upstream: _Upstream, body: asyncio.Task[None]
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
                        raise GoneError
                    self._http.receive_data(data.result())  # of the next request
                    await asyncio.wait({answer})
            finally:
                if not data.done():
                    data.cancel()
                    with suppress(asyncio.CancelledError):
                        await data

    async def _pass_on(self, upstream: _Upstream, answer: h11.Response, target: Target, origin: str) -> None:
        headers, outside = to_browser(list(answer.headers), target, origin)
        if outside:
            self._drop_upstream()
            raise RefusedError(
                502, f"The app sends you to another place, {outside}\nOpen that yourself if you trust it."
            )
        head = h11.Response(status_code=answer.status_code, headers=headers)
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
        self, upstream: _Upstream, answer: h11.InformationalResponse, target: Target, origin: str
    ) -> None:
        """Both directions, as they are: with its subprotocol, extensions and messages of any size."""
        headers, _ = to_browser(list(answer.headers), target, origin, switches=True)
        await _send(self._http, self._writer, h11.InformationalResponse(status_code=101, headers=headers))
        self._upstream = None
        used = self._grants.gate.used
        begun_up, begun_down = self._http.trailing_data[0], upstream.http.trailing_data[0]
        ways = {
            asyncio.create_task(_copy(begun_down, upstream.reader, self._writer, lambda _: None)),
            asyncio.create_task(
                _copy(
                    begun_up,
                    self._reader,
                    upstream.writer,
                    lambda data: None if data[0] == _PONG else used(target.app),
                )
            ),
        }
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            upstream.writer.close()

    # --- parts ---------------------------------------------------------------------------------------

    async def _refuse(self, request: h11.Request | None, refused: RefusedError) -> None:
        """Answer ourselves, if nothing was answered yet; else break off."""
        self._drop_upstream()
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionResetError("broken off")
        text = refused.text.encode("utf-8", "replace")
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(text))),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            *refused.headers,
        ]
        if self._http.their_state is not h11.DONE:  # a body that nobody reads
            headers.append(("connection", "close"))
        await _send(self._http, self._writer, h11.Response(status_code=refused.status, headers=headers))
        if request is None or request.method != b"HEAD":
            await _send(self._http, self._writer, h11.Data(data=text))
        await _send(self._http, self._writer, h11.EndOfMessage())
        if (
            self._http.their_state is h11.SEND_BODY
        ):  # to close with something unread would take the answer back
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while await self._reader.read(PIECE_BYTES):
                        pass

    def _drop_upstream(self) -> None:
        if self._upstream is not None:
            self._upstream.writer.close()
            self._upstream = None


def _http(role: type[h11.CLIENT] | type[h11.SERVER]) -> h11.Connection:
    return h11.Connection(role, max_incomplete_event_size=_MOST_HEADERS_BYTES)


async def _next(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(PIECE_BYTES))
        elif event is h11.PAUSED:
            raise ConnectionResetError("more than one request at a time")
        else:
            assert not isinstance(event, type)
            return event


async def _head(upstream: _Upstream) -> h11.Response | h11.InformationalResponse:
    while True:
        event = await _next(upstream.http, upstream.reader)
        if isinstance(event, h11.Response):
            return event
        if isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return event
        if not isinstance(event, h11.InformationalResponse):
            raise ConnectionResetError("the app is gone")


async def _send(http: h11.Connection, writer: asyncio.StreamWriter, event: h11.Event) -> None:
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
