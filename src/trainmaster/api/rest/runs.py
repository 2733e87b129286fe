"""Routes of runs: send, list, show, end, follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from trainmaster.api.rest.bodies import Body, MetricCurve, NewRun, RunCurves, RunPage
from trainmaster.api.rest.hidden_places import TYPED
from trainmaster.api.rest.hubs import HEADERS
from trainmaster.api.rest.state import (
    Following,
    Reader,
    Routes,
    Runs,
    ServerState,
    State,
    Submitter,
    Transfer,
    asks_places,
)
from trainmaster.service import capabilities_of
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.dry_run import dry_run as dry_run_of
from trainmaster.service.places.checking import check_places
from trainmaster.service.run_planning import check_services_and_sinks
from trainmaster.service.runs.log_search import LINES
from trainmaster.service.teams.team_runs import MAX_PAGE, POINTS, TeamRuns
from trainmaster.service.users.caller import Caller
from trainmaster.spec.configuration import configured_rows
from trainmaster.spec.errors import TrainmasterError, UsageError
from trainmaster.spec.labels import joined
from trainmaster.spec.recipe_source import own_configuration
from trainmaster.spec.schema import recipe_schema

router = Routes(tags=["runs"])


class ForeignFile(Body):
    """A file of another tool."""

    source: str = Field(description="what stands in it, or a line such as of torchrun")
    file: str = Field("job", max_length=255, description="its name: .radl says what it is")


class RunAgain(Body):
    """What is different from now on."""

    max_usd: Annotated[
        float | None,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="its `budget.total`, of all that it costs and has cost; null: as before",
        ),
    ] = None


#: Without a body.
_AS_BEFORE = RunAgain()


class CodeToRun(Body):
    """Code without a recipe."""

    code: str = Field(description="SHA-256 of a tar that was sent to /code")
    script: str | None = Field(None, description="below it; without it one is looked for")
    name: str = Field("first", max_length=255, description="of the recipe")


class Cancelled(BaseModel):
    """Which runs were asked to end, and which could not be."""

    cancelled: list[str]
    failed: dict[str, str]


class CancelMany(Body):
    """Which runs are to end."""

    runs: list[str] = Field(max_length=MAX_PAGE)


class CancelTasks(Body):
    """Which tasks of a run are to end."""

    tasks: list[str] = Field(
        min_length=1, max_length=MAX_PAGE, description="such as sweep/3; 3 alone in a run of one experiment"
    )


class RunDescription(Body):
    """What is changed of what people write on a run."""

    labels: dict[str, str | None] = Field(default={}, description="null takes one away; others stay")
    note: str | None = Field(default=None, description="null leaves it; an empty one takes it away")


class ApprovalAnswer(Body):
    """What a person says of an experiment that waits for that."""

    approve: bool = Field(description="it begins; else it ends as DENIED")
    why: str = Field(default="", max_length=1000, description="told with it")


def request_of(body: NewRun, state: ServerState, caller: Caller) -> RunRequest:
    """What is to be run.

    Raises:
        UsageError: neither a recipe nor a plan is there, or both.
    """
    if body.plan is not None and body.recipe is None and body.code is None and body.provider is None:
        planned = state.quotes.accept(caller, body.plan, body.max_usd)
        return replace(planned, wait=body.wait, keep_s=body.keep_s or planned.keep_s)
    if body.plan is not None or body.recipe is None:
        raise UsageError(
            "a run needs a recipe or a plan", "A plan has its recipe, code and provider: leave them out."
        )
    given = (body.recipe, body.code, body.provider, body.max_usd)
    return RunRequest(*given, wait=body.wait, keep_s=body.keep_s)


@router.post("/runs", status_code=201)
@asks_places
def send(
    body: NewRun,
    state: State,
    caller: Submitter,
    response: Response,
    key: Annotated[str, Header(alias="Idempotency-Key")] = "",
) -> dict[str, Any]:
    """Run a recipe, or a plan. The same `Idempotency-Key` is the same request: accepted once, then 200.

    A plan is accepted once, whatever the key is.
    """
    request = request_of(body, state, caller)
    key = f"accepts {body.plan}" if body.plan is not None else key
    run, is_new, notes = state.submissions.submit(caller, request, key)
    if not is_new:
        response.status_code = 200
    response.headers["location"] = f"/api/v1/runs/{run}"
    return {**state.service.status(run), **_accepted(state, run, notes)}


def _accepted(state: ServerState, run: str, notes: list[str]) -> dict[str, Any]:
    provider = str(state.service.database.run_row(run)["provider"])
    return {"notes": notes, "rents": not capabilities_of(provider).is_here}


@router.post("/recipes/check")
@asks_places
def check(body: NewRun, state: State, caller: Reader) -> dict[str, Any]:
    """Whether a recipe is right: 422 with all mistakes, each with line and column, else what was read.

    Secrets, volumes, models, machines and budget are looked for as the caller's team has them, and code is
    not. `notes` says which image `container: auto` is, and which machines lack the recipe's framework.
    """
    recipe = state.submissions.read(caller, request_of(body, state, caller))
    service = state.service.of_team(caller.team)
    check_services_and_sinks(service, recipe, state.environ)
    return {**recipe.summary(), "notes": check_places(service, recipe, state.environ, has_code=False)}


@router.post("/runs/dry-run")
@asks_places
def dry_run(body: NewRun, state: State, caller: Submitter) -> dict[str, Any]:
    """What a run would do: `requests` that renting would send, `processes` with their variables, `notes`.

    Where the recipe names several places, also `places`: a row of each with its quote, its wait, and why it
    is not taken. Nothing is rented, sent or written. What machines are given at their start (`UserData`) is
    left out.
    """
    return planned(state, caller, request_of(body, state, caller))


def planned(state: ServerState, caller: Caller, request: RunRequest) -> dict[str, Any]:
    """What a run would do, by what the caller's team knows."""
    service = state.service.of_team(caller.team or None)
    recipe = state.submissions.read(caller, request)
    with state.submissions.processor_limit(caller):
        plan = dry_run_of(service, recipe, state.environ)
    for each in plan["requests"]:
        each.get("parameters", {}).pop("UserData", None)
    return plan


@router.post("/recipes/convert")
def convert(body: ForeignFile, state: State, caller: Reader) -> dict[str, Any]:
    """A recipe of a file of another tool, as `trainmaster convert --json` prints it; of that file alone."""
    return state.submissions.convert(caller, body.source, body.file)


@router.post("/recipes/init")
def init(body: CodeToRun, state: State, caller: Submitter) -> dict[str, Any]:
    """A first recipe for code that was sent, as `trainmaster init --json` prints it; nothing of it is run.

    403 on a server that is for others, too.
    """
    return state.submissions.first_recipe(caller, body.code, body.script, body.name)


@router.get("/recipes/schema")
def schema(_: Reader) -> dict[str, Any]:
    """The JSON Schema of recipes, as `trainmaster schema` prints it."""
    return recipe_schema()


@router.get("/configuration")
def configuration(state: State, caller: Reader) -> dict[str, list[dict[str, Any]]]:
    """What this server takes where a recipe says nothing, as `trainmaster config show` tells it."""
    rows = configured_rows(own_configuration(state.environ))
    return {
        "values": [
            {**each, "file": each["file"] and "config.toml"} for each in rows if each["key"] != "notify"
        ]
    }


@router.get("/runs")
def page(
    runs: Runs,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: str | None = None,
    state: Annotated[str | None, Query(description="a state, or a reason why runs ended")] = None,
    name: Annotated[str | None, Query(description="a part of the id")] = None,
    owner: Annotated[str | None, Query(description="a part of the name of who sent them")] = None,
    team: Annotated[str | None, Query(description="whose they are")] = None,
    since: Annotated[str | None, Query(description="begun within this time, such as 24h")] = None,
    where: Annotated[str | None, Query(description="a condition, such as loss < 0.3 and lr > 1e-3")] = None,
    label: Annotated[
        list[str] | None, Query(description="KEY=VALUE, KEY!=VALUE or KEY; several must all be so")
    ] = None,
    sort: Annotated[
        str, Query(description="best (by the first metric of the condition), cost, metric:loss, -created ...")
    ] = "",
) -> RunPage:
    """Runs, newest first, a page at a time; with `sort` in another order, of all that are meant."""
    wanted = joined(where or "", label or ())
    found = runs.page(
        limit, cursor, state, name, owner=owner, team=team, since=since, where=wanted, sort=sort
    )
    return RunPage(**found)


@router.get("/overview")
def overview(runs: Runs) -> dict[str, Any]:
    """What is going on, as the first page has it.

    What needs somebody, runs and waits (`count`, and the first five `runs`), why what has `ended` since a day
    ago did so, the `month` with its pace, and how many `quotes` of 90 days were kept. `needs_you` also has
    `workflows` that may start nothing any more, and why: the first of `workflow_count`.
    """
    return runs.overview()


@router.patch("/runs/{run}")
def describe(run: str, body: RunDescription, runs: Runs, state: State, caller: Submitter) -> dict[str, Any]:
    """Change its labels and note; then its line in the list of runs."""
    return runs.describe(run, body.labels, body.note, state.environ)


@router.get("/runs/{run}")
def show(run: str, runs: Runs) -> dict[str, Any]:
    """One run, as `trainmaster status RUN --json` prints it."""
    return runs.status(run)


@router.get("/runs/{run}/recipe")
def recipe(run: str, runs: Runs) -> Response:
    """The recipe that it was started with."""
    return Response(runs.recipe(run), media_type="application/yaml")


@router.post("/runs/{run}/cancel")
def cancel(run: str, runs: Runs, state: State, caller: Submitter) -> dict[str, Any]:
    """Ask for its end."""
    runs.cancel(run, state.environ)
    return runs.status(run)


@router.post("/runs/{run}/tasks/cancel")
def cancel_tasks(
    run: str, body: CancelTasks, runs: Runs, state: State, caller: Submitter
) -> dict[str, list[dict[str, Any]]]:
    """Ask for the end of single tasks: all else of it goes on; they are told as they are now."""
    return {"tasks": runs.cancel_tasks(run, body.tasks, state.environ)}


@router.post("/runs/{run}/experiments/{experiment}/approval")
def answer(
    run: str, experiment: str, body: ApprovalAnswer, runs: Runs, state: State, caller: Submitter
) -> dict[str, Any]:
    """Approve or deny that an experiment begins which waits for that; 422 if it does not (any more)."""
    runs.answer(run, experiment, state.environ, is_given=body.approve, why=body.why)
    return runs.status(run)


@router.post("/runs/{run}/resume")
def resume(
    run: str, runs: Runs, state: State, caller: Submitter, body: RunAgain = _AS_BEFORE
) -> dict[str, Any]:
    """Have it driven again: all that did not succeed."""
    notes = runs.resume(run, state.environ, body.max_usd)
    return {**runs.status(run), **_accepted(state, run, notes)}


@router.post("/runs/cancel")
def cancel_many(body: CancelMany, runs: Runs, state: State, caller: Submitter) -> Cancelled:
    """Ask for the end of several."""
    cancelled, failed = [], {}
    for run in dict.fromkeys(body.runs):
        try:
            runs.cancel(run, state.environ)
            cancelled.append(run)
        except TrainmasterError as error:
            failed[run] = str(error)
    return Cancelled(cancelled=cancelled, failed=failed)


@router.get("/runs/{run}/events")
def events(run: str, runs: Runs, after: Annotated[int, Query(le=2**63 - 1)] = 0) -> dict[str, Any]:
    """What happened to it, in order: at most a thousand events after an id."""
    return {"events": runs.events(run, after)}


@router.get("/runs/{run}/metrics")
def metrics(
    run: str,
    runs: Runs,
    keys: Annotated[str, Query(description="names of metrics, separated by commas; all without")] = "",
    points: Annotated[int, Query(ge=2, le=10_000, description="of one curve, at most")] = POINTS,
    digits: Annotated[int | None, Query(ge=2, le=17, description="to which points are rounded")] = None,
    axis: Annotated[str, Query(description="time or epoch: what curves run over, where known")] = "",
) -> RunCurves:
    """Curves, thinned: of each stretch its least and its greatest value are kept."""
    wanted = [key for key in keys.split(",") if key]
    found = runs.metrics(run, wanted, points, digits, axis)
    return RunCurves(metrics=[MetricCurve(**each) for each in found])


@router.get("/runs/{run}/logs", response_class=StreamingResponse)
def logs(
    run: str,
    runs: Runs,
    transfer: Transfer,
    experiment: str | None = None,
    task: int | None = None,
    member: str | None = None,
    attempt: int | None = None,
    tail: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="of each log so many of the last lines")
    ] = None,
    text: Annotated[str | None, Query(description="only lines with this in them")] = None,
    since: Annotated[str | None, Query(description="only what was written so long ago, as 5m")] = None,
    system: Annotated[
        bool, Query(description="instead what operating systems said; then a member is a machine")
    ] = False,
) -> StreamingResponse:
    """What its tasks wrote until now, as plain text."""
    pieces: Iterator[bytes] = runs.logs(
        run, experiment, task, member, attempt=attempt, tail=tail, text=text, since=since, system=system
    )
    first = next(pieces, b"")  # what is not there is said before the answer begins
    return StreamingResponse(transfer.sent(chain((first,), pieces)), media_type="text/plain; charset=utf-8")


@router.post("/runs/{run}/logs/system")
@asks_places
def fetch_system_log(
    run: str,
    state: State,
    caller: Submitter,
    member: Annotated[
        str | None, Query(description="such as worker-1, or a machine; the first without")
    ] = None,
) -> dict[str, str]:
    """Ask a machine what its operating system says, or its provider: `said`. It is kept with the run."""
    return {"said": state.submissions.fetch_system_log(caller, run, member, state.environ)}


@router.get("/logs")
def search_logs(
    runs: Runs,
    response: Response,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="but for upper and lower case")],
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="lines, at most")] = LINES,
    cursor: Annotated[str | None, Query(description="`next` of the answer before")] = None,
    since: Annotated[str | None, Query(description="only what was written so long ago, as 24h")] = None,
) -> dict[str, Any]:
    """Lines with a text in the logs of all runs, those of the newest runs first.

    An answer ends at `limit` lines, or after some seconds; `next` says where it goes on.
    """
    response.headers[TYPED] = "1"
    return runs.search_logs(text, limit, cursor, since)


@router.get("/runs/{run}/stream", response_class=StreamingResponse)
async def stream(
    run: str,
    request: Request,
    runs: Runs,
    state: State,
    following: Following,
    after: Annotated[str, Query(description="the id of the last event that was received")] = "",
    tail: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="of logs at most so many bytes to begin with")
    ] = None,
    since: Annotated[
        str | None, Query(description="of logs to begin with only what was written in so long, such as 5m")
    ] = None,
) -> StreamingResponse:
    """Server-sent events: `state`, `point`, `log`. With `Last-Event-ID` a client misses nothing."""
    cursor = request.headers.get("last-event-id") or after
    tail, since = (None, None) if cursor else (tail, since)  # a client that comes back misses nothing
    own = await run_in_threadpool(TeamRuns.stream, runs, run, cursor, tail, since)
    frames = following.of(state.hubs.of(run).listen(own))
    return StreamingResponse(frames, media_type="text/event-stream", headers=HEADERS)
