"""Logging in and out, and the one-time link of a new server."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Known, ServerState, State, address_of, check_same_site, status_of
from trainmaster.service.users.access import SESSION_S
from trainmaster.service.users.caller import SCOPES, ForbiddenError, UnknownCallerError, caller
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
    owner = caller("owner", None, SCOPES)
    return _logged_in(state, state.access.open_session(owner, address_of(request)), "/")


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
    answer.set_cookie(
        _SIGN_ON_COOKIE,
        cookie,
        max_age=int(SIGN_IN_S),
        path=_SIGN_ON,
        secure=state.is_secure,
        httponly=True,
        samesite="lax",
    )
    return answer


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
    answer.delete_cookie(
        _SIGN_ON_COOKIE, path=_SIGN_ON, secure=state.is_secure, httponly=True, samesite="lax"
    )
    return answer


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
    answer = redirect("/login")
    answer.delete_cookie(state.cookie, path="/", secure=state.is_secure, httponly=True, samesite="lax")
    return answer


def _logged_in(state: ServerState, session: str, wanted: str) -> Response:
    # A path of ours, and nothing that a browser may take for another host.
    answer = redirect(wanted if re.fullmatch(r"/([A-Za-z0-9._~%-][A-Za-z0-9._~%/-]*)?", wanted) else "/")
    return with_session(state, answer, session)


def with_session(state: ServerState, answer: Response, session: str) -> Response:
    """An answer that has the browser keep a session."""
    answer.set_cookie(
        state.cookie,
        session,
        max_age=int(SESSION_S),
        path="/",
        secure=state.is_secure,
        httponly=True,
        samesite="lax",
    )
    return answer
