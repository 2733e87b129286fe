"""The list of runs."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs, State, Submitter
from trainmaster.web.rendering import PAGE_ROWS, is_part, page, redirect

router = APIRouter(include_in_schema=False)
#: States and reasons that the list can be limited to.
_FILTERS: Final = ("WAITING", "RUNNING", "DONE", "SUCCEEDED", "USER_ERROR", "CANCELLED")


@router.get("/")
def runs(
    request: Request,
    found: Runs,
    cursor: str | None = None,
    state: str = "",
    name: str = "",
) -> Response:
    """The list of runs; with ``cursor`` and htmx its next rows."""
    listed = found.page(PAGE_ROWS, cursor or None, state or None, name or None)
    more = urlencode({"cursor": listed["next"] or "", "state": state, "name": name})
    part = is_part(request) and cursor is not None
    values = {"runs": listed["runs"], "more": more if listed["next"] else "", "filters": _FILTERS}
    return page(request, "rows.html" if part else "runs.html", state=state, name=name, **values)


@router.post("/runs/cancel")
def cancel_many(
    found: Runs, state: State, caller: Submitter, run: Annotated[list[str] | None, Form()] = None
) -> Response:
    """Ends those that are marked."""
    for each in run or []:
        found.cancel(each, state.environ)
    return redirect("/")
