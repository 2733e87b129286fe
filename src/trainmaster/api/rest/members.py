"""Routes of people: who one is, users, members of teams, invites, service accounts, sessions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Admin, Known, Manager, Reader, Routes, State
from trainmaster.service.users.accounts import INVITE_DAYS, INVITE_S
from trainmaster.service.users.caller import NO_TEAM, ROLES, Caller
from trainmaster.spec.errors import UsageError

router = Routes(tags=["people"])
Role = Annotated[str, Field(description=f"one of {', '.join(ROLES)}")]


class NewUser(Body):
    """A user."""

    name: str
    is_admin: bool = False


class UserChange(Body):
    """What is to be otherwise; null leaves what is."""

    is_disabled: bool | None = None
    is_admin: bool | None = None


class MemberRole(Body):
    """What a member may."""

    role: Role


class NewInvite(Body):
    """A link that lets one person in."""

    role: Role = "member"
    days: float = Field(INVITE_S / 86400, gt=0, le=INVITE_DAYS)


class NewServiceAccount(Body):
    """An account for programs of the team."""

    name: str
    role: Role = "member"


@router.get("/me")
def me(caller: Known) -> dict[str, Any]:
    """Who the caller is, what it may now, and the teams to choose from (`?team=`)."""
    return {
        "name": caller.name,
        "account": caller.account,
        "token": caller.token,
        "team": caller.team or None,
        "role": caller.roles.get(caller.team or NO_TEAM),
        "teams": dict(caller.roles),
        "scopes": sorted(caller.scopes),
    }


@router.get("/users")
def users(
    state: State,
    caller: Admin,
    services: Annotated[bool, Query(description="then also the service accounts of all teams")] = False,
) -> dict[str, Any]:
    """All users by name, with their roles."""
    more = state.accounts.service_accounts(None) if services else []
    return {"users": [*state.accounts.users(), *more]}


@router.post("/users", status_code=201)
def create_user(body: NewUser, state: State, caller: Admin) -> dict[str, Any]:
    """Make a user."""
    return state.accounts.create_user(body.name, is_admin=body.is_admin)


@router.patch("/users/{user}")
def change_user(user: str, body: UserChange, state: State, caller: Admin) -> dict[str, Any]:
    """Shut a user out or let him in again; make him an admin, or none."""
    return state.accounts.change_user(user, is_disabled=body.is_disabled, is_admin=body.is_admin)


@router.get("/teams/{team}/members")
def members(team: str, state: State, caller: Reader) -> dict[str, Any]:
    """Who is in the team."""
    return {"members": state.accounts.members(team)}


@router.put("/teams/{team}/members/{user}")
def set_member(team: str, user: str, body: MemberRole, state: State, caller: Manager) -> dict[str, Any]:
    """Give a member another role; an admin of the server also adds users."""
    state.accounts.set_member(team, user, body.role, caller)
    return {"members": state.accounts.members(team)}


@router.delete("/teams/{team}/members/{user}", status_code=204)
def remove_member(team: str, user: str, state: State, caller: Manager) -> None:
    """Take somebody out of the team, at once."""
    state.accounts.remove_member(team, user, caller)


@router.get("/invites")
def invites(state: State, caller: Manager) -> dict[str, Any]:
    """The invites of the team, the newest first."""
    return {"invites": state.accounts.invites(team_of(caller))}


@router.post("/invites", status_code=201)
def invite(body: NewInvite, state: State, caller: Manager) -> dict[str, Any]:
    """Make a link that lets one person in; `path` is shown this once."""
    return state.accounts.invite(team_of(caller), body.role, caller, body.days * 86400)


@router.delete("/invites/{invite}", status_code=204)
def remove_invite(invite: str, state: State, caller: Manager) -> None:
    """Take an invite back."""
    state.accounts.remove_invite(team_of(caller), invite)


@router.get("/service-accounts")
def service_accounts(state: State, caller: Manager) -> dict[str, Any]:
    """The service accounts of the team."""
    return {"service_accounts": state.accounts.service_accounts(team_of(caller))}


@router.post("/service-accounts", status_code=201)
def create_service_account(body: NewServiceAccount, state: State, caller: Manager) -> dict[str, Any]:
    """Make an account for programs of the team; `POST /tokens` with `account` makes its tokens."""
    return state.accounts.create_service_account(team_of(caller), body.name, body.role, caller)


@router.delete("/service-accounts/{account}", status_code=204)
def disable_service_account(account: str, state: State, caller: Manager) -> None:
    """End it: its tokens allow nothing any more."""
    state.accounts.disable_service_account(account, caller)


@router.get("/sessions")
def sessions(state: State, caller: Reader) -> dict[str, Any]:
    """One's sessions of browsers that are not over; an admin's: everybody's."""
    return {"sessions": state.access.sessions(caller)}


@router.delete("/sessions/{session}", status_code=204)
def end_session(session: str, state: State, caller: Reader) -> None:
    """Log a browser out."""
    state.access.end_session_of(caller, session)


def team_of(caller: Caller) -> str:
    """For which team this is.

    Raises:
        UsageError: the caller is not in one, and has chosen none.
    """
    if not caller.team:
        raise UsageError("this is about one team", "Say which: add ?team=NAME.")
    return caller.team
