"""Routes of clusters: what is rented now, and the end of what no run uses."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import (
    Admin,
    Routes,
    Runs,
    ServerState,
    State,
    Submitter,
    asks_places,
)
from trainmaster.service.doctor import places_checkup
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.spec import Recipe

router = Routes(tags=["clusters"])


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
def clusters(runs: Runs) -> dict[str, Any]:
    """What is rented now, as `trainmaster clusters --json` prints it."""
    return {"clusters": runs.clusters()}


@router.post("/clusters/end")
@asks_places
def end_many(body: EndMany, runs: Runs, state: State, caller: Submitter) -> Ended:
    """Give back clusters that no run uses."""
    return _ended(runs, body.clusters, state)


@router.delete("/clusters/{cluster}")
@asks_places
def end(cluster: str, runs: Runs, state: State, caller: Submitter) -> Ended:
    """Give one back."""
    return _ended(runs, [cluster], state)


def _ended(runs: TeamRuns, clusters: list[str] | None, state: ServerState) -> Ended:
    told: list[str] = []
    return Ended(ended=runs.end_clusters(clusters, state.environ, told.append), told=told)
