"""Routes of webhooks: who is told what happens to a team's runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Manager, Routes, State
from trainmaster.service.notifications.webhooks import SHOWN, Kind
from trainmaster.spec.topics import TOPICS

router = Routes(tags=["webhooks"])


class NewWebhook(Body):
    """Addresses that events are sent to."""

    target: str = Field(max_length=2000, description="an https URL; of e-mail an address")
    kind: Kind = "webhook"
    topics: list[str] = Field([], description=f"of {', '.join(TOPICS)}; all without")


@router.get("/webhooks")
def webhooks(state: State, caller: Manager) -> dict[str, Any]:
    """Those of the team."""
    return {"webhooks": state.webhooks.listed(caller)}


@router.post("/webhooks", status_code=201)
def create(body: NewWebhook, state: State, caller: Manager) -> dict[str, Any]:
    """Have somebody told; `secret`, with which messages are signed, is shown this once."""
    return state.webhooks.create(caller, body.kind, body.target, body.topics)


@router.get("/webhooks/{webhook}")
def show(webhook: str, state: State, caller: Manager) -> dict[str, Any]:
    """One of them."""
    return state.webhooks.show(caller, webhook)


@router.delete("/webhooks/{webhook}", status_code=204)
def remove(webhook: str, state: State, caller: Manager) -> None:
    """Tell no more."""
    state.webhooks.remove(caller, webhook)


@router.post("/webhooks/{webhook}/rotate")
def rotate(webhook: str, state: State, caller: Manager) -> dict[str, Any]:
    """A new `secret`, shown this once; for a day messages are signed with the one before, too."""
    return state.webhooks.rotate(caller, webhook)


@router.post("/webhooks/{webhook}/enable")
def enable(webhook: str, state: State, caller: Manager) -> dict[str, Any]:
    """Tell again, after it was disabled since it took nothing for a day."""
    return state.webhooks.enable(caller, webhook)


@router.post("/webhooks/{webhook}/test", status_code=202)
def test(webhook: str, state: State, caller: Manager) -> dict[str, Any]:
    """Send something; `deliveries` shows what came of it."""
    state.tests.take(caller.team or "")
    state.webhooks.test(caller, webhook)
    return {"webhook": webhook}


@router.get("/webhooks/{webhook}/deliveries")
def deliveries(
    webhook: str, state: State, caller: Manager, limit: Annotated[int, Query(ge=1, le=1000)] = SHOWN
) -> dict[str, Any]:
    """What it was told, and what it is to be told: newest first."""
    return {"deliveries": state.webhooks.deliveries(caller, webhook, limit)}
