"""The page of the recommender: Anwar's question, his answer as a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, UploadFile
from fastapi.responses import Response
from pydantic import BaseModel

from trainmaster.advisor.papers.measured_table import COLUMNS, MOST_BYTES, PUBLISHED, MeasuredTable
from trainmaster.advisor.papers.recommend import RULES, RecommendQuery
from trainmaster.advisor.papers.recommend import recommend as recommended
from trainmaster.api.rest.state import Reader, Runs
from trainmaster.spec.errors import TrainmasterError
from trainmaster.web.axes import FigureAxis, Tick, time_unit_s
from trainmaster.web.rendering import duration, number, page, redirect

router = APIRouter(include_in_schema=False)
_WIDTH: Final = 360
_HEIGHT: Final = 260
_LEFT: Final = 62
_BOTTOM: Final = 44
_SIDE: Final = 14


class RecommendForm(BaseModel):
    """What is filled in, as it was typed."""

    batch: str = "64000"
    latency_ms: str = "0"
    profile: str = PUBLISHED
    rule: str = "model"
    epochs: str = "1"
    alpha: str = "1"
    beta: str = "0"
    usd_per_hour: str = ""
    max_usd_per_hour: str = ""
    max_usd: str = ""
    max_workers: str = ""
    table: str = ""

    def wish(self) -> RecommendQuery:
        """What is asked; a `ValueError` if one is no number."""
        return RecommendQuery(
            float(self.batch),
            _amount(self.latency_ms),
            epochs=float(self.epochs),
            alpha=float(self.alpha),
            beta=float(self.beta),
            usd_per_hour=tuple(float(price) for price in self.usd_per_hour.replace(",", " ").split()),
            max_usd_per_hour=_amount(self.max_usd_per_hour),
            max_usd=_amount(self.max_usd),
            max_workers=int(self.max_workers) if self.max_workers.strip() else None,
            rule=self.rule,
        )


class RecommendTableForm(RecommendForm):
    """The same of a table that is sent: a file, or what was in one before."""

    file: UploadFile | None = None


@router.get("/recommend")
def recommend(request: Request, runs: Runs, asked: Annotated[RecommendForm, Query()]) -> Response:
    """Anwar's question: batch size and latency in, number of machines out."""
    return _answered(request, asked, lambda wish: runs.recommend(wish, asked.profile.strip() or PUBLISHED))


@router.post("/recommend")
def recommend_by_table(
    request: Request,
    caller: Reader,
    form: Annotated[RecommendTableForm, Form(media_type="multipart/form-data")],
) -> Response:
    """The form: a table of one's own is not kept; without one it leads to an address that can be shared."""
    asked, name = RecommendForm(**form.model_dump(exclude={"file"})), "table"
    if form.file is not None and form.file.filename:
        sent, name = form.file.file.read(MOST_BYTES + 1), form.file.filename
        asked = asked.model_copy(update={"table": sent.decode("utf-8-sig", "replace")})
    elif not asked.table.strip():
        return redirect(f"/recommend?{urlencode(asked.model_dump(exclude={'table'}))}")
    asked = asked.model_copy(update={"profile": name})
    return _answered(request, asked, lambda wish: recommended(MeasuredTable.read(asked.table, name), wish))


def _answered(
    request: Request, asked: RecommendForm, answer: Callable[[RecommendQuery], dict[str, Any]]
) -> Response:
    found, trouble = None, ""
    try:
        found = answer(asked.wish())
    except ValueError:
        trouble = "Write numbers: of samples, milliseconds, dollars and weights."
    except TrainmasterError as error:
        trouble = str(error)
    figure = None if found is None else workers_figure(found["candidates"])
    return page(
        request,
        "recommend.html",
        422 if trouble else 200,
        asked=asked,
        found=found,
        problem=trouble,
        figure=figure,
        rules=RULES,
        columns=",".join(COLUMNS),
        time=_time,
    )


def _amount(text: str) -> float | None:
    """Nothing is none."""
    return float(text) if text.strip() else None


def _time(seconds: float) -> str:
    """In words; below ten seconds with its fractions."""
    return duration(seconds) if seconds >= 10 else f"{number(float(seconds))} s"


def workers_figure(candidates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Time against machines, as Anwar's figures 16 to 18 have it, with the model's intervals.

    Args:
        candidates: of `TeamRuns.recommend`, the best first.

    Returns:
        ``ticks`` of the time, ``bars`` (one for each number of machines), and the sizes of the drawing.
    """
    most_s = max(max(each["high_s"], each["time_s"]) for each in candidates)
    y = FigureAxis([0.0, most_s], _HEIGHT - _BOTTOM, _SIDE, time_unit_s(most_s))
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
    ticks = [Tick(y.at(value), _time(value)) for value in y.ticks]
    sizes = {"width": _WIDTH, "height": _HEIGHT, "left": _LEFT, "right": _WIDTH - _SIDE}
    return {"ticks": ticks, "bars": bars, "bottom": _HEIGHT - _BOTTOM, **sizes}
