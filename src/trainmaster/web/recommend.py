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
from trainmaster.service.users.caller import Caller
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.web.axes import FigureAxis, Tick, time_unit_s
from trainmaster.web.recipe_form import mistakes_of
from trainmaster.web.rendering import duration, number, page, redirect

router = APIRouter(include_in_schema=False)
_WIDTH: Final = 360
_HEIGHT: Final = 260
_LEFT: Final = 62
_BOTTOM: Final = 44
_SIDE: Final = 14
_NUMBERS: Final = (
    *("batch", "latency_ms", "epochs", "alpha", "beta"),
    *("max_usd_per_hour", "max_usd", "max_workers"),
)


class RecommendForm(BaseModel):
    """What is filled in, as it was typed."""

    batch: str = "64000"
    latency_ms: str = ""
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
        """What is asked; an empty field is what it begins with.

        Raises:
            UsageError: one is no number.
        """
        typed = {name: getattr(self, name).strip() or self._begins(name) for name in _NUMBERS}
        found: dict[str, Any] = {name: _number(name, text) for name, text in typed.items() if text}
        prices = self.usd_per_hour.replace(",", " ").split()
        found["usd_per_hour"] = tuple(_number("usd_per_hour", price) for price in prices)
        return RecommendQuery(**found, rule=self.rule)

    @classmethod
    def _begins(cls, name: str) -> str:
        return str(cls.model_fields[name].default)


class RecommendTableForm(RecommendForm):
    """The same of a table that is sent: a file, or what was in one before."""

    file: UploadFile | None = None


@router.get("/recommend")
def recommend(
    request: Request, runs: Runs, caller: Reader, asked: Annotated[RecommendForm, Query()]
) -> Response:
    """Anwar's question: batch size and latency in, number of machines out."""
    return _answered(
        request, caller, asked, lambda wish: runs.recommend(wish, asked.profile.strip() or PUBLISHED)
    )


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
    return _answered(
        request, caller, asked, lambda wish: recommended(MeasuredTable.read(asked.table, name), wish)
    )


def _answered(
    request: Request, caller: Caller, asked: RecommendForm, answer: Callable[[RecommendQuery], dict[str, Any]]
) -> Response:
    found, trouble = None, ""
    try:
        found = answer(asked.wish())
    except TrainmasterError as error:
        trouble = "\n".join(mistakes_of(error, caller))
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


def _number(name: str, text: str) -> float:
    """What was typed.

    Raises:
        UsageError: it is no number.
    """
    try:
        return int(text) if name == "max_workers" else float(text)
    except ValueError:
        raise UsageError(f"{name}: found {text!r}", "Write a number, such as 20.") from None


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
