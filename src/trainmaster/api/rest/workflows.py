"""Routes of workflows: recipes that the server keeps and starts itself."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Query, Response
from pydantic import Field

from trainmaster.api.rest.bodies import NewRun
from trainmaster.api.rest.runs import request_of
from trainmaster.api.rest.state import Reader, Routes, State, Submitter

router = Routes(tags=["workflows"])


class NewWorkflow(NewRun):
    """What is to be kept, and what each of its starts submits."""

    now: bool = Field(False, description="start a run at once, too")


@router.get("/workflows")
def workflows(state: State, caller: Reader) -> dict[str, Any]:
    """Those of the team, each with its triggers, their next times and its newest start."""
    return {"workflows": state.workflows(caller).listed()}


@router.post("/workflows", status_code=201)
def register(body: NewWorkflow, state: State, caller: Submitter, answer: Response) -> dict[str, Any]:
    """Keep a recipe with `on`, or the next revision of one (200). `secret` of a webhook is shown this once.

    `plan`, or `max_usd`, agrees to what each of its runs may rent.
    """
    found = state.workflows(caller).keep(request_of(body, state, caller), starts_now=body.now)
    if not found["new"]:
        answer.status_code = 200
    return found


@router.get("/workflows/{name}")
def show(name: str, state: State, caller: Reader) -> dict[str, Any]:
    """One of them, with its recipe and its starts, the newest first."""
    return state.workflows(caller).show(name)


@router.delete("/workflows/{name}", status_code=204)
def remove(name: str, state: State, caller: Submitter) -> None:
    """Forget it and its history; its runs stay."""
    state.workflows(caller).remove(name)


@router.post("/workflows/{name}/pause")
def pause(name: str, state: State, caller: Submitter) -> dict[str, Any]:
    """Start nothing any more; what comes meanwhile is not made up for."""
    return state.workflows(caller).pause(name)


@router.post("/workflows/{name}/resume")
def resume(
    name: str,
    state: State,
    caller: Submitter,
    take_over: Annotated[bool, Query(description="its runs are started in your name from now on")] = False,
) -> dict[str, Any]:
    """Go on, with what comes from now on."""
    return state.workflows(caller).resume(name, take_over=take_over)


@router.post("/workflows/{name}/trigger", status_code=202)
def trigger(
    name: str,
    state: State,
    caller: Submitter,
    key: Annotated[str, Header(alias="Idempotency-Key")] = "",
) -> dict[str, Any]:
    """Start a run by hand; the same `Idempotency-Key` starts one only."""
    return state.workflows(caller).trigger(name, key)


@router.post("/workflows/{name}/secret")
def rotate(name: str, state: State, caller: Submitter) -> dict[str, Any]:
    """A new `secret` of its webhook, shown this once; the one before is good no more."""
    return state.workflows(caller).rotate(name)
