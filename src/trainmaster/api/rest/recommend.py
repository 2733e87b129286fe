"""The route of Anwar et al.: batch size and latency in, number of machines out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from trainmaster.advisor.papers.recommend import EPOCH_STEPS, PUBLISHED, Wish
from trainmaster.api.rest.state import Runs

router = APIRouter(tags=["recommend"])


class Candidate(BaseModel):
    """A number of workers, each on a machine of its own."""

    workers: int
    time_s: float = Field(description="of `steps` steps: as it was measured, else the model's best guess")
    low_s: float = Field(description="5 % quantile of the model")
    high_s: float = Field(description="95 % quantile of the model")
    is_measured: bool
    usd_per_hour: float
    objective: float = Field(description="alpha * time_s + beta * usd_per_hour")
    bottleneck: str


class Recommendation(BaseModel):
    """How many workers, and what else there is."""

    workers: int
    profile: str
    points: int = Field(description="how many were measured")
    candidates: list[Candidate] = Field(description="the best first")


@router.get("/recommend")
def recommend(
    runs: Runs,
    batch: Annotated[float, Query(ge=1, description="global batch, samples per step")],
    latency_ms: Annotated[float, Query(ge=0, le=60_000, description="between machines, one way")] = 0,
    profile: Annotated[str, Query(description="a run, or RUN/EXPERIMENT, whose job is meant")] = PUBLISHED,
    steps: Annotated[int, Query(ge=1, description="that times are told for")] = EPOCH_STEPS,
    alpha: Annotated[float, Query(ge=0, description="weight of a second")] = 1.0,
    beta: Annotated[float, Query(ge=0, description="weight of a US dollar per hour")] = 0.0,
    usd_per_hour: Annotated[float, Query(ge=0, description="of one machine")] = 0.0,
    max_usd_per_hour: Annotated[float | None, Query(ge=0, description="of all machines")] = None,
    max_workers: Annotated[int | None, Query(ge=1, le=1000)] = None,
) -> Recommendation:
    """How many machines train fastest, or best by `alpha` and `beta`; by default for the paper's own job."""
    wish = Wish(batch, latency_ms, steps, alpha, beta, usd_per_hour, max_usd_per_hour, max_workers)
    return Recommendation(**runs.recommend(wish, profile))
