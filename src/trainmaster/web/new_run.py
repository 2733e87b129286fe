"""The page on which a run is sent."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs, ServerState, State, Submitter
from trainmaster.service.submissions import RunRequest
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web.mistakes import mistakes_of
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)
_EXAMPLE: Final = """\
name: hello
experiments:
  train:
    command: echo "loss 0.5"
"""


@router.get("/new")
def new(request: Request, found: Runs, caller: Submitter, again: str = "") -> Response:
    """A recipe, pasted or that of an earlier run."""
    recipe = found.recipe(again) if again else _EXAMPLE
    return page(request, "new.html", recipe=recipe, max_usd="", **_checked(None))


@router.post("/new/check")
def check(request: Request, state: State, caller: Submitter, recipe: Annotated[str, Form()]) -> Response:
    """What is wrong with a recipe while it is typed."""
    return page(request, "checked.html", **_checked(_mistake(state, caller, recipe)))


@router.post("/new")
def send(
    request: Request,
    state: State,
    caller: Submitter,
    recipe: Annotated[str, Form()],
    max_usd: Annotated[str, Form()] = "",
) -> Response:
    """Runs it."""
    try:
        amount = float(max_usd) if max_usd.strip() else None
        run, _, _ = state.submissions.submit(caller, RunRequest(recipe, None, None, amount))
    except (TrainmasterError, ValueError) as error:
        return page(request, "new.html", 422, recipe=recipe, max_usd=max_usd, **_checked(error))
    return redirect(f"/runs/{quote(run)}")


def _mistake(state: ServerState, who: Submitter, recipe: str) -> Exception | None:
    try:
        state.submissions.read(who, RunRequest(recipe))
    except TrainmasterError as error:
        return error
    return None


def _checked(error: Exception | None) -> dict[str, Any]:
    return {"mistakes": mistakes_of(error)}
