"""The pages of apps: a list, and one that waits for an app and leads there."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.apps import NewApp, entry, opened
from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.service.apps.apps import IDLE_S, PORT, Apps
from trainmaster.service.users.caller import ForbiddenError
from trainmaster.spec.errors import UsageError
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/apps")
def apps(request: Request, state: State, caller: Reader) -> Response:
    """The newest apps, also those that are over."""
    return page(request, "apps.html", apps=Apps(state.service, caller).listed(), idle_s=IDLE_S)


@router.post("/apps")
def open_app(
    state: State,
    caller: Submitter,
    run: Annotated[list[str], Form()],
    kind: Annotated[Literal["tensorboard", "notebook", "port"], Form()] = "tensorboard",
    port: Annotated[str, Form()] = "",
) -> Response:
    """Opens a TensorBoard of runs, a notebook, or a port of a member: `PORT` or `MEMBER:PORT`."""
    member, _, number = port.strip().rpartition(":")
    if kind == PORT and not number.isdecimal():
        raise UsageError(f"{port[:100]!r} is no port", "Write PORT or MEMBER:PORT, such as worker-0:8265.")
    body = NewApp(kind=kind, runs=run, member=member or None, port=int(number) if number else None)
    found, _ = opened(state, caller, body)
    return redirect(f"/apps/{quote(found['app'])}")


@router.get("/apps/{app}")
def show(request: Request, app: str, state: State, caller: Reader) -> Response:
    """Waits for it, and leads there: not at once, as forms of ours may lead to our own origin only."""
    found = Apps(state.service, caller).show(app)
    answer = page(request, "app.html", app=found)
    if found["state"] == "RUNNING":
        answer.headers["refresh"] = f"0; url=/apps/{quote(app)}/open"
    elif found["state"] != "DONE":
        answer.headers["refresh"] = "1"
    return answer


@router.get("/apps/{app}/open")
def enter(request: Request, app: str, state: State, caller: Reader) -> Response:
    """Hands the browser over to the origin of apps."""
    if request.headers.get("sec-fetch-site") not in (None, "same-origin", "none"):
        raise ForbiddenError("this came from another site's page", "Open the app from the page of its run.")
    answer = redirect(entry(request, state, caller, app))
    answer.headers["cache-control"] = "no-store"
    return answer


@router.post("/apps/{app}/end")
def end(app: str, state: State, caller: Submitter) -> Response:
    """Ends it."""
    Apps(state.service, caller).end(app)
    return redirect("/apps")
