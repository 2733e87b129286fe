"""The list of runs."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, Runs, State, Submitter, asks_places
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.runs.run_table import RunTable, TableQuery
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.service.users.saved_views import SavedViews, as_written
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.labels import parsed_changes
from trainmaster.web.recipe_form import agreed_usd, key_of, mistakes_of, new_key, without_triggers
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


@router.get("/runs")
def runs(
    request: Request,
    found: Runs,
    server: State,
    caller: Reader,
    state: str = "",
    name: str = "",
    owner: str = "",
    team: str = "",
    since: str = "",
    where: str = "",
    sort: str = "",
    page_number: Annotated[int, Query(alias="page", ge=1)] = 1,
    column: Annotated[list[str] | None, Query()] = None,
) -> Response:
    """The table; of htmx and of our script that keeps it live only its rows are asked for."""
    wanted = {"state": state, "name": name, "owner": owner, "team": team, "since": since, "where": where}
    wish = TableQuery(PAGE_ROWS, page_number, sort, tuple(column or ()))
    problem = ""
    chosen = {key: value or None for key, value in wanted.items()}
    try:
        table = found.table(wish, **{**chosen, "where": as_written(where) or None})
    except UsageError as error:  # who looks for runs mends what was written, where it stands
        if not where or is_part(request):
            raise
        problem, table = str(error), RunTable([], 0, 1, 1, (), (), {}, {}, {}, {})
    ids = [each["run"] for each in table.runs]
    address = _Address({**wanted, "sort": sort}, column or ())
    return page(
        request,
        "rows.html" if is_part(request) else "runs.html",
        table=table,
        not_finite=found.not_finite(ids),
        ends=_ends(ids),
        address=address,
        query=address().partition("?")[2],
        views=[] if is_part(request) else SavedViews(server.service.database, caller).listed(),
        wanted=wanted,
        sort=sort,
        is_chosen=any(wanted.values()),
        problem=problem,
        states=_STATES,
        times=_TIMES,
    )


class _Address:
    """Of this list with something changed."""

    def __init__(self, wanted: Mapping[str, str], columns: Sequence[str]) -> None:
        self._wanted, self._columns = wanted, columns

    def __call__(self, **changed: object) -> str:
        kept = {key: value for key, value in {**self._wanted, **changed}.items() if value not in ("", 1)}
        asked = urlencode([*kept.items(), *(("column", each) for each in self._columns)])
        return f"/runs?{asked}" if asked else "/runs"


def _ends(ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Names without and with what tells runs of one name apart: at least four digits of it.

    >>> _ends(["a-0123456789", "a-01239", "b"])
    {'a-0123456789': ('a-', '0123'), 'a-01239': ('a-01239', ''), 'b': ('b', '')}
    """
    parts = {each: re.fullmatch(r"(.+-)([0-9a-f]{10})", each) for each in ids}
    tails = [found[2] for found in parts.values() if found]
    length = next((n for n in range(4, 10) if len({tail[:n] for tail in tails}) == len(tails)), 10)
    return {each: (found[1], found[2][:length]) if found else (each, "") for each, found in parts.items()}


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


@router.post("/views")
def save_view(
    state: State, caller: Reader, view: Annotated[str, Form()], query: Annotated[str, Form()] = ""
) -> Response:
    """Keeps what is looked for under a name."""
    return redirect(f"/runs?{SavedViews(state.service.database, caller).put(view, query)}")


@router.post("/views/remove")
def remove_view(
    state: State, caller: Reader, gone: Annotated[str, Form()], query: Annotated[str, Form()] = ""
) -> Response:
    """Forgets one."""
    SavedViews(state.service.database, caller).remove(gone)
    return redirect(f"/runs?{query}")


@router.get("/again")
def again(
    request: Request, found: Runs, caller: Submitter, run: Annotated[list[str] | None, Query()] = None
) -> Response:
    """Of one its recipe, to be changed; of several what they took and cost, and asks."""
    if run and len(run) == 1:
        return redirect(f"/runs/{quote(run[0])}/again")
    return _again_page(request, found, run or [])


@router.post("/again")
@asks_places
def send_again(
    request: Request,
    found: Runs,
    state: State,
    caller: Submitter,
    run: Annotated[list[str] | None, Form()] = None,
    max_usd: Annotated[str, Form()] = "",
    key: Annotated[str, Form()] = "",
) -> Response:
    """Runs each as it was, with its code; of those that cannot be run it is said why."""
    begun: dict[str, str] = {}
    refused: dict[str, str] = {}
    for each in dict.fromkeys(run or []):
        try:
            recipe = without_triggers(found.recipe(each))
            most_usd = agreed_usd(max_usd, recipe)
            asked = RunRequest(recipe, state.submissions.code_of(caller, each), None, most_usd)
            once = key_of(f"{key[:32]}-{each[-30:]}", asked)  # the end of a run's name is its own
            begun[each] = state.submissions.submit(caller, asked, once)[0]
        except TrainmasterError as error:
            refused[each] = " ".join(mistakes_of(error, caller))
    return _again_page(request, found, run or [], begun, refused, max_usd) if refused else redirect("/runs")


def _again_page(
    request: Request,
    found: TeamRuns,
    runs: Sequence[str],
    begun: Mapping[str, str] = types.MappingProxyType({}),
    refused: Mapping[str, str] = types.MappingProxyType({}),
    max_usd: str = "",
) -> Response:
    there = found.present(runs)
    return page(
        request,
        "again_many.html",
        422 if refused else 200,
        runs=[found.status(each) for each in dict.fromkeys(runs) if each in there],
        gone=[each for each in dict.fromkeys(runs) if each not in there],
        begun=begun,
        refused=refused,
        max_usd=max_usd,
        key=new_key(),
    )


@router.post("/runs/label")
def label_many(
    found: Runs,
    state: State,
    caller: Submitter,
    run: Annotated[list[str] | None, Form()] = None,
    label: Annotated[str, Form(max_length=400)] = "",
) -> Response:
    """Writes a label on those that are marked; ``KEY-`` takes it away."""
    changes = parsed_changes([label.strip()])
    for each in run or []:
        found.describe(each, changes, None, state.environ)
    return redirect("/runs")


@router.post("/runs/cancel")
def cancel_many(
    found: Runs, state: State, caller: Submitter, run: Annotated[list[str] | None, Form()] = None
) -> Response:
    """Ends those that are marked."""
    for each in run or []:
        found.cancel(each, state.environ)
    return redirect("/runs")
