"""Routes of teams, tokens and the audit."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from trainmaster.api.rest.state import Admin, Manager, State
from trainmaster.db import access
from trainmaster.service.access import SCOPES, TOKEN_S, Caller, ForbiddenError
from trainmaster.service.team_runs import MAX_PAGE
from trainmaster.spec.errors import NotFoundError

router = APIRouter(tags=["teams"])


class NewTeam(BaseModel):
    """A team, and what it may spend in a calendar month."""

    model_config = ConfigDict(extra="forbid")

    team: str
    monthly_usd: float | None = Field(None, gt=0, allow_inf_nan=False)


class NewToken(BaseModel):
    """A token."""

    model_config = ConfigDict(extra="forbid")

    name: str
    scopes: list[str] = Field(description=f"of {', '.join(SCOPES)}")
    team: str | None = Field(None, description="whose it is; that of the caller without")
    days: float = Field(TOKEN_S / 86400, gt=0, le=3650)


@router.get("/teams")
def teams(state: State, caller: Manager) -> dict[str, Any]:
    """The caller's team, or all."""
    return {"teams": [team for team in state.access.teams() if caller.sees(team["team"])]}


@router.put("/teams")
def put_team(body: NewTeam, state: State, caller: Admin) -> dict[str, Any]:
    """Make a team, or change what it may spend."""
    return state.access.make_team(body.team, body.monthly_usd)


@router.get("/tokens")
def tokens(state: State, caller: Manager) -> dict[str, Any]:
    """The tokens of the caller's team, or all; what they are is not kept."""
    return {"tokens": [token for token in state.access.tokens() if caller.sees(token["team"])]}


@router.post("/tokens", status_code=201)
def create_token(body: NewToken, state: State, caller: Manager) -> dict[str, Any]:
    """Make a token that may at most what the caller may; `token` is shown this once."""
    team = caller.team if body.team is None else body.team
    if not caller.sees(team):
        raise NotFoundError(f"there is no team {team!r}")
    beyond = set(body.scopes) & set(SCOPES) - caller.scopes
    if beyond:
        raise ForbiddenError(
            f"{caller.name} may not give {', '.join(sorted(beyond))}", "Give scopes that you have yourself."
        )
    return state.access.create_token(body.name, body.scopes, team, body.days * 86400)


@router.delete("/tokens/{name}", status_code=204)
def revoke_token(name: str, state: State, caller: Manager) -> None:
    """End a token, and the sessions that were opened with it."""
    if not any(token["name"] == name and caller.sees(token["team"]) for token in state.access.tokens()):
        raise NotFoundError(f"there is no token {name!r}")
    state.access.revoke_token(name)


@router.get("/audit")
def audit(
    state: State,
    caller: Manager,
    cursor: int | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> dict[str, Any]:
    """Who did, or was refused, what: newest first."""
    rows = [dict(row) for row in access.requests(state.service.database, _of(caller), cursor, limit)]
    return {"audit": rows, "next": rows[-1]["id"] if len(rows) == limit else None}


def _of(caller: Caller) -> str | None:
    """Whose: None for all. What the owner of the home did is the admins' to see."""
    return None if caller.sees_all else caller.team or ""
