"""Plain ASGI around all routes: sizes of requests, headers of answers, and the audit.

Not Starlette's `BaseHTTPMiddleware`: it costs a task and a queue per answer, 29 % of a core with 500 streams.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from trainmaster import __version__
from trainmaster.api.rest import versions
from trainmaster.api.rest.limits import STRANGERS_BURST, STRANGERS_PER_S
from trainmaster.api.rest.state import problem
from trainmaster.api.rest.state import told as told_of
from trainmaster.api.server_names import ServerNames
from trainmaster.db import Database, audit
from trainmaster.service.users.caller import Caller, TooOftenError
from trainmaster.service.users.rates import Rates
from trainmaster.spec.errors import StoreError

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


#: Of a request; what is larger has a route that says so.
MAX_BODY_BYTES: Final = 4 << 20
#: Routes that take more, by how their paths begin.
MAX_UPLOAD_BYTES: Final = 110 << 20
_UPLOADS: Final = ("/api/v1/code/",)
#: An upload says itself how much is missing, and keeps it as it comes.
_PIECES: Final = "/api/v1/uploads/"
#: The body of a request that is no file has come after so long: what is slower keeps places of others.
BODY_S: Final = 60.0
_CSP: Final = (
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'self'; object-src 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (versions.HEADER, __version__.encode()),
)
_ALIVE: Final = "/healthz"
#: What the page of a new run asks while one types: it looks, and changes nothing.
_LOOKS: Final = ("/new/recipe", "/new/convert", "/new/estimate", "/new/dry-run")
_NAMES: Final = "If that is a name of it, its owner starts it with --url https://NAME, once for each name."
#: HTTP status of a websocket.
_OPENED: Final = 101
_log = logging.getLogger(__name__)


class RequestTooLargeError(HTTPException):
    """A request with a larger body than its route takes; of other errors while it reads FastAPI makes 400."""

    def __init__(self, limit: float) -> None:
        super().__init__(413, f"more than {limit / 2**20:.0f} MiB; send data as a volume")


class RequestAudit:
    """What was asked of this process, as rows; of who is not known, and of what is refused, a part.

    Args:
        database: that has them.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._refused = Rates(STRANGERS_PER_S, STRANGERS_BURST)

    def note(self, address: str, action: str, status: int, caller: Caller | None = None) -> None:
        """Add a row, unless the database is being filled with such.

        Args:
            address: of who asked.
            action: method and path.
            status: of the answer.
            caller: who asked, if that is known.
        """
        if caller is None or status in audit.DENIED:
            try:
                self._refused.take(address if caller is None else f"{caller.name} {caller.token}")
            except TooOftenError:
                return
        row = {
            "name": caller.name if caller else "",
            "team": caller.team if caller else None,
            "address": address,
            "action": action[:300],
            "status": status,
            "token": caller.token if caller else None,
        }
        try:
            # Several servers write there, and have one clock: what they did is in order by it. Who is known
            # was looked up by it, so it is not waited for once more.
            audit.note(self._database, {"at": self._database.clock_s(math.inf), **row})
        except StoreError as error:  # it was done, or refused: the caller has the answer
            _log.warning("the audit cannot be written: %s; %s", error, row)


class Guards:
    """Wraps the application.

    Args:
        app: what is wrapped.
        database: of the audit.
        hosts: names of the server; what is asked of another one is refused.
    """

    def __init__(self, app: ASGIApp, database: Database, hosts: ServerNames) -> None:
        self._app, self._hosts = app, hosts
        self._audit = RequestAudit(database)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        limit: float = MAX_UPLOAD_BYTES if path.startswith(_UPLOADS) else MAX_BODY_BYTES
        if scope["method"] == "PATCH" and path.startswith(_PIECES):
            limit = math.inf
        received, status = 0, 500
        is_whole, until_s = False, math.inf
        if limit == MAX_BODY_BYTES:
            until_s = asyncio.get_running_loop().time() + BODY_S

        async def counted() -> Message:
            nonlocal received, is_whole
            try:
                async with asyncio.timeout_at(None if is_whole or until_s == math.inf else until_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not come within {BODY_S:.0f} s") from None
            received += len(message.get("body", b""))
            is_whole = is_whole or not message.get("more_body", False)
            if received > limit:
                raise RequestTooLargeError(limit)
            return message

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]}  # a route's own are stricter
                message["headers"] = [
                    *message["headers"],
                    *(each for each in _HEADERS if each[0] not in own),
                ]
                if path.startswith("/static/"):
                    message["headers"].append((b"cache-control", b"public, max-age=86400"))
            await send(message)

        given = dict(scope["headers"])
        length = given.get(b"content-length", b"0")
        try:
            refusal = self._wrong_host(scope) or _wrong_address(scope) or _wrong_version(given, path)
            if refusal is not None:
                await refusal(scope, receive, told)
            elif length.isdigit() and int(length) <= limit:
                await self._app(scope, counted, told)
            else:
                refused = RequestTooLargeError(limit)
                await problem(refused.status_code, refused.detail)(scope, receive, told)
        finally:  # also what went wrong
            looks = scope["method"] in ("GET", "HEAD", "OPTIONS") or path in _LOOKS
            if not looks or status in audit.DENIED[:2]:
                await run_in_threadpool(self._note, scope, status)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One that is opened, or not; it may be open for days, so that is noted when it begins."""

        async def told(message: Message) -> None:
            opened = message["type"] == "websocket.accept"
            if opened or message["type"] == "websocket.http.response.start":
                status = _OPENED if opened else message["status"]
                await run_in_threadpool(self._note, {**scope, "method": "CONNECT"}, status)
            await send(message)

        refusal = self._wrong_host(scope) or _wrong_version(dict(scope["headers"]), scope["path"])
        await (self._app if refusal is None else refusal)(scope, receive, told)

    def _wrong_host(self, scope: Scope) -> Response | None:
        """What is answered to a request for another server: links would lead there, and cookies with them."""
        if scope["path"] == _ALIVE:  # asked by balancers, by whatever address, and tells nothing
            return None
        arrived_at = (scope.get("server") or ("", 0))[0]
        for name, value in scope["headers"]:
            host = value.decode("latin-1")
            if name == b"host" and not self._hosts.knows(host, arrived_at):
                return problem(421, f"this server is not {host[:100]!r}", _NAMES)
        return None

    def _note(self, scope: Scope, status: int) -> None:
        caller = scope.get("state", {}).get("caller")
        client = scope.get("client")
        action = f"{scope['method']} {scope['path']}"
        self._audit.note(client[0] if client else "", action, status, caller)


def _wrong_address(scope: Scope) -> Response | None:
    """The refusal of an address with a NUL: no database keeps one in a text."""
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        return problem(422, "the address has a NUL character", "Leave %00 out.")
    return None


def _wrong_version(given: Mapping[bytes, bytes], path: str) -> Response | None:
    """What a client is told that is too old, or newer than this server."""
    if not path.startswith("/api/"):
        return None
    try:
        versions.check_client(given.get(versions.HEADER, b"").decode("latin-1"))
    except versions.ClientVersionError as error:
        answer = told_of(error)
        answer.headers["upgrade"] = f"trainmaster/{__version__}"
        return answer
    return None
