"""The page of what is rented now."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.clusters import Clusters
from trainmaster.api.rest.state import Reader, State, Submitter
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)


@router.get("/clusters")
def clusters(request: Request, found: Clusters, caller: Reader) -> Response:
    """Clusters that have machines: used, kept warm, or left behind."""
    return page(request, "clusters.html", clusters=found.listed())


@router.post("/clusters/end")
def end(found: Clusters, state: State, caller: Submitter, cluster: Annotated[str, Form()]) -> Response:
    """Gives one back that no run uses."""
    found.end([cluster], state.environ, lambda _: None)
    return redirect("/clusters")
