"""The page of teams and tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, Runs, State
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/team")
def team(request: Request, state: State, found: Runs, caller: Reader) -> Response:
    """Teams, what they have spent, and tokens; who may not manage sees its own team only."""
    teams = [each for each in state.access.teams() if caller.sees(each["team"])]
    is_manager = "manage" in caller.scopes
    tokens = state.access.tokens(caller) if is_manager else []
    return page(request, "team.html", teams=teams, tokens=tokens, is_manager=is_manager)
