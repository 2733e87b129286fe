"""The list of runs."""

from __future__ import annotations

from itertools import groupby
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Runs, State, Submitter, state_of
from trainmaster.spec.errors import UsageError
from trainmaster.web.rendering import PAGE_ROWS, is_part, page, redirect

router = APIRouter(include_in_schema=False)
#: States and reasons that the list can be limited to.
_STATES: Final = (
    "WAITING",
    "RUNNING",
    "DONE",
    "SUCCEEDED",
    "USER_ERROR",
    "GATE_REFUSED",
    "DENIED",
    "UNHEALTHY",
    "OOM",
    "BUDGET",
    "CANCELLED",
)
_TIMES: Final = {"1h": "last hour", "1d": "last day", "7d": "last week", "30d": "last month"}


@router.get("/")
@router.get("/runs")
def runs(
    request: Request,
    found: Runs,
    cursor: str = "",
    state: str = "",
    name: str = "",
    owner: str = "",
    team: str = "",
    since: str = "",
    where: str = "",
) -> Response:
    """The list; of htmx and of our script that keeps it live only its rows are asked for."""
    wanted = {"state": state, "name": name, "owner": owner, "team": team, "since": since, "where": where}
    chosen = {key: value for key, value in wanted.items() if value}
    problem, listed = "", dict[str, Any](runs=[], next=None)
    try:
        listed = found.page(
            PAGE_ROWS, cursor or None, **{key: value or None for key, value in wanted.items()}
        )
    except UsageError as error:  # who looks for runs mends what was written, where it stands
        if not where or is_part(request):
            raise
        problem = str(error)
    more = urlencode({"cursor": listed["next"], **chosen}) if listed["next"] else ""
    return page(
        request,
        "rows.html" if is_part(request) else "runs.html",
        runs=listed["runs"],
        not_finite=found.not_finite([each["run"] for each in listed["runs"]]),
        more=more,
        wanted=wanted,
        is_chosen=bool(chosen),
        problem=problem,
        server=state_of(request).url_for(request),
        states=_STATES,
        times=_TIMES,
    )


@router.get("/logs")
def search_logs(request: Request, found: Runs, text: str = "", cursor: str = "", since: str = "") -> Response:
    """Lines with a text in the logs of all runs, by run."""
    answer: dict[str, Any] = {"lines": [], "runs": 0, "cut": [], "next": None}
    if text:
        answer = found.search_logs(text, after=cursor or None, since=since or None)
    lines = {run: list(its) for run, its in groupby(answer["lines"], lambda each: str(each["run"]))}
    more = urlencode({"text": text, "since": since, "cursor": answer["next"]}) if answer["next"] else ""
    return page(
        request,
        "log_search.html",
        text=text,
        since=since,
        times=_TIMES,
        lines=lines,
        cut=answer["cut"],
        count=answer["runs"],
        more=more,
    )


@router.post("/runs/cancel")
def cancel_many(
    found: Runs, state: State, caller: Submitter, run: Annotated[list[str] | None, Form()] = None
) -> Response:
    """Ends those that are marked."""
    for each in run or []:
        found.cancel(each, state.environ)
    return redirect("/runs")
