"""Pages of workflows: the list, and one with its history, its next times and its buttons."""

from __future__ import annotations

from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, ServerState, State, Submitter
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.runs.overview import TOKEN_S
from trainmaster.service.users.caller import Caller
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/workflows")
def workflows(request: Request, state: State, caller: Reader) -> Response:
    """What the server starts by itself."""
    return page(request, "workflows.html", workflows=state.workflows(caller).listed())


@router.get("/workflows/{name}")
def workflow(request: Request, name: str, state: State, caller: Reader) -> Response:
    """One of them."""
    found, now = state.workflows(caller).show(name), state.service.database.clock_s()
    last = found["last"] if found["state"] == "PAUSED" else None
    # Paused as its right has ended, and not resumed since.
    is_left = last is not None and (last["trigger"], last["at"]) == ("its right", found["changed_at"])
    ends_soon = found["good_until"] is not None and now <= found["good_until"] <= now + TOKEN_S
    return page(
        request,
        "workflow.html",
        workflow=found,
        may_change="run" in caller.scopes,
        is_left=is_left,
        needs_another=is_left or ends_soon,
        address=_address(request, name),
        of_team=request.query_params.get("team"),
    )


@router.post("/workflows/{name}")
def change(
    request: Request, name: str, state: State, caller: Submitter, do: Annotated[str, Form()]
) -> Response:
    """Pauses it, goes on with it, starts a run, makes a new secret, or removes it."""
    those = state.workflows(caller)
    if do == "secret":
        secret = those.rotate(name)["secret"]
        more = "; the one before is good no more"
        return _secret_page(request, name, secret, _address(request, name), more)
    if do == "remove":
        those.remove(name)
        return redirect("/workflows")
    acts = {"pause": those.pause, "resume": those.resume, "start": those.trigger}
    acts["take over"] = partial(those.resume, take_over=True)
    if do in acts:
        found = acts[do](name)
        if do == "take over" and "secret" in found:
            old = found["replaced"]["registered_by"]
            more = f"; the one before, which {old} knows, is good no more: give this one to what sends to it"
            return _secret_page(request, name, found["secret"], _address(request, name), more)
    return redirect(_address(request, name))


def _address(request: Request, name: str) -> str:
    """Of its page, for the same team as this one: other teams may have one of that name."""
    team = request.query_params.get("team")
    return f"/workflows/{quote(name)}" + (f"?team={quote(team)}" if team else "")


def begin(request: Request, state: ServerState, caller: Caller, asked: RunRequest, key: str) -> Response:
    """Runs a recipe once; one with `on` becomes a workflow, or the next revision of one."""
    if not state.submissions.read(caller, asked).on:
        run, _, _ = state.submissions.submit(caller, asked, key)
        return redirect(f"/runs/{quote(run)}")
    found = state.workflows(caller).keep(asked)
    back = f"/workflows/{quote(found['workflow'])}"
    if "secret" in found:
        return _secret_page(request, found["workflow"], found["secret"], back)
    return redirect(back)


def _secret_page(request: Request, name: str, secret: str, back: str, more: str = "") -> Response:
    title, what = "Secret of a webhook", f"The secret of the webhook of {name}{more}."
    return page(request, "shown_once.html", title=title, what=what, secret=secret, back=back)
