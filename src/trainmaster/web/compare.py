"""Runs beside each other."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs
from trainmaster.service.runs.comparison import compare, varied
from trainmaster.web.figures import parallel_coordinates
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/compare")
def comparison(
    request: Request,
    found: Runs,
    run: Annotated[list[str] | None, Query()] = None,
    metric: str = "",
) -> Response:
    """Curves over each other, best values, parameters, and how the recipes differ."""
    compared = compare(found, run or [])
    metrics = list(compared["metrics"])
    chosen = metric if metric in metrics else next(iter(metrics), "")
    tasks = [(number, task) for number, each in enumerate(compared["runs"]) for task in each["tasks"]]
    names = varied([task for _, task in tasks])
    lines = [
        ({**task["parameters"], chosen: task["metrics"].get(chosen), "run": f"run {number + 1}"}, number)
        for number, task in tasks
    ]
    return page(
        request,
        "compare.html",
        compared=compared,
        has_owners=len({each.get("owner") for each in compared["runs"]}) > 1,
        metrics=metrics,
        chosen=chosen,
        names=names,
        figure=parallel_coordinates(["run", *names, chosen], lines) if chosen else None,
    )
