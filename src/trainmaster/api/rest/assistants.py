"""``/mcp``: the tools of assistants (Model Context Protocol), with the tokens of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.routing import Route

from trainmaster.api.rest.state import bearer_of, known_by_token, state_of, told
from trainmaster.spec.errors import TrainmasterError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class _AssistantEndpoint:
    """One for all servers of a process; plain ASGI, as the SDK answers itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request: of who shows a token, never by a cookie."""
        request = Request(scope, receive)
        try:
            caller = await run_in_threadpool(known_by_token, request)
            caller.need("read")
            await state_of(request).assistants.answer(caller, bearer_of(request) or "", scope, receive, send)
        except TrainmasterError as error:
            await told(error)(scope, receive, send)


route = Route("/mcp", _AssistantEndpoint(), include_in_schema=False)
