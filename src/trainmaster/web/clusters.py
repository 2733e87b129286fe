"""The pages of what is rented now, of images of machines, and of places where machines are."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.images import Images, removed
from trainmaster.api.rest.state import Admin, Reader, Runs, State, Submitter, asks_places
from trainmaster.service.doctor import other_places, places_checkup
from trainmaster.web.rendering import page, redirect

router = APIRouter(include_in_schema=False)
#: A browser, or what stands before the server, gives up after a minute.
PLACES_LIMIT_S: Final = 45.0


@router.get("/clusters")
def clusters(request: Request, runs: Runs) -> Response:
    """Clusters that have machines: used, kept warm, or left behind."""
    return page(request, "clusters.html", clusters=runs.clusters())


@router.post("/clusters/end")
@asks_places
def end(runs: Runs, state: State, caller: Submitter, cluster: Annotated[str, Form()]) -> Response:
    """Gives one back that no run uses."""
    runs.end_clusters([cluster], state.environ, lambda _: None)
    return redirect("/clusters")


@router.get("/images")
def images(request: Request, found: Images, caller: Reader) -> Response:
    """Images from which machines start, and what they cost."""
    return page(request, "images.html", images=found.listed())


@router.post("/images/remove")
def remove(
    found: Images, caller: Submitter, image: Annotated[str, Form()], provider: Annotated[str, Form()]
) -> Response:
    """Removes one, once its name was seen beside the question."""
    removed(found, image, provider)
    return redirect("/images")


@router.get("/places")
@asks_places
def places(
    request: Request,
    state: State,
    caller: Admin,
    place: Annotated[list[str], Query(default_factory=list, max_length=50)],
) -> Response:
    """What is right and wrong where machines are, and what to do about it: what `doctor --provider` says."""
    service = state.service.of_team(caller.team or None)
    found = places_checkup(service, place, None, state.environ, limit_s=PLACES_LIMIT_S)
    known = {**dict.fromkeys(place, False), **other_places(state.service.home)}
    return page(request, "places.html", known=known, asked=place, findings=found)
