"""The pages of a server. Lists and forms work without JavaScript; htmx and uPlot make them live."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.middleware.gzip import GZipMiddleware

from trainmaster.api.rest.state import status_of, told
from trainmaster.service.users.caller import TooOftenError, UnknownCallerError
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web import (
    apps,
    audit,
    clusters,
    compare,
    device,
    examples,
    models,
    new_run,
    notifications,
    offers,
    quotes,
    recommend,
    registry,
    run,
    runs,
    sessions,
    team,
    volumes,
)
from trainmaster.web.rendering import HERE, is_part, page, redirect

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_ROUTERS: Final[tuple[APIRouter, ...]] = (
    sessions.router,
    device.router,
    runs.router,
    run.router,
    compare.router,
    examples.router,
    clusters.router,
    apps.router,
    offers.router,
    new_run.router,
    quotes.router,
    models.router,
    registry.router,
    volumes.router,
    recommend.router,
    team.router,
    audit.router,
    notifications.router,
)


class CompressedPages:
    """Sends pages and what they load compressed: a slow phone waits for bytes. REST is left as it is.

    Args:
        app: what is wrapped.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressed = GZipMiddleware(app, minimum_size=1000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        is_rest = scope["type"] != "http" or scope["path"].startswith("/api/")
        await (self._app if is_rest else self._compressed)(scope, receive, send)


def add_pages(app: FastAPI) -> None:
    """Add the pages to a server's application."""
    app.add_middleware(CompressedPages)
    for router in _ROUTERS:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    app.add_exception_handler(TrainmasterError, _failed)


async def _failed(request: Request, error: Exception) -> Response:
    """Errors of pages are pages, those of REST are JSON; who is not known is asked to log in."""
    assert isinstance(error, TrainmasterError)
    if request.url.path.startswith(("/api/", "/metrics", "/device/")):
        return told(error)
    if isinstance(error, UnknownCallerError) and not is_part(request):
        wanted = request.url.path if request.method == "GET" else "/"
        return redirect(f"/login?{urlencode({'next': wanted})}")
    answer = page(request, "error.html", status_of(error), title=str(error.args[0]), hint=error.hint)
    if isinstance(error, TooOftenError):
        answer.headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return answer
