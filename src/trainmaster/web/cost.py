"""The page of what runs have cost."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs
from trainmaster.service.teams.spending import GROUPS, MONTH
from trainmaster.spec.errors import UsageError
from trainmaster.web.rendering import page

router = APIRouter(include_in_schema=False)
_TIMES: Final = {
    "": "ever",
    MONTH: "this month",
    "7d": "last week",
    "30d": "last 30 days",
    "365d": "last year",
}


@router.get("/cost")
def cost(
    request: Request, found: Runs, by: str = "month", label: str = "", since: str = "", where: str = ""
) -> Response:
    """By month, or what is chosen; what is asked stands in the address."""
    by = f"label:{label}" if label else by
    problem, report = "", None
    try:
        report = found.cost(by, since, where)
    except UsageError as error:  # it is mended where it was written
        problem = str(error)
    rows = report["rows"] if report and by == "run" else []
    table = urlencode({"by": by, "since": since, "where": where, "csv": "true"})
    return page(
        request,
        "cost.html",
        report=report,
        present=found.present([row["key"] for row in rows]),
        problem=problem,
        table=table,
        wanted={"by": by, "label": label, "since": since, "where": where},
        groups=GROUPS,
        times=_TIMES,
    )
