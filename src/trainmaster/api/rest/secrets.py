"""Routes of a team's secrets: written, listed by name, never shown."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from trainmaster.api.rest.members import team_of
from trainmaster.api.rest.state import Manager, Routes, State, Submitter

router = Routes(tags=["secrets"])


class SecretValue(BaseModel):
    """What tasks get."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    value: str


@router.get("/secrets")
def secrets(state: State, caller: Submitter) -> dict[str, Any]:
    """The names of the team's secrets, since when and by whom."""
    return {"secrets": state.secrets.names(team_of(caller))}


@router.put("/secrets/{secret}", status_code=204)
def put_secret(secret: str, body: SecretValue, state: State, caller: Manager) -> None:
    """Keep a value for tasks of the team whose recipes name it in `secrets`; it is never shown again."""
    state.secrets.put(team_of(caller), secret, body.value, caller.name)


@router.delete("/secrets/{secret}", status_code=204)
def remove_secret(secret: str, state: State, caller: Manager) -> None:
    """Forget it; tasks that were started have it still."""
    state.secrets.remove(team_of(caller), secret)
