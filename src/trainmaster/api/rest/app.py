"""`make_app`: the server's application."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from trainmaster import __version__
from trainmaster.api.rest import (
    apps,
    assistants,
    budgets,
    clusters,
    code,
    device,
    hooks,
    images,
    lookups,
    metrics,
    models,
    offers,
    operations,
    quotes,
    recommend,
    registry,
    run_details,
    runs,
    services,
    storage,
    teams,
    tunnels,
    uploads,
    views,
    volumes,
    webhooks,
    workflows,
)
from trainmaster.api.rest.guards import Guards
from trainmaster.api.rest.hidden_places import HiddenPlaces
from trainmaster.api.rest.hubs import Hubs
from trainmaster.api.rest.limits import MAX_STREAMS, MAX_TUNNELS, LoopLag, Streams
from trainmaster.api.rest.replaced import LoadedFiles
from trainmaster.api.rest.state import Reader, Routes, ServerState, State, caller_of, problem, state_of, told
from trainmaster.api.rest.versions import oldest_client
from trainmaster.service import Service
from trainmaster.service.driving.drivers import Drivers
from trainmaster.service.driving.submissions import Submissions
from trainmaster.service.full_disks import full_disk
from trainmaster.service.quotes.quote_requests import QuoteRequests
from trainmaster.service.runs.member_connections import MemberConnections
from trainmaster.service.teams.team_operations import operations as operations_of
from trainmaster.service.uploads.upload_finishing import UploadFinishing
from trainmaster.service.uploads.uploads import Uploads
from trainmaster.service.users.access import Access
from trainmaster.spec.errors import TrainmasterError

API: Final = "/api/v1"
_PARTS: Final = (
    runs,
    lookups,
    run_details,
    quotes,
    operations,
    offers,
    clusters,
    images,
    code,
    uploads,
    volumes,
    models,
    registry,
    recommend,
    budgets,
    webhooks,
    workflows,
    hooks,
    teams,
    apps,
    services,
    storage,
    tunnels,
    views,
)


def make_state(
    service: Service, environ: Mapping[str, str], *, is_private: bool = True, is_secure: bool = False
) -> ServerState:
    """The parts of a server.

    Args:
        service: of the home.
        environ: of the processes that drive runs.
        is_private: only this machine reaches the server.
        is_secure: browsers reach it by https.
    """
    access = Access(service.database)
    service.database.retry_policy.waits_for_room = False  # here somebody waits; drivers are other processes
    # Browsers send a cookie with this beginning by https only, and to no other host.
    cookie = "__Host-trainmaster" if is_secure else "trainmaster"
    drivers = Drivers(service, environ)
    submissions = Submissions(service, access, environ, is_private=is_private, accepted=drivers.wake)
    quotes = QuoteRequests(service, submissions, environ, operations_of(service))
    hubs, lag = Hubs(service), LoopLag()
    kept = Uploads(service.home, service.database, environ)
    finishing = UploadFinishing(service.home, service.database, kept, environ)
    streams, tunnels, transfers = (
        Streams(access.callers, most) for most in (MAX_STREAMS, MAX_TUNNELS, math.inf)
    )
    return ServerState(
        service,
        access,
        submissions,
        quotes,
        drivers,
        kept,
        finishing,
        hubs,
        streams,
        tunnels,
        transfers,
        MemberConnections(service, environ, is_for_others=True),
        lag,
        environ,
        cookie,
        is_secure,
    )


def make_app(state: ServerState) -> FastAPI:
    """The application with all routes of REST."""
    audit_feed = state.audit_feed  # what is wrong with its receivers is said before anything begins

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.hubs.start()
        state.drivers.start()
        state.quotes.start()
        state.webhooks.start()
        state.retention.start()
        audit_feed.start()
        state.app_hosts.start()
        state.away.start()
        state.triggers.start()
        state.sinks.start()
        watch = asyncio.create_task(state.lag.watch())
        yield
        watch.cancel()
        await state.assistants.stop()
        state.hubs.stop()
        state.retention.stop()
        audit_feed.stop()
        await run_in_threadpool(state.triggers.stop)
        state.sinks.stop()
        state.away.stop()
        await run_in_threadpool(state.quotes.stop)
        await run_in_threadpool(state.drivers.stop)
        await run_in_threadpool(state.webhooks.stop)
        await run_in_threadpool(state.app_hosts.stop)
        await run_in_threadpool(state.members.close)

    app = FastAPI(
        title="Trainmaster",
        version=__version__,
        description="From a recipe to a trained model, at the price that was quoted.",
        openapi_url=None,  # everything but /healthz asks who is there
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        routes=_routes(),
    )
    app.state.server, app.state.files = state, LoadedFiles()
    app.add_exception_handler(TrainmasterError, _told)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(OSError, _no_room)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(HiddenPlaces, home=state.service.home)
    app.add_middleware(Guards, database=state.service.database, hosts=state.hosts)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """All routes; FastAPI builds what they need at the first request: once for all servers of a process."""
    whole = APIRouter()
    for part in _PARTS:
        whole.include_router(part.router, prefix=API)
    whole.include_router(_general, prefix=API)
    whole.include_router(metrics.router)
    whole.include_router(device.router)
    whole.add_api_route("/healthz", _healthz, tags=["server"])
    return [*whole.routes, assistants.route]


_general = Routes(tags=["server"])


@_general.get("/info")
def info(request: Request, caller: Reader) -> dict[str, Any]:
    """Versions, how long is kept what (seconds; docs/server/kept.md), and who the caller is."""
    return {
        "version": __version__,
        "oldest_client": oldest_client(),
        "kept_s": {each.kind: each.seconds for each in state_of(request).retention.table},
        "caller": {"name": caller.name, "team": caller.team, "scopes": sorted(caller.scopes)},
    }


@_general.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, caller: Reader) -> dict[str, Any]:
    """This interface, for programs."""
    found: dict[str, Any] = request.app.openapi()
    return found


@_general.get("/readyz")
def readyz(state: State, caller: Reader) -> dict[str, str]:
    """Whether the database answers."""
    state.service.last_event("")
    return {"state": "ready"}


async def _healthz() -> dict[str, str]:
    """Whether this process answers: all that is told to who gives no token."""
    return {"state": "alive"}


async def _told(_: Request, error: Exception) -> Response:
    assert isinstance(error, TrainmasterError)
    return told(error)


async def _no_room(request: Request, error: Exception) -> Response:
    """A full disk is no mistake of ours; anything else is."""
    full = full_disk(error, state_of(request).service.home)
    if full is None:
        raise error
    return told(full)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    mistakes = [
        {"key": ".".join(str(part) for part in found["loc"]), "message": found["msg"]}
        for found in error.errors()
    ]
    title = "; ".join(f"{m['key']}: {m['message']}" for m in mistakes)
    return problem(422, title, "GET /api/v1/openapi.json says what is taken.", mistakes=mistakes)


async def _broken(request: Request, error: Exception) -> Response:
    """A mistake of ours, unless our files were replaced: it is in the server's log, and no more is told."""
    if replaced := request.app.state.files.replaced():
        return told(replaced)
    return problem(500, "the server has made a mistake", "Its log says more; please report it.")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if full := full_disk(error.__cause__, state_of(request).service.home):  # while the body was read
        return told(full)
    if error.status_code in (404, 405) and request.url.path.startswith(API):
        try:  # an unknown caller does not learn what there is
            await run_in_threadpool(caller_of, request)
        except TrainmasterError as refusal:
            return told(refusal)
        return problem(error.status_code, str(error.detail), f"GET {API}/openapi.json has all routes.")
    return problem(error.status_code, str(error.detail))
