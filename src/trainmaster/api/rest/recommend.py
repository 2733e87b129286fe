"""The routes of Anwar et al.: batch size and latency in, number of machines out."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from trainmaster.advisor.papers.measured_table import EPOCH_STEPS, MOST_BYTES, PUBLISHED, MeasuredTable
from trainmaster.advisor.papers.recommend import MOST_WORKERS, RecommendQuery
from trainmaster.advisor.papers.recommend import recommend as recommended
from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, Runs

router = Routes(tags=["recommend"])


class Candidate(BaseModel):
    """A number of workers, each on a machine of its own."""

    workers: int
    time_s: float = Field(description="of `epochs`: as it was measured, else the model's best guess")
    low_s: float = Field(description="5 % quantile of the model")
    high_s: float = Field(description="95 % quantile of the model")
    is_measured: bool = Field(description="with this batch and latency")
    usd_per_hour: float | None = Field(description="null: no price is known")
    usd: float | None = Field(description="for `time_s`")
    objective: float = Field(description="alpha * time_s + beta * usd_per_hour")
    bottleneck: str
    note: str = Field(description="where the time is from, if it is not simply a row of the table")


class Other(BaseModel):
    """What another rule says."""

    rule: str
    machines: int | None = Field(description="null: it says nothing")
    seconds: float | None
    why: str


class Recommendation(BaseModel):
    """How many machines, and what else there is."""

    machines: int
    seconds: float
    rule: str
    is_measured: bool
    usd: float | None = Field(description="null: no price is known")
    usd_per_hour: float | None
    workers: int = Field(description="the same as `machines`")
    profile: str
    points: int = Field(description="how many were measured")
    candidates: list[Candidate] = Field(description="the best first")
    others: list[Other] = Field(description="rules that say something else")
    notes: list[str]


class Question(Body):
    """What is asked."""

    batch: float = Field(ge=1, description="global batch, samples per step")
    latency_ms: float | None = Field(None, ge=0, le=60_000, description="between machines, one way")
    rule: str = Field("model", description="`lookup`, `carried` or `model`")
    epochs: float = Field(1.0, gt=0, description="that times are told for; of a run: of 70 steps")
    alpha: float = Field(1.0, ge=0, description="weight of a second")
    beta: float = Field(0.0, ge=0, description="weight of a US dollar per hour")
    usd_per_hour: list[float] = Field([], max_length=1000, description="of the machines, one by one")
    max_usd_per_hour: float | None = Field(None, ge=0, description="of all machines")
    max_usd: float | None = Field(None, ge=0, description="of all machines, for these epochs")
    max_workers: int | None = Field(None, ge=1, le=MOST_WORKERS)

    def wish(self) -> RecommendQuery:
        """As the recommender has it."""
        given = {name: getattr(self, name) for name in Question.model_fields}
        return RecommendQuery(**{**given, "usd_per_hour": tuple(self.usd_per_hour)})


class RecommendRequest(Question):
    """What is asked of a job that is known."""

    profile: str = Field(PUBLISHED, description="a run, or RUN/EXPERIMENT, whose job is meant")
    steps: int | None = Field(None, ge=1, description=f"instead of `epochs`, {EPOCH_STEPS} each")


class RecommendTableRequest(Question):
    """What is asked of a table of one's own."""

    table: str = Field(
        max_length=MOST_BYTES,
        description="CSV workers,batch_size,latency_ms,time_per_epoch_s; no seconds: it does not fit",
    )


@router.get("/recommend")
def recommend(runs: Runs, asked: Annotated[RecommendRequest, Query()]) -> Recommendation:
    """How many machines train fastest, or best by `alpha` and `beta`; by default for the paper's own job."""
    if asked.steps is not None:
        asked = asked.model_copy(update={"epochs": asked.steps / EPOCH_STEPS})
    return Recommendation(**runs.recommend(asked.wish(), asked.profile))


@router.post("/recommend")
def recommend_by_table(caller: Reader, asked: RecommendTableRequest) -> Recommendation:
    """The same by a table of one's own; nothing of it is kept."""
    return Recommendation(**recommended(MeasuredTable.read(asked.table, "table"), asked.wish()))
