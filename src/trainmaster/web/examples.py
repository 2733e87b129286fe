"""The page of examples: one click to a new run."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.registry import registry_of
from trainmaster.api.rest.state import Reader, State, Submitter, asks_places
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.examples import example, examples
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.service.users.caller import NO_TEAM
from trainmaster.spec.errors import NotFoundError
from trainmaster.web.recipe_form import key_of, new_key
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/examples")
def listed(request: Request, state: State, caller: Reader) -> Response:
    """What comes with Trainmaster, with the models of the caller's team that it has trained."""
    found = examples()
    trained: dict[str, Any] = {}
    if caller.team != NO_TEAM:
        registry = registry_of(state, caller)
        for name in {name for each in found for name in each.models}:
            with suppress(NotFoundError):  # it was never run
                trained[name] = registry.version(name)
    return page(request, "examples.html", examples=found, trained=trained, key=new_key())


@router.post("/examples/{name}")
@asks_places
def run(name: str, state: State, caller: Submitter, key: Annotated[str, Form()] = "") -> Response:
    """Runs one unchanged."""
    chosen = example(name)
    code = CodeUploads(state.service.home, caller.team).add_directory(chosen.directory)
    asked = RunRequest(chosen.recipe, code)
    new, _, _ = state.submissions.submit(caller, asked, key_of(key, asked))
    return redirect(f"/runs/{quote(new)}")
