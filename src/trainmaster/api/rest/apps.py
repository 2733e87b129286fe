"""Routes of apps: opened, listed, ended, and how a browser gets to one."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request
from fastapi.responses import JSONResponse

from trainmaster.api.proxy.headers import ENTER
from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, ServerState, State, Submitter, credential_of
from trainmaster.service.apps.app_hosts import need_part
from trainmaster.service.apps.apps import NOTEBOOK, PORT, TENSORBOARD, Apps
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import UsageError

router = Routes(tags=["apps"])


class NewApp(Body):
    """What is to be opened."""

    kind: Literal["tensorboard", "notebook", "port"]
    runs: list[str]
    member: str | None = None
    port: int | None = None


@router.post("/apps", status_code=201)
def open_app(body: NewApp, state: State, caller: Submitter) -> JSONResponse:
    """Open a TensorBoard of runs, a notebook of one or none, or a port of a member; if it is open: 200."""
    found, is_new = opened(state, caller, body)
    return JSONResponse(found, 201 if is_new else 200)


@router.get("/apps")
def apps(state: State, caller: Reader) -> dict[str, Any]:
    """The newest apps, also those that are over."""
    return {"apps": Apps(state.service, caller).listed()}


@router.get("/apps/{app}")
def show_app(app: str, state: State, caller: Reader) -> dict[str, Any]:
    """One of them; it can be entered when its `state` is RUNNING."""
    return Apps(state.service, caller).show(app)


@router.delete("/apps/{app}", status_code=204)
def end_app(app: str, state: State, caller: Submitter) -> None:
    """Ask for its end."""
    Apps(state.service, caller).end(app)


@router.post("/apps/{app}/ticket")
def ticket(request: Request, app: str, state: State, caller: Reader) -> dict[str, str]:
    """A URL that lets one browser in, once, within a minute."""
    return {"url": entry(request, state, caller, app)}


def opened(state: ServerState, caller: Caller, body: NewApp) -> tuple[dict[str, Any], bool]:
    """What was asked for, and whether it is a new one."""
    apps = Apps(state.service, caller)
    if body.kind != TENSORBOARD and len(body.runs) > 1:
        raise UsageError(f"{len(body.runs)} runs for one {body.kind}", "Name one run.")
    if body.kind == PORT:
        if not body.runs or body.port is None:
            raise UsageError("a port of which run, and which?", "Name a run and a port.")
        state.submissions.need_entry(caller, body.runs[0])
        found = apps.port(body.runs[0], body.member, body.port)
        return found, found["created_at"] == found["used_at"]
    if body.kind == NOTEBOOK:  # first: else one is told to install what would not help
        state.submissions.need_machine(caller)
    need_part(body.kind)
    if body.kind == NOTEBOOK:
        found = apps.notebook(body.runs[0] if body.runs else None)
    else:
        found = apps.tensorboard(body.runs)
    state.app_hosts.wake()
    return found, found["state"] == "WAITING"


def entry(request: Request, state: ServerState, caller: Caller, app: str) -> str:
    """Where a browser is handed over to an app."""
    secret = Apps(state.service, caller).ticket(app, credential_of(request))
    return f"{state.url_of_apps(state.url_for(request), app)}{ENTER}{secret}"
