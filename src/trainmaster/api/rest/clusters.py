"""Routes of clusters: what is rented now, and the end of what no run uses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel, Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import (
    Admin,
    Reader,
    Routes,
    ServerState,
    State,
    Submitter,
    asks_places,
    caller_of,
    state_of,
)
from trainmaster.service.doctor import places_checkup
from trainmaster.service.teams.team_runs import TeamClusters
from trainmaster.spec import Recipe

router = Routes(tags=["clusters"])


def _clusters(request: Request) -> TeamClusters:
    return TeamClusters(state_of(request).service, caller_of(request))


Clusters = Annotated[TeamClusters, Depends(_clusters)]


class EndMany(Body):
    """Which clusters are to end; null: all that no run uses."""

    clusters: list[str] | None


class Ended(BaseModel):
    """What the clusters were that ended, and what was told meanwhile."""

    ended: list[dict[str, Any]]
    told: list[str]


class WhichPlaces(Body):
    """Where to look."""

    places: list[str] = Field([], max_length=50, description="names of providers; without, the recipe's")
    recipe: str | None = Field(None, description="YAML of what is to run there: it is asked for its machines")


@router.post("/doctor")
@asks_places
def examine_places(body: WhichPlaces, state: State, caller: Admin) -> dict[str, Any]:
    """What is right and wrong where machines are, and what to do about it; nothing is rented."""
    recipe = Recipe.from_text(body.recipe) if body.recipe else None
    service = state.service.of_team(caller.team or None)
    found = [asdict(each) for each in places_checkup(service, body.places, recipe, state.environ)]
    return {"findings": found, "ok": all(each["ok"] for each in found)}


@router.get("/clusters")
def clusters(found: Clusters, caller: Reader) -> dict[str, Any]:
    """What is rented now, as `trainmaster clusters --json` prints it."""
    return {"clusters": found.listed()}


@router.post("/clusters/end")
@asks_places
def end_many(body: EndMany, found: Clusters, state: State, caller: Submitter) -> Ended:
    """Give back clusters that no run uses."""
    return _ended(found, body.clusters, state)


@router.delete("/clusters/{cluster}")
@asks_places
def end(cluster: str, found: Clusters, state: State, caller: Submitter) -> Ended:
    """Give one back."""
    return _ended(found, [cluster], state)


def _ended(found: TeamClusters, clusters: list[str] | None, state: ServerState) -> Ended:
    told: list[str] = []
    return Ended(ended=found.end(clusters, state.environ, told.append), told=told)
