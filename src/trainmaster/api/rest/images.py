"""Routes of images of machines: which there are, and their end. A run with ``bake`` makes them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request

from trainmaster.api.rest.state import Reader, Routes, State, Submitter, asks_places, caller_of, state_of
from trainmaster.service.images import HomeImages
from trainmaster.spec.errors import NotFoundError

router = Routes(tags=["images"])


def _images(request: Request) -> HomeImages:
    state = state_of(request)
    caller = caller_of(request)
    return HomeImages(state.service.of_team(caller.team or None), state.environ, caller.sees)


Images = Annotated[HomeImages, Depends(_images)]
Provider = Annotated[str | None, Query(description="That has them; else all that can be asked.")]


@router.get("/images")
@asks_places
def images(found: Images, state: State, caller: Reader, provider: Provider = None) -> dict[str, Any]:
    """Images that were made of machines, as `trainmaster image ls --json` prints them."""
    return {"images": found.listed(provider)}


@router.delete("/images/{image}")
@asks_places
def remove(
    image: str, found: Images, state: State, caller: Submitter, provider: Provider = None
) -> dict[str, Any]:
    """Remove one; what it was."""
    return {"removed": removed(found, image, provider)}


def removed(found: HomeImages, image: str, provider: str | None) -> list[dict[str, Any]]:
    """What an image was that is removed.

    Raises:
        NotFoundError: there is none, or it is another team's.
    """
    if not (gone := found.remove(image, provider)):
        raise NotFoundError(f"there is no image {image!r}", "`trainmaster image ls` lists them.")
    return gone
