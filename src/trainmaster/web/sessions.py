"""Logging in and out: by token, single sign-on, the link of a new server, a code of a command line."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import (
    Known,
    Reader,
    ServerState,
    State,
    address_of,
    check_same_site,
    status_of,
)
from trainmaster.service.users.access import SESSION_S
from trainmaster.service.users.caller import ForbiddenError, UnknownCallerError, home_owner
from trainmaster.service.users.single_sign_on import SIGN_IN_S, SingleSignOn
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)
_SIGN_ON: Final = "/login/oidc"
_SIGN_ON_COOKIE: Final = "trainmaster-sign-on"


@router.get("/setup")
def setup(request: Request, code: str = "") -> Response:
    """What the one-time link shows: a button, so that what only looks at links uses nothing up."""
    return page(request, "setup.html", code=code)


@router.post("/setup")
def set_up(request: Request, state: State, code: Annotated[str, Form()]) -> Response:
    """Log the owner of the home in."""
    check_same_site(request, says=False)
    state.access.admit_attempt(address_of(request))
    try:
        state.setup.remove(code)
    except KeyError:
        state.access.note_wrong_attempt(address_of(request))
        raise UsageError(
            "this link was used already", "Start the server anew: it prints another one."
        ) from None
    return _logged_in(state, state.access.open_session(home_owner(), address_of(request)), "/")


@router.get("/login")
def login(request: Request, state: State, next: str = "/") -> Response:
    """Asks for a token, or sends to the single sign-on."""
    return _login_page(request, state, 200, next, "")


@router.post("/login")
def log_in(
    request: Request,
    state: State,
    token: Annotated[str, Form()],
    next: Annotated[str, Form()] = "/",
) -> Response:
    """Opens a session for a token."""
    check_same_site(request, says=False)
    address = address_of(request)
    state.access.admit_attempt(address)
    try:
        session = state.access.open_session(state.access.by_token(token.strip()), address)
    except (UnknownCallerError, ForbiddenError) as error:
        state.access.note_wrong_attempt(address)
        return _login_page(request, state, status_of(error), next, str(error.args[0]))
    return _logged_in(state, session, next)


@router.get("/login/oidc")
def sign_on(request: Request, state: State, next: str = "/") -> Response:
    """Sends the browser to the provider of the single sign-on."""
    state.logins.take(address_of(request))
    state.access.admit_attempt(address_of(request))
    url, cookie = _single_sign_on(state).begin(_answer_to(request, state), next)
    answer = redirect(url)
    return _with_cookie(state, answer, _SIGN_ON_COOKIE, cookie, SIGN_IN_S, _SIGN_ON)


@router.get("/login/oidc/answer")
def signed_on(
    request: Request, state: State, state_: Annotated[str, Query(alias="state")] = "", code: str = ""
) -> Response:
    """What the provider sends the browser back with."""
    state.access.admit_attempt(address_of(request))
    cookie = request.cookies.get(_SIGN_ON_COOKIE, "")
    try:
        who, wanted = _single_sign_on(state).finish(cookie, state_, code, _answer_to(request, state))
    except UnknownCallerError as error:
        state.access.note_wrong_attempt(address_of(request))
        return _login_page(request, state, status_of(error), "/", str(error.args[0]))
    answer = _logged_in(state, state.access.open_session(who, address_of(request)), wanted)
    return _with_cookie(state, answer, _SIGN_ON_COOKIE, "", 0.0, _SIGN_ON)


def _single_sign_on(state: ServerState) -> SingleSignOn:
    if state.single_sign_on is None:
        raise NotFoundError("this server has no single sign-on", "Log in with a token.")
    return state.single_sign_on


def _answer_to(request: Request, state: ServerState) -> str:
    return f"{state.url_for(request)}{_SIGN_ON}/answer"


def _login_page(request: Request, state: ServerState, http: int, next: str, error: str) -> Response:
    has_sign_on = state.single_sign_on is not None
    return page(request, "login.html", http, next=next, error=error, has_sign_on=has_sign_on)


@router.post("/logout")
def log_out(request: Request, state: State, caller: Known) -> Response:
    """Ends the session."""
    state.access.end_session(request.cookies.get(state.cookie, ""))
    return _with_cookie(state, redirect("/login"), state.cookie, "", 0.0, "/")


def _logged_in(state: ServerState, session: str, wanted: str) -> Response:
    # A path of ours, and nothing that a browser may take for another host.
    answer = redirect(wanted if re.fullmatch(r"/([A-Za-z0-9._~%-][A-Za-z0-9._~%/-]*)?", wanted) else "/")
    return with_session(state, answer, session)


def with_session(state: ServerState, answer: Response, session: str) -> Response:
    """An answer that has the browser keep a session."""
    return _with_cookie(state, answer, state.cookie, session, SESSION_S, "/")


def _with_cookie(
    state: ServerState, answer: Response, name: str, value: str, lasts_s: float, path: str
) -> Response:
    """An answer that has the browser keep a cookie, for no script and no other site; for 0 s: drop it."""
    safe: dict[str, Any] = {"path": path, "secure": state.is_secure, "httponly": True, "samesite": "lax"}
    answer.set_cookie(name, value, max_age=int(lasts_s), expires=None if lasts_s else 0, **safe)
    return answer


@router.get("/device")
def ask(request: Request, caller: Reader, code: str = "") -> Response:
    """Asks for the code."""
    return page(request, "device.html", code=code[:20], client="", is_done=False, error="")


@router.post("/device")
def confirm(
    request: Request,
    state: State,
    caller: Reader,
    code: Annotated[str, Form(max_length=40)],
    client: Annotated[str, Form(max_length=80)] = "",
) -> Response:
    """Shows who waits for the code; with its name it is confirmed."""
    address = address_of(request)
    state.access.admit_attempt(address)
    try:
        found = state.device_logins.client_of(code)
        if client == found:
            state.device_logins.confirm(caller, code)
    except NotFoundError as error:
        state.access.note_wrong_attempt(address)
        values = {"code": code, "client": "", "is_done": False, "error": str(error)}
        return page(request, "device.html", status_of(error), **values)
    return page(request, "device.html", code=code, client=found, is_done=client == found, error="")
