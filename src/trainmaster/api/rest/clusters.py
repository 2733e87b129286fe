"""Routes of clusters: what is rented now, and the end of what no run uses."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import BaseModel

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, State, Submitter, caller_of, state_of
from trainmaster.service.teams.team_runs import TeamClusters

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


@router.get("/clusters")
def clusters(found: Clusters, caller: Reader) -> dict[str, Any]:
    """What is rented now, as `trainmaster clusters --json` prints it."""
    return {"clusters": found.listed()}


@router.post("/clusters/end")
def end_many(body: EndMany, found: Clusters, state: State, caller: Submitter) -> Ended:
    """Give back clusters that no run uses."""
    told: list[str] = []
    ended = found.end(body.clusters, state.environ, told.append)
    return Ended(ended=ended, told=told)


@router.delete("/clusters/{cluster}")
def end(cluster: str, found: Clusters, state: State, caller: Submitter) -> Ended:
    """Give one back."""
    told: list[str] = []
    ended = found.end([cluster], state.environ, told.append)
    return Ended(ended=ended, told=told)
