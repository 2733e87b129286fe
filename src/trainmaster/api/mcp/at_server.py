"""`Assistants`: the tools at ``/mcp`` of a server, for who shows a token of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from trainmaster.api.mcp.sdk_server import make_server, need_sdk
from trainmaster.api.mcp.tool_context import ServerToolContext
from trainmaster.api.remote.connection import RestConnection
from trainmaster.dataclass import dataclass
from trainmaster.spec.errors import ProviderError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from trainmaster.service.users.caller import Caller


@dataclass(frozen=True, slots=True)
class OwnAddress:
    """How this process reaches its own routes.

    Attributes:
        url: where it listens; empty where it does not.
        fingerprint: SHA-256 of its certificate; empty without TLS.
    """

    url: str = ""
    fingerprint: str = ""


class Assistants:
    """What they ask becomes requests of the same token: teams, scopes, wallets, rates and the audit hold.

    The SDK is loaded, and its task begins, with the first of them.

    Args:
        at: how this process reaches its own routes.
    """

    def __init__(self, at: OwnAddress) -> None:
        self._at = at
        self._task: asyncio.Task[None] | None = None
        self._manager: asyncio.Future[Any] | None = None
        self._ends = asyncio.Event()

    async def answer(self, caller: Caller, token: str, scope: Scope, receive: Receive, send: Send) -> None:
        """One request of an assistant.

        Args:
            caller: who asks.
            token: with what.
            scope: of ASGI, as the next two.
            receive: see there.
            send: see there.

        Raises:
            MissingPartError: the SDK is not installed.
            ProviderError: this process has no address.
        """
        need_sdk()
        if not self._at.url:
            raise ProviderError(
                "this server has no address of its own", "Start it with `trainmaster server`."
            )
        connection = RestConnection(self._at.url, token, self._at.fingerprint, is_own=True)
        scope.setdefault("state", {})["context"] = ServerToolContext(connection, caller.scopes)
        try:
            await (await self._running()).handle_request(scope, receive, send)
        finally:
            await run_in_threadpool(connection.close)

    async def stop(self) -> None:
        """The server ends."""
        self._ends.set()
        if self._task is not None:
            with suppress(asyncio.CancelledError):
                await self._task

    async def _running(self) -> Any:  # noqa: ANN401 - of the SDK
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._manager))
        return await asyncio.shield(self._manager)

    async def _run(self, found: asyncio.Future[Any]) -> None:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        server = make_server(_context_of)
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            found.set_result(manager)
            await self._ends.wait()


def _context_of(request: Request) -> ServerToolContext:
    found: ServerToolContext = request.state.context
    return found
