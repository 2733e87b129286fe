"""The page of notifications: who is told what happens to a team's runs."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Manager, State
from trainmaster.service.notifications.webhooks import KINDS
from trainmaster.spec.errors import UsageError
from trainmaster.spec.topics import TOPICS
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)
_PAGE: Final = "/notifications"
_ROWS: Final = 10


@router.get("/notifications")
def notifications(request: Request, state: State, caller: Manager) -> Response:
    """Webhooks, and what came of their last messages."""
    return _page(request, state, caller)


@router.post("/notifications")
def create(
    request: Request,
    state: State,
    caller: Manager,
    target: Annotated[str, Form()],
    kind: Annotated[str, Form()] = "webhook",
    topic: Annotated[list[str] | None, Form()] = None,
) -> Response:
    """Has somebody told; the secret is shown once."""
    try:
        made = state.webhooks.create(caller, kind, target.strip(), topic or [])
    except UsageError as error:
        return _page(request, state, caller, 422, f"{error.args[0]}. {error.hint}")
    return _secret(request, made) if "secret" in made else redirect(_PAGE)


@router.post("/notifications/{webhook}/rotate")
def rotate(request: Request, webhook: str, state: State, caller: Manager) -> Response:
    """A new secret, shown once."""
    return _secret(request, state.webhooks.rotate(caller, webhook))


@router.post("/notifications/{webhook}/test")
def test(webhook: str, state: State, caller: Manager) -> Response:
    """Sends something."""
    state.tests.take(caller.team or "")
    state.webhooks.test(caller, webhook)
    return redirect(_PAGE)


@router.post("/notifications/{webhook}/enable")
def enable(webhook: str, state: State, caller: Manager) -> Response:
    """Tells again."""
    state.webhooks.enable(caller, webhook)
    return redirect(_PAGE)


@router.post("/notifications/{webhook}/remove")
def remove(webhook: str, state: State, caller: Manager) -> Response:
    """Tells no more."""
    state.webhooks.remove(caller, webhook)
    return redirect(_PAGE)


def _page(request: Request, state: State, caller: Manager, http: int = 200, error: str = "") -> Response:
    hooks = [
        {**hook, "deliveries": sent, "arrived": [each for each in sent if _has_arrived(each)]}
        for hook in state.webhooks.listed(caller)
        for sent in [state.webhooks.deliveries(caller, hook["id"], _ROWS)]
    ]
    return page(request, "notifications.html", http, hooks=hooks, kinds=KINDS, topics=TOPICS, error=error)


def _has_arrived(delivery: dict[str, Any]) -> bool:
    """Whether the receiver has taken it; one that was given up has an end, too."""
    return bool(delivery["done_at"]) and delivery["status"].startswith(("HTTP 2", "sent"))


def _secret(request: Request, made: dict[str, Any]) -> Response:
    what = f"Messages to {made['target']} are signed with this secret, as Standard Webhooks has it."
    return page(request, "shown_once.html", title="Secret", what=what, secret=made["secret"], back=_PAGE)
