"""`BrowserConnection`: requests of one browser connection, each to the app or the service that it names."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import h11

from trainmaster.api.proxy.admissions import RequestRefusedError
from trainmaster.api.proxy.exchange import IDLE_S, READS, BrowserGoneError, ProxyExchange, send
from trainmaster.api.proxy.grants import Grants
from trainmaster.api.proxy.headers import (
    APPS,
    CONNECT_S,
    ENTER,
    SERVICES,
    SERVICES_LABEL,
    UpstreamTarget,
    app_of,
    app_of_page,
    cookies,
    header,
    is_own_page,
    is_websocket,
    service_of,
    to_app,
)
from trainmaster.api.proxy.services import Key, ServiceProxy
from trainmaster.api.proxy.upstream import PIECE_BYTES, BrokenOffError, UpstreamUnreachableError, next_event
from trainmaster.api.server_names import ServerNames
from trainmaster.service.endpoints.endpoints import ReadyReplica as Replica

#: A browser that was not let in yet may be silent for so long between two requests.
FIRST_S: Final = 10.0
#: An unwanted body is read for so long.
_LINGER_S: Final = 2.0
#: To log in to a machine that is busy takes that long; it is waited for if no other replica can be reached.
_LAST_CONNECT_S: Final = 20.0
#: With what one gets in.
_ASKS: Final = [("www-authenticate", "Bearer")]


class BrowserConnection(ProxyExchange):
    """One connection of a browser: requests one after the other.

    Attributes:
        address: of the browser, or of a proxy in front of us.
        is_known: it was let in to an app.
    """

    def __init__(
        self,
        grants: Grants | None,
        services: ServiceProxy | None,
        hosts: ServerNames,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer_s: float,
    ) -> None:
        super().__init__(reader, writer, answer_s)
        self._grants, self._services, self._hosts = grants, services, hosts
        self._used = self._note_use
        peer = writer.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        own = writer.get_extra_info("sockname")
        self._arrived_at = str(own[0]) if isinstance(own, tuple) else ""
        self.is_known = False

    async def serve(self) -> None:
        """Until either end closes it."""
        try:
            while True:
                async with asyncio.timeout(IDLE_S if self.is_known else FIRST_S):
                    request = await next_event(self._http, self._reader)
                if not isinstance(request, h11.Request):
                    return
                try:
                    if await self._answer(request):
                        return
                except RequestRefusedError as refused:
                    if self._grants is not None:
                        await self._grants.note(refused, self.address, request.method, request.target)
                    await self._refuse(request, refused)
                if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                    return
                self._http.start_next_cycle()
        except BrowserGoneError:
            return
        except h11.RemoteProtocolError as error:
            if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                await self._refuse(None, RequestRefusedError(error.error_status_hint, "That is no request."))
        finally:
            self._drop_upstream()

    # --- one request ---------------------------------------------------------------------------------

    async def _answer(self, request: h11.Request) -> bool:
        """Have it answered; whether that ends the connection."""
        self._body_bytes = 0
        headers = list(request.headers)
        if {b"content-length", b"transfer-encoding"} <= {key for key, _ in headers}:
            # An app may read it otherwise than we do, and so find another request in the body.
            raise RequestRefusedError(400, "A request has a length or is chunked, not both.")
        if not self._hosts.knows(header(headers, b"host"), self._arrived_at):
            raise RequestRefusedError(
                421, "This server has another name: its owner says so with --url, --apps-url."
            )
        is_secure = self._grants is not None and self._grants.is_secure
        origin = f"{'https' if is_secure else 'http'}://{header(headers, b'host')}"
        label = self._grants.label(header(headers, b"host")) if self._grants is not None else ""
        if request.target.startswith(SERVICES.encode()) and self._services is not None:
            if label not in ("", SERVICES_LABEL):  # what a service answers would be a page of the app
                raise _as_json(RequestRefusedError(404, "there is no service at this host"))
            return await self._answer_of_service(self._services, request, headers, origin)
        return await self._answer_of_app(request, headers, origin, label)

    async def _answer_of_app(
        self, request: h11.Request, headers: list[tuple[bytes, bytes]], origin: str, label: str
    ) -> bool:
        grants = self._grants
        if grants is not None and request.target.startswith(ENTER.encode()) and request.method == b"GET":
            ticket = request.target[len(ENTER) :].decode("latin-1")
            raise await grants.enter(ticket, header(headers, b"host"))
        found = app_of(request.target)
        prefix = ""
        if found is None:
            prefix = f"{APPS}{label}/" if label else app_of_page(header(headers, b"referer"), origin)
        if prefix and request.method in READS:
            # Of an app that does not know its prefix: its pages name what they need by absolute paths.
            where = prefix + request.target.decode("latin-1").lstrip("/")
            raise RequestRefusedError(307, "", [("location", where)])
        if found is None or grants is None:
            raise RequestRefusedError(404, "There is no such app.")
        app, has_path = found
        is_socket = is_websocket(headers)
        came_from = header(headers, b"origin")
        if (is_socket or request.method not in READS) and came_from not in ("", origin):
            raise RequestRefusedError(403, "This came from another site's page.")
        kept: tuple[str, ...] = ()
        if grants.domain:
            if label not in ("", app):
                raise RequestRefusedError(404, "There is no such app at this host.")
            if label and not is_own_page(headers):
                raise RequestRefusedError(403, "This came from another site's page.")
        if label or not grants.domain:  # at other names only tokens let in
            kept = tuple(value for name, value in cookies(headers) if name == grants.cookie)
        grant = await grants.admitted((app, kept, _bearer(headers)))
        self.is_known = True
        if not has_path:
            query = request.target.partition(b"?")[2].decode("latin-1")
            raise RequestRefusedError(308, "", [("location", f"{grant.target.prefix}{query and '?'}{query}")])
        task = asyncio.current_task()
        assert task is not None
        grant.open.add(task)
        inner = request.target[len(grant.target.prefix) :]
        if is_socket or not grant.target.is_poll(request.method, inner):
            grants.gate.used(app)
        try:
            passed = h11.Request(
                method=request.method,
                target=b"/" + inner if grant.target.is_bare else request.target,
                headers=to_app(headers, grant.target, origin, self.address),
            )
            return await self._exchange(passed, request, grant.target, origin, is_socket=is_socket)
        finally:
            grant.open.discard(task)

    def _note_use(self, target: UpstreamTarget) -> None:
        if self._grants is not None and not target.replica:
            self._grants.gate.used(target.app)

    async def _answer_of_service(
        self, services: ServiceProxy, request: h11.Request, headers: list[tuple[bytes, bytes]], origin: str
    ) -> bool:
        found = service_of(request.target)
        if found is None:
            raise _as_json(RequestRefusedError(404, "there is no such service"))
        name, path = found
        bearer = _bearer(headers)
        if services.gate.is_open:
            _check_is_own_page(headers, origin)
        elif not bearer:
            raise _as_json(
                RequestRefusedError(
                    401, "a token is missing; send it as `Authorization: Bearer TOKEN`", _ASKS
                )
            )
        key = (name, bearer, header(headers, b"trainmaster-team"))
        try:
            grant = await services.admitted(key)
            self.is_known = True
            self._most_body_bytes = services.body_bytes
            if int(header(headers, b"content-length") or "0") > services.body_bytes:
                raise RequestRefusedError(413, f"the body has more than {services.body_bytes} bytes")
            task = asyncio.current_task()
            assert task is not None
            grant.open.add(task)
            try:
                if not grant.target:
                    raise await services.turned_away(key)
                return await self._ask_service(services, key, path, grant.target, request, headers, origin)
            finally:
                grant.open.discard(task)
        except RequestRefusedError as refused:
            raise _as_json(refused) from None
        finally:
            self._most_body_bytes = math.inf

    async def _ask_service(
        self,
        services: ServiceProxy,
        key: Key,
        path: bytes,
        replicas: Sequence[Replica],
        request: h11.Request,
        headers: list[tuple[bytes, bytes]],
        origin: str,
    ) -> bool:
        """One replica after the other, as long as none can have begun with it, or may do it twice.

        Where that was in vain those that there are by now get it, but none that has broken off.
        """
        name, is_socket, broken = key[0], is_websocket(headers), set[str]()
        refused = RequestRefusedError(503, f"no replica of {name} can be reached", [("retry-after", "2")])
        tried, is_first = set[str](), True
        while (replica := services.pick(replicas, tried)) is not None or is_first:
            if replica is None:
                replicas, tried, is_first = (await services.admitted(key, again=True)).target, broken, False
                continue
            tried.add(replica.replica)
            target = services.target(name, replica, CONNECT_S if is_first else _LAST_CONNECT_S)
            with services.using(name, replica) as answered:
                try:
                    self._drop_upstream()
                    self._upstream = services.take(target)
                    passed = h11.Request(
                        method=request.method,
                        target=path,
                        headers=to_app(headers, target, origin, self.address),
                    )
                    ends = await self._exchange(passed, request, target, origin, is_socket=is_socket)
                except UpstreamUnreachableError:
                    services.avoid(replica)
                except BrokenOffError:
                    services.avoid(replica)
                    broken.add(replica.replica)
                    refused = RequestRefusedError(
                        502, f"a replica of {name} has broken off before it answered"
                    )
                    if request.method not in READS or not self._is_without_body:
                        answered(False)
                        raise refused from None
                except RequestRefusedError as error:
                    answered(False)
                    if error.status != 504:
                        raise
                    raise RequestRefusedError(504, f"a replica of {name} does not answer in time") from None
                else:
                    if not is_socket:
                        answered(self._status < 500)
                    if self._upstream is not None:
                        services.keep(self._upstream)
                        self._upstream = None
                    return ends
        raise refused

    # --- parts ---------------------------------------------------------------------------------------

    async def _refuse(self, request: h11.Request | None, refused: RequestRefusedError) -> None:
        """Answer ourselves, if nothing was answered yet; else break off."""
        self._drop_upstream()
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise ConnectionResetError("broken off")
        text = refused.text.encode("utf-8", "replace")
        headers = [
            ("content-type", refused.kind),
            ("content-length", str(len(text))),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            *refused.headers,
        ]
        if self._http.their_state is not h11.DONE:  # an unread body
            headers.append(("connection", "close"))
        await send(self._http, self._writer, h11.Response(status_code=refused.status, headers=headers))
        if request is None or request.method != b"HEAD":
            await send(self._http, self._writer, h11.Data(data=text))
        await send(self._http, self._writer, h11.EndOfMessage())
        if (
            self._http.their_state is h11.SEND_BODY
        ):  # to close with something unread would take the answer back
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while await self._reader.read(PIECE_BYTES):
                        pass


def _bearer(headers: Sequence[tuple[bytes, bytes]]) -> str:
    kind, _, bearer = header(headers, b"authorization").partition(" ")
    return bearer.strip() if kind.lower() == "bearer" else ""


def _check_is_own_page(headers: Sequence[tuple[bytes, bytes]], origin: str) -> None:
    """Pages of others, which a browser here shows, may not ask."""
    if header(headers, b"origin") not in ("", origin):
        raise _as_json(RequestRefusedError(403, "this came from another site's page"))


def _as_json(refused: RequestRefusedError) -> RequestRefusedError:
    """As programs read it, which is what asks services."""
    text = json.dumps({"error": refused.text.replace("\n", ". ").strip()})
    headers = refused.headers or (_ASKS if refused.status == 401 else [])
    return RequestRefusedError(refused.status, text, headers, "application/json")
