"""Routes of a team's own logins to places: put there, listed by name, never shown."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainmaster.api.rest.members import team_of
from trainmaster.api.rest.state import Manager, Routes, State, Submitter

router = Routes(tags=["secrets"])


class PlaceLogin(BaseModel):
    """What a place is used with, as `trainmaster team login` collects it."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    files: dict[str, str] = Field(max_length=10, description="their text, by the variables that name them")
    variables: dict[str, str] = Field({}, max_length=40, description="others that the provider reads")
    is_same_account: bool = Field(
        False, description="another key of the account that the team uses there: its runs and machines stay"
    )


@router.get("/team-logins")
def team_logins(state: State, caller: Submitter) -> dict[str, Any]:
    """The places at which the team has an account of its own, since when and by whom."""
    return {"logins": state.team_logins.names(team_of(caller))}


@router.put("/team-logins/{provider}", status_code=204)
def put_team_login(provider: str, body: PlaceLogin, state: State, caller: Manager) -> None:
    """Have the team's runs use an account of its own at a place; it is never shown again."""
    state.team_logins.put(
        team_of(caller),
        provider,
        body.files,
        body.variables,
        caller.name,
        is_same_account=body.is_same_account,
    )


@router.delete("/team-logins/{provider}", status_code=204)
def remove_team_login(provider: str, state: State, caller: Manager) -> None:
    """Forget it: the team uses what the server has there. Refused while runs or machines need it."""
    state.team_logins.remove(team_of(caller), provider)
