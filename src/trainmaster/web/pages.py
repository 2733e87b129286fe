"""The pages of a server. Lists and forms work without JavaScript; htmx and uPlot make them live."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute

from trainmaster.api.rest.state import caller_of, state_of, status_of
from trainmaster.service.full_disks import full_disk
from trainmaster.service.users.caller import TooOftenError, UnknownCallerError
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web import (
    apps,
    audit,
    clusters,
    compare,
    cost,
    examples,
    home,
    models,
    new_run,
    notifications,
    offers,
    quotes,
    recommend,
    registry,
    run,
    runs,
    services,
    sessions,
    storage,
    team,
    volumes,
    workflows,
)
from trainmaster.web.rendering import HERE, for_readers, is_part, page, redirect

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_Handler = Callable[[Request, Any], Any]
_ROUTERS: Final[tuple[APIRouter, ...]] = (
    sessions.router,
    home.router,
    runs.router,
    run.router,
    storage.router,
    compare.router,
    cost.router,
    examples.router,
    clusters.router,
    apps.router,
    services.router,
    offers.router,
    new_run.router,
    quotes.router,
    models.router,
    registry.router,
    volumes.router,
    workflows.router,
    recommend.router,
    team.router,
    audit.router,
    notifications.router,
)


@cache
def _routes() -> list[BaseRoute]:
    """All pages, put together once for all servers of a process, as those of REST are."""
    whole = APIRouter()
    for router in _ROUTERS:
        whole.include_router(router)
    return whole.routes


class CompressedPages:
    """Sends pages, what they load and curves compressed: a slow phone waits for bytes. Other REST is not.

    Args:
        app: what is wrapped.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressed = GZipMiddleware(app, minimum_size=1000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path = scope.get("path", "")
        is_curve = path.startswith("/api/v1/runs/") and path.endswith("/metrics")
        is_plain = scope["type"] != "http" or (path.startswith("/api/") and not is_curve)
        await (self._app if is_plain else self._compressed)(scope, receive, send)


def add_pages(app: FastAPI) -> None:
    """Add the pages to a server's application."""
    app.add_middleware(CompressedPages)
    app.router.routes.extend(_routes())
    app.mount("/static", StaticFiles(directory=HERE / "static"), name="static")
    for kind, handler in (
        (TrainmasterError, _failed),
        (HTTPException, _refused),
        (RequestValidationError, _invalid),
        (OSError, _no_room),
        (Exception, _broken),
    ):
        app.add_exception_handler(kind, _of_pages(handler, app.exception_handlers[kind]))


def _of_pages(of_page: _Handler, of_rest: _Handler) -> _Handler:
    """Errors of pages are pages, those of REST are JSON, but to who has followed a link to a file."""

    async def handle(request: Request, error: Exception) -> Response:
        is_rest = request.url.path.startswith(("/api/", "/metrics", "/device/", "/healthz", "/static/"))
        is_seen = not is_rest or request.headers.get("sec-fetch-mode") == "navigate"
        found: Response = await (of_page if is_seen else of_rest)(request, error)
        return found

    return handle


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    with suppress(TrainmasterError):  # who is logged in has the navigation
        await run_in_threadpool(caller_of, request)
    if full := full_disk(error.__cause__, state_of(request).service.home):  # while the form was read
        return await _failed(request, full)
    if error.status_code == 404:
        return page(request, "error.html", 404, title="there is no such page", hint="The address may be old.")
    return page(request, "error.html", error.status_code, title=str(error.detail), hint="")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    wrong = "; ".join(f"{found['loc'][-1]}: {found['msg']}" for found in error.errors())
    return page(request, "error.html", 422, title="this cannot be shown", hint=wrong)


async def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours, unless our files were replaced: it is in the server's log, and no more is told."""
    if replaced := request.app.state.files.replaced():  # so may be the templates
        fits = "<meta charset=utf-8><meta name=viewport content=width=device-width>"
        said = f"<h1>Restart the server</h1><p>{escape(replaced.args[0])}. {escape(replaced.hint)}</p>"
        return HTMLResponse(f"<!doctype html><html lang=en>{fits}<title>Trainmaster</title>{said}", 503)
    hint = "Its log says more. Try again; if that does not help, please report it."
    return page(request, "error.html", 500, title="the server has made a mistake", hint=hint)


async def _no_room(request: Request, error: Exception) -> Response:
    """A full disk is no mistake of ours; anything else is."""
    full = full_disk(error, state_of(request).service.home)
    if full is None:
        raise error
    return await _failed(request, full)


def _page_of(request: Request) -> str:
    """The page that is asked for, or that has sent a form: there is what was written into it."""
    wanted = urlsplit("/")
    with suppress(ValueError):  # somebody has written that header
        asked = str(request.url)
        wanted = urlsplit(asked if request.method == "GET" else request.headers.get("referer", ""))
    is_ours = wanted.netloc == request.url.netloc
    return f"{wanted.path}{f'?{wanted.query}' * bool(wanted.query)}" if is_ours else "/"


async def _failed(request: Request, error: Exception) -> Response:
    """Who is not known is asked to log in."""
    assert isinstance(error, TrainmasterError)
    if isinstance(error, UnknownCallerError) and not is_part(request):
        return redirect(f"/login?{urlencode({'next': _page_of(request)})}")
    caller = getattr(request.state, "caller", None)
    hint = for_readers(error.hint, caller)
    answer = page(request, "error.html", status_of(error), title=str(error.args[0]), hint=hint)
    if isinstance(error, TooOftenError):
        answer.headers["retry-after"] = str(math.ceil(error.retry_after_s))
    return answer
