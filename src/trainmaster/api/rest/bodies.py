"""What REST and the tools of assistants take and answer alike: one model each, without FastAPI."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

_HALF: Final = re.compile("[\ud800-\udfff]")


class Body(BaseModel):
    """What is sent as JSON: a key that is not known is refused."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*")
    @classmethod
    def check_text(cls, value: Any) -> Any:  # noqa: ANN401 - of any field
        """Refuse half a surrogate pair: JSON can say one, and no file and no answer can.

        Raises:
            ValueError: it has one.
        """
        if isinstance(value, str) and _HALF.search(value):
            raise ValueError("half a surrogate pair is no text")
        return value


class TeamLimits(Body):
    """Limits of a team: those that are not named stay, null takes one away."""

    monthly_usd: float | None = Field(None, gt=0, allow_inf_nan=False)
    runs_at_once: int | None = Field(None, gt=0)
    usd_per_hour: float | None = Field(None, gt=0, allow_inf_nan=False)
    cpus_at_once: int | None = Field(None, gt=0, description="cores of the server's own machine")

    def limits(self) -> dict[str, float]:
        """Those that are named; `math.inf` is none."""
        given = self.model_dump(include=set(TeamLimits.model_fields), exclude_unset=True)
        return {key: math.inf if value is None else value for key, value in given.items()}


class NewRun(Body):
    """What is to be run."""

    recipe: Annotated[str | None, Field(description="the recipe's YAML; null with a plan")] = None
    code: Annotated[str | None, Field(description="SHA-256 of a tar that was sent to /code")] = None
    provider: Annotated[str | None, Field(description="replaces the recipe's `provider`")] = None
    max_usd: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="agrees to rent machines for at most so much"),
    ] = None
    wait: Annotated[
        bool, Field(description="until it fits in the month's budget, instead of being refused")
    ] = False
    keep_s: Annotated[
        float,
        Field(ge=0, le=86400, description="rented machines stay warm so long for the next run, in seconds"),
    ] = 0.0
    plan: Annotated[
        str | None, Field(description="instead of a recipe: runs what was planned, and agrees to its price")
    ] = None


class RunPage(BaseModel):
    """A page of runs, newest first."""

    runs: list[dict[str, Any]]
    next: str | None = Field(description="the `cursor` of the page after it; null after the last")
    older: int = Field(description="how many come after this page")


class NewAsk(Body):
    """A recipe."""

    recipe: str = Field(description="its YAML")
    code: str | None = Field(None, description="SHA-256 of a tar that was sent before")
    provider: str | None = Field(None, description="replaces the recipe's")
    allow_stale: bool = Field(False, description="old prices will do")
    keep_s: float = Field(0.0, ge=0, le=86400, description="as of a run: giving back is not counted")


class MetricCurve(BaseModel):
    """A metric of a task, thinned."""

    experiment: str
    task: int
    parameters: dict[str, Any]
    key: str
    axis: str = Field(description="what `steps` counts: step, epoch, report, or time: seconds")
    steps: list[float]
    values: list[float | None]
    last: float | None
    best: float | None
    goal: str = Field(description="which values are better: min or max")
    has_goal: bool = Field(description="a search or gate looks at it, or its name says which are better")
    least: float | None
    greatest: float | None
    not_finite_since: float | None = Field(description="the step from which on it is NaN or infinite")


class RunCurves(BaseModel):
    """Curves of a run."""

    metrics: list[MetricCurve]
