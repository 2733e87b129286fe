"""The first page: what needs somebody, what runs and waits, what ended, what the month costs."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs, state_of
from trainmaster.service.runs.overview import SHOWN
from trainmaster.web.rendering import is_part, page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/")
def home(request: Request, found: Runs) -> Response:
    """At one look; addresses of before, with conditions, lead to the list."""
    if request.url.query:
        return redirect(f"/runs?{request.url.query}")
    seen = found.overview()
    is_empty = not any(seen[part]["count"] for part in ("needs_you", "running", "waiting"))
    is_empty = is_empty and not seen["needs_you"]["workflow_count"]
    has_runs = not is_empty or bool(seen["ended"]) or bool(found.page(1)["runs"])
    return page(
        request,
        "home_part.html" if is_part(request) else "home.html",
        seen=seen,
        succeeded=found.page(SHOWN, state="SUCCEEDED")["runs"],
        has_runs=has_runs,
        server=state_of(request).url_for(request),
    )
