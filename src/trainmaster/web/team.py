"""The page of a team: budget, members, invites, tokens, service accounts, sessions; and how people join."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.members import team_of
from trainmaster.api.rest.state import (
    Known,
    Manager,
    Reader,
    State,
    address_of,
    caller_of,
    check_same_site,
)
from trainmaster.service.teams.admission import queue_of
from trainmaster.service.teams.team_budget import OWNER, budgets_of
from trainmaster.service.users.caller import NO_TEAM, ROLES, SCOPES, Caller, UnknownCallerError
from trainmaster.spec.errors import UsageError
from trainmaster.web.rendering import page, redirect
from trainmaster.web.sessions import with_session

router = APIRouter(include_in_schema=False)
_PAGE: Final = "/team"
#: Of each list so much is shown; REST has all of it.
_ROWS: Final = 100


@router.get("/team")
def team(request: Request, state: State, caller: Known) -> Response:
    """Teams and what they have spent; of the chosen one who is in it, and with what he comes in."""
    return _shown(request, state, caller)


def _shown(request: Request, state: State, caller: Caller, **told: Any) -> Response:  # noqa: ANN401
    if caller.team == NO_TEAM:
        return page(request, "team.html", budgets=[], queue=[], about=None, **_own(state, caller), **told)
    caller.need("read")
    database = state.service.database
    money: dict[str, Any] = {
        "budgets": sorted(
            budgets_of(database, caller, database.clock_s()),
            key=lambda each: each.team != (caller.team or OWNER),
        ),
        "queue": queue_of(database, caller),
    }
    return page(request, "team.html", about=_about(state, caller), **money, **_own(state, caller), **told)


def _about(state: State, caller: Caller) -> dict[str, Any] | None:
    """What is shown of the chosen team: to managers more."""
    if not caller.team:
        return None
    accounts, is_manager = state.accounts, "manage" in caller.scopes
    return {
        "name": caller.team,
        "is_manager": is_manager,
        "members": accounts.members(caller.team),
        "roles": [role for role, scopes in ROLES.items() if scopes <= caller.scopes],
        "lacks": sorted(ROLES["manager"] - caller.scopes),
        "invites": _open_ones(state, accounts.invites(caller.team)) if is_manager else [],
        "secrets": state.secrets.names(caller.team) if is_manager else [],
        "logins": state.team_logins.names(caller.team) if is_manager else [],
        "service_accounts": accounts.service_accounts(caller.team) if is_manager else [],
    }


def _own(state: State, caller: Caller) -> dict[str, Any]:
    """Tokens and sessions that the caller sees, and what it may give to a token."""
    has_tokens = caller.team != NO_TEAM and (caller.account is not None or "manage" in caller.scopes)
    return {
        "tokens": _open_ones(state, state.access.tokens(caller)) if has_tokens else None,
        "scopes": [scope for scope in SCOPES if scope in caller.scopes],
        "sessions": state.access.sessions(caller)[:_ROWS],
    }


def _open_ones(state: State, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens and invites that are good still, by the clock that they are judged by."""
    now = state.service.database.clock_s()
    over = [each.get("revoked_at") or each.get("used_by") or each["expires_at"] <= now for each in found]
    return [each for each, is_over in zip(found, over, strict=True) if not is_over][:_ROWS]


@router.post("/team/choose")
def choose(
    request: Request,
    state: State,
    caller: Known,
    team: Annotated[str, Form()],
    workflow: Annotated[str, Form()] = "",
) -> Response:
    """Has this browser be for another of one's teams; then leads to the form that changes its workflow."""
    state.access.choose_team(request.cookies.get(state.cookie, ""), team)
    return redirect(f"/new?workflow={quote(workflow)}" if workflow else _PAGE)


# --- members --------------------------------------------------------------------------------------------


@router.post("/team/members/{user}")
def set_member(user: str, state: State, caller: Manager, role: Annotated[str, Form()] = "") -> Response:
    """Gives a member another role; without one takes him out."""
    if role:
        state.accounts.set_member(team_of(caller), user, role, caller)
    else:
        state.accounts.remove_member(team_of(caller), user, caller)
    return redirect(_PAGE)


@router.post("/team/invites")
def invite(request: Request, state: State, caller: Manager, role: Annotated[str, Form()]) -> Response:
    """Makes a link, and shows it this once."""
    found = state.accounts.invite(team_of(caller), role, caller)
    link = f"{state.url_for(request)}{found['path']}"
    what = (
        f"Send this link to the one who is to be {role} of team {found['team']}. It works once, for 7 days."
    )
    return page(request, "shown_once.html", title="Invite", what=what, secret=link)


@router.post("/team/invites/{invite}/remove")
def remove_invite(invite: str, state: State, caller: Manager) -> Response:
    """Takes an invite back."""
    state.accounts.remove_invite(team_of(caller), invite)
    return redirect(_PAGE)


@router.get("/join")
def join_page(request: Request, state: State, code: str = "") -> Response:
    """What an invite says."""
    return _join_page(request, state, code, "")


@router.post("/join")
def join(
    request: Request, state: State, code: Annotated[str, Form()], name: Annotated[str, Form()] = ""
) -> Response:
    """Takes an invite: who is logged in becomes a member, somebody new a user, too."""
    check_same_site(request, says=False)
    state.access.admit_attempt(address_of(request))
    who = _who(request)
    try:
        joined = state.accounts.join(code, name.strip(), who)
    except UsageError as error:
        state.access.note_wrong_attempt(address_of(request))
        return _join_page(request, state, code, str(error.args[0]))
    if who is not None and who.account is not None:
        if request.cookies.get(state.cookie):
            state.access.choose_team(request.cookies[state.cookie], str(joined.team))
        return redirect(_PAGE)
    token = state.accounts.make_token(
        joined, f"{joined.name[:50]}-{secrets.token_hex(4)}", sorted(joined.scopes)
    )["token"]
    request.state.caller = joined
    what = (
        "With this token you log in again, here and by `trainmaster login`. Keep it; it is good for 90 days."
    )
    answer = page(request, "shown_once.html", title=f"Welcome, {joined.name}", what=what, secret=token)
    return with_session(state, answer, state.access.open_session(joined, address_of(request)))


def _join_page(request: Request, state: State, code: str, error: str) -> Response:
    who = _who(request)
    name = who.account if who is not None else None
    try:
        invited = state.accounts.open_invite(code)
    except UsageError as refusal:
        return page(request, "error.html", 422, title=str(refusal.args[0]), hint=refusal.hint)
    http = 422 if error else 200
    return page(request, "join.html", http, code=code, invited=invited, name=name, error=error)


def _who(request: Request) -> Caller | None:
    try:
        return caller_of(request)
    except UnknownCallerError:
        return None


# --- secrets --------------------------------------------------------------------------------------------


@router.post("/team/secrets")
def put_secret(
    state: State, caller: Manager, name: Annotated[str, Form()], value: Annotated[str, Form()]
) -> Response:
    """Keeps a value for tasks of the team."""
    state.secrets.put(team_of(caller), name.strip(), value, caller.name)
    return redirect(_PAGE)


@router.post("/team/secrets/{secret}/remove")
def remove_secret(secret: str, state: State, caller: Manager) -> Response:
    """Forgets it."""
    state.secrets.remove(team_of(caller), secret)
    return redirect(_PAGE)


@router.post("/team/logins/{provider}/remove")
def remove_login(provider: str, state: State, caller: Manager) -> Response:
    """Forgets the team's own login at a place."""
    state.team_logins.remove(team_of(caller), provider)
    return redirect(_PAGE)


# --- tokens, service accounts, sessions -----------------------------------------------------------------


@router.post("/team/tokens")
def make_token(
    request: Request,
    state: State,
    caller: Reader,
    name: Annotated[str, Form()],
    scope: Annotated[list[str] | None, Form()] = None,
    account: Annotated[str, Form()] = "",
) -> Response:
    """Makes a token, and shows it this once."""
    made = state.accounts.make_token(caller, name.strip(), scope or [], account=account or None)
    days = round((made["expires_at"] - made["created_at"]) / 86400)
    what = f"Programs send it as `Authorization: Bearer TOKEN`. It is kept nowhere, and good for {days} days."
    if maker := made["made_with"]:
        what += f" It ends when the token {maker} does, with which you are logged in."
    return page(request, "shown_once.html", title=f"Token {made['name']}", what=what, secret=made["token"])


@router.post("/team/tokens/{name}/revoke")
def revoke_token(request: Request, name: str, state: State, caller: Reader) -> Response:
    """Ends a token, and says which workflows go on no more because of that."""
    paused = state.access.revoke_token(name, caller)
    return _shown(request, state, caller, revoked=name, paused=paused) if paused else redirect(_PAGE)


@router.post("/team/service-accounts")
def make_service_account(
    state: State, caller: Manager, name: Annotated[str, Form()], role: Annotated[str, Form()]
) -> Response:
    """Makes an account for programs."""
    state.accounts.create_service_account(team_of(caller), name.strip(), role, caller)
    return redirect(_PAGE)


@router.post("/team/service-accounts/{account}/disable")
def disable_service_account(account: str, state: State, caller: Manager) -> Response:
    """Ends one."""
    state.accounts.disable_service_account(account, caller)
    return redirect(_PAGE)


@router.post("/team/sessions/{session}/end")
def end_session(session: str, state: State, caller: Known) -> Response:
    """Logs a browser out."""
    state.access.end_session_of(caller, session)
    return redirect(_PAGE)
