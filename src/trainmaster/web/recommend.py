"""The page of the recommender: Anwar's question, his answer as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from trainmaster.advisor.papers.recommend import PUBLISHED, Wish
from trainmaster.api.rest.state import Runs
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web.axes import Axis, Tick, time_unit_s
from trainmaster.web.rendering import duration, number, page

router = APIRouter(include_in_schema=False)
_WIDTH: Final = 420
_HEIGHT: Final = 260
_LEFT: Final = 62
_BOTTOM: Final = 44
_SIDE: Final = 14


class Asked(BaseModel):
    """What is filled in, as it was typed."""

    batch: str = "64000"
    latency_ms: str = "0"
    profile: str = PUBLISHED
    alpha: str = "1"
    beta: str = "0"
    usd_per_hour: str = "0"
    max_usd_per_hour: str = ""

    def wish(self) -> Wish:
        """What is asked; a `ValueError` if one is no number."""
        return Wish(
            float(self.batch),
            float(self.latency_ms),
            alpha=float(self.alpha),
            beta=float(self.beta),
            usd_per_hour=float(self.usd_per_hour),
            max_usd_per_hour=float(self.max_usd_per_hour) if self.max_usd_per_hour.strip() else None,
        )


@router.get("/recommend")
def recommend(request: Request, runs: Runs, asked: Annotated[Asked, Query()]) -> Response:
    """Anwar's question: batch size and latency in, number of machines out."""
    found, trouble = None, ""
    try:
        found = runs.recommend(asked.wish(), asked.profile.strip() or PUBLISHED)
    except ValueError:
        trouble = "Write numbers: of samples, milliseconds, dollars and weights."
    except TrainmasterError as error:
        trouble = str(error)
    figure = None if found is None else workers_figure(found["candidates"])
    http = 422 if trouble else 200
    return page(request, "recommend.html", http, asked=asked, found=found, problem=trouble, figure=figure)


def workers_figure(candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Time against machines, as Anwar's figures 16 to 18 have it, with the model's intervals.

    Args:
        candidates: of `TeamRuns.recommend`, the best first.

    Returns:
        ``ticks`` of the time, ``bars`` (one for each number of machines), and the sizes of the drawing.
    """
    most_s = max(max(each["high_s"], each["time_s"]) for each in candidates)
    y = Axis([0.0, most_s], _HEIGHT - _BOTTOM, _SIDE, time_unit_s(most_s))
    ordered = sorted(candidates, key=lambda each: each["workers"])
    apart = (_WIDTH - _LEFT - _SIDE) / len(ordered)
    bars = [
        {
            "workers": each["workers"],
            "x": round(_LEFT + apart * (place + 0.5), 1),
            "y": y.at(each["time_s"]),
            "low": y.at(each["low_s"]),
            "high": y.at(each["high_s"]),
            "is_best": each is candidates[0],
            "is_measured": each["is_measured"],
        }
        for place, each in enumerate(ordered)
    ]
    ticks = [Tick(y.at(value), duration(value) if most_s > 10 else f"{number(value)} s") for value in y.ticks]
    sizes = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _WIDTH - _SIDE}
    return {"ticks": ticks, "bars": bars, "bottom": _HEIGHT - _BOTTOM, **sizes}
