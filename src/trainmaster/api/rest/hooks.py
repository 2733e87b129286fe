"""Webhooks that start runs of workflows: no token is asked for, as what is sent is signed."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.state import address_of, state_of
from trainmaster.service.users.caller import caller

router = APIRouter(tags=["workflows"])


@router.post("/hooks/{hook}", status_code=202)
async def receive(hook: str, request: Request) -> dict[str, Any]:
    """Start a run: signed with the webhook's secret (Standard Webhooks), or with it as a bearer token.

    The same `webhook-id` starts one only. The body may be anything; it goes nowhere.
    """
    state = state_of(request)
    state.hooks.take(address_of(request))
    body = await request.body()
    workflows = state.workflows(caller("webhook", None, []))
    found = await run_in_threadpool(workflows.receive, hook, dict(request.headers), body)
    request.state.caller = caller(f"webhook of {found['workflow']}", found.pop("team"), [])  # for the audit
    return found
