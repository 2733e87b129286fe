"""The page on which a person confirms the code of a command line that logs in."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, address_of, status_of
from trainmaster.spec.errors import NotFoundError
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/device")
def ask(request: Request, caller: Reader, code: str = "") -> Response:
    """Asks for the code."""
    return page(request, "device.html", code=code[:20], client="", is_done=False, error="")


@router.post("/device")
def confirm(
    request: Request,
    state: State,
    caller: Reader,
    code: Annotated[str, Form(max_length=40)],
    client: Annotated[str, Form(max_length=80)] = "",
) -> Response:
    """Shows who waits for the code; with its name it is confirmed."""
    address = address_of(request)
    state.access.admit_attempt(address)
    try:
        found = state.device_logins.client_of(code)
        if client == found:
            state.device_logins.confirm(caller, code)
    except NotFoundError as error:
        state.access.note_wrong_attempt(address)
        values = {"code": code, "client": "", "is_done": False, "error": str(error)}
        return page(request, "device.html", status_of(error), **values)
    return page(request, "device.html", code=code, client=found, is_done=client == found, error="")
