"""Routes of volumes: those of the caller's team. New versions are made of uploads."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request

from trainmaster.api.rest.state import caller_of, state_of
from trainmaster.service.teams.team_volumes import TeamVolumes

router = APIRouter(tags=["volumes"])


def volumes_of(request: Request) -> TeamVolumes:
    """The volumes that a caller sees."""
    service = state_of(request).service
    return TeamVolumes(service.home, service.database, caller_of(request))


Volumes = Annotated[TeamVolumes, Depends(volumes_of)]
Version = Annotated[int | None, Query(ge=1)]


@router.get("/volumes")
def volumes(found: Volumes) -> dict[str, Any]:
    """All of them, with their newest versions."""
    return {"volumes": found.all()}


@router.get("/volumes/{name:path}")
def volume(name: str, found: Volumes, version: Version = None) -> dict[str, Any]:
    """One: its versions, and of one of them (the newest without `version`) files, columns and rows."""
    return found.show(name, version)


@router.delete("/volumes/{name:path}", status_code=204)
def remove(name: str, found: Volumes, version: Version = None, whole: bool = False) -> None:
    """Remove a version, or with `whole` all of them."""
    found.remove(name, version, whole=whole)
