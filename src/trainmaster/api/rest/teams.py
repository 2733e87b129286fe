"""Routes of teams, tokens and the audit."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from trainmaster.api.rest import members, secrets, team_logins
from trainmaster.api.rest.bodies import Body, TeamLimits
from trainmaster.api.rest.state import Admin, Cursor, Manager, Reader, Routes, State
from trainmaster.service.teams.team_runs import MAX_PAGE
from trainmaster.service.users.access import TOKEN_DAYS, TOKEN_S
from trainmaster.service.users.audit import Audit, AuditFilter
from trainmaster.service.users.caller import SCOPES

router = Routes(tags=["teams"])
router.include_router(members.router)
router.include_router(secrets.router)
router.include_router(team_logins.router)


class NewTeam(TeamLimits):
    """A team, and its limits: those that are not named stay, null takes one away."""

    team: str


class NewToken(Body):
    """A token."""

    name: str
    scopes: list[str] = Field(description=f"of {', '.join(SCOPES)}")
    team: str | None = Field(None, description="for whose work; that of the caller without")
    account: str | None = Field(
        None, description="a service account of the team, for admins anybody's; the caller without"
    )
    days: float = Field(TOKEN_S / 86400, gt=0, le=TOKEN_DAYS)
    at_most_usd: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="a wallet: what all runs started with it may cost"
    )


@router.get("/teams")
def teams(state: State, caller: Reader) -> dict[str, Any]:
    """The caller's teams, or all."""
    may = caller.choice
    return {"teams": [team for team in state.access.teams() if may is None or team["team"] in may]}


@router.put("/teams")
def put_team(body: NewTeam, state: State, caller: Admin) -> dict[str, Any]:
    """Make a team, or change what it may spend."""
    return state.access.make_team(body.team, **body.limits())


@router.get("/tokens")
def tokens(state: State, caller: Reader) -> dict[str, Any]:
    """The caller's tokens, a manager those of the team, an admin all; what they are is not kept."""
    return {"tokens": state.access.tokens(caller)}


@router.post("/tokens", status_code=201)
def create_token(body: NewToken, state: State, caller: Reader) -> dict[str, Any]:
    """Make a token that may at most what the caller may; `token` is shown this once."""
    return state.accounts.make_token(
        caller,
        body.name,
        body.scopes,
        body.days * 86400,
        team=body.team,
        account=body.account,
        at_most_usd=body.at_most_usd,
    )


@router.delete("/tokens/{name}")
def revoke_token(name: str, state: State, caller: Reader) -> dict[str, Any]:
    """End a token, what was made with it, and the sessions that were opened with them.

    `paused_workflows` names the workflows that were registered with them.
    """
    return {"paused_workflows": state.access.revoke_token(name, caller)}


@router.get("/audit")
def audit(
    state: State,
    caller: Manager,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    team: Annotated[str | None, Query(description="on whose behalf; an admin sees all without")] = None,
    name: Annotated[str | None, Query(description="who, whole")] = None,
    action: Annotated[str | None, Query(description="a part of method and path")] = None,
    denied: Annotated[bool, Query(description="only what was refused")] = False,
) -> dict[str, Any]:
    """Who did, or was refused, what: newest first."""
    which = AuditFilter(team, name, action, denied)
    return Audit(state.service.database).page(caller, limit, cursor, which)
