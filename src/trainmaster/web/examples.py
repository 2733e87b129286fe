"""The page of examples: one click to a new run."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.examples import example, examples
from trainmaster.service.uploads.code_uploads import CodeUploads
from trainmaster.web.form_keys import key_of, new_key
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/examples")
def listed(request: Request, caller: Reader) -> Response:
    """What comes with Trainmaster."""
    return page(request, "examples.html", examples=examples(), key=new_key())


@router.post("/examples/{name}")
def run(name: str, state: State, caller: Submitter, key: Annotated[str, Form()] = "") -> Response:
    """Runs one as it is."""
    chosen = example(name)
    code = CodeUploads(state.service.home, caller.team).add_directory(chosen.directory)
    asked = RunRequest(chosen.recipe, code)
    new, _, _ = state.submissions.submit(caller, asked, key_of(key, asked))
    return redirect(f"/runs/{quote(new)}")
