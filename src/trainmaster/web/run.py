"""The pages of one run: overview, logs, machines, history, its searches, and again with changes."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from starlette.background import BackgroundTask

from trainmaster.api.rest.state import Reader, Runs, State, Submitter, asks_places
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.driving.submissions import RunRequest
from trainmaster.service.models.starting_models import with_versions
from trainmaster.service.runs.comparison import recipe_diff
from trainmaster.service.runs.highlights import TaskLine
from trainmaster.service.runs.run_details import MAX_TOLD_TASKS, RunDetails
from trainmaster.service.teams.team_runs import TeamRuns
from trainmaster.spec.errors import NotFoundError, TrainmasterError
from trainmaster.spec.labels import parsed_changes
from trainmaster.spec.metric_names import COUNTERS, in_order, panels, says_how_good
from trainmaster.spec.sections import RunReference
from trainmaster.spec.states import FINISHED, EndReason
from trainmaster.spec.states import State as RunState
from trainmaster.web.figures import graph
from trainmaster.web.log_text import LEVELS
from trainmaster.web.log_view import LogView, LogViewQuery
from trainmaster.web.models import leaves_answers
from trainmaster.web.recipe_form import (
    agreed_usd,
    amount_of,
    key_of,
    mistakes_of,
    new_key,
    without_triggers,
)
from trainmaster.web.rendering import is_part, page, redirect
from trainmaster.web.run_header import RunHeader, TaskFailure, cost_words, first_failure
from trainmaster.web.searches import SearchPicture, again_from, beginning_with, narrowed
from trainmaster.web.task_table import TaskTable
from trainmaster.web.workflows import begin

#: Of a task's curve on the page of searches, at most.
_POINTS_ON_THE_WAY: Final = 40
router = APIRouter(include_in_schema=False)
#: Of what a search in logs finds, so much is shown, the last of it.
_FOUND_BYTES: Final = 48_000
_EVENTS: Final = 100
_MODELS: Final = 8
#: Rows of tasks on the overview, and lines of the log of what failed.
_TASKS: Final = 12
_LINES: Final = 15
#: The rows of experiments are shown if one says something that graph and tasks do not.
_TOLD: Final = frozenset(
    {"begins_with", "best", "until", "approval", "gate", "promotion", "adapted", "lost_output"}
)
#: Such a run ends the same way again, unless something is changed.
_OF_SCRIPT: Final = (EndReason.USER_ERROR, EndReason.OOM, EndReason.TIMEOUT, EndReason.GATE_REFUSED)


@router.get("/runs/{run}")
def show(request: Request, run: str, state: State, caller: Reader, found: Runs) -> Response:
    """How it stands and how far it is, its curves, the end of its logs, live; then its tasks."""
    status = found.status(run)
    details, notes, models = found.details(run), found.highlights(run), found.models(run, _MODELS)
    recipe, tasks, counts = details.recipe(), details.tasks(), status["experiments"].values()
    cap_usd = None if recipe.budget is None else recipe.budget.total_usd
    total = sum(each["tasks"]["total"] for each in counts)
    is_over = status["state"] == RunState.DONE
    failed = is_over and status["reason"] not in FINISHED
    failure = first_failure(notes.bad) if failed else None
    names = {name: None for task in tasks for name in task["metrics"] if name not in COUNTERS}
    steps = {name: experiment.steps for name, experiment in recipe.experiments.items()}
    model = _best_model(found, status, models["models"]) if is_over else None
    answer = page(
        request,
        "run_live.html" if is_part(request) else "run.html",
        **_head(found, run, status),
        header=RunHeader.of(status, steps, notes.running),
        brief=found.brief(run),
        cost=cost_words(status["cost_usd"], cap_usd),
        failure=_failure(found, run, failure) if failure else None,
        checkpoint=_checkpoint(details, failure or notes.bad[0]) if failed and notes.bad else None,
        is_of_script=status["reason"] in _OF_SCRIPT,
        values=_values(status, tasks),
        panels=panels(names),
        table=TaskTable.of(tasks, total, time.time(), most=_TASKS),
        to_end=details.cancelled_tasks(),
        graph=graph(details.graph()),
        is_told=any(_TOLD.intersection(each) for each in counts),
        highlights=notes,
        not_finite=found.not_finite([run]),
        has_checkpoints=any(experiment.checkpoint for experiment in recipe.experiments.values()),
        has_target=any(experiment.ends_at for experiment in recipe.experiments.values()),
        tasks=max((each["tasks"]["total"] for each in counts), default=0),
        models=models,
        model=model,
        is_answers=model is not None and leaves_answers(recipe, model.split("/")[1]),
        has_servers=state.service.database.is_shared,
        has_notebooks=state.submissions.may_use_machine(caller),
    )
    if names and not is_part(request):
        # The first look at a million reports takes a second: it begins while the browser reads the page.
        answer.background = BackgroundTask(_read, found, run)
    return answer


def _read(found: TeamRuns, run: str) -> None:
    with suppress(TrainmasterError, OSError):  # who asks for the curves is told
        found.metrics(run, ["step"])  # which is no curve, but all is read for it


def _values(status: dict[str, Any], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    """What the header says of how good it is: of a search its best value, of one task its last ones."""
    best = {
        each["search"]["metric"]: each["best"]["value"]
        for each in status["experiments"].values()
        if each.get("best")
    }
    reports = [task["metrics"] for task in tasks if task["metrics"]]
    if best or len(reports) != 1:
        return {f"best trial: {metric}": value for metric, value in best.items()}
    return {name: reports[0][name] for name in in_order(reports[0]) if says_how_good(name)}


def _best_model(found: TeamRuns, status: dict[str, Any], models: list[dict[str, Any]]) -> str | None:
    """The one that is most likely wanted: the only one, or that of a search's best task."""
    if len(models) < 2:
        return str(models[0]["model"]) if models else None
    best = [(name, each["best"]["task"]) for name, each in status["experiments"].items() if each.get("best")]
    left = []
    for experiment, task in best:
        with suppress(NotFoundError):  # it has left none
            left.append(str(found.model(status["run"], experiment, task)["model"]))
    return left[0] if len(left) == 1 else None


def _failure(found: TeamRuns, run: str, task: TaskLine) -> TaskFailure:
    lines = b""
    with suppress(TrainmasterError):  # a log that is away: the reason is there
        lines = b"".join(found.logs(run, task.experiment, task.task, attempt=task.attempt, tail=_LINES))
    return TaskFailure.of(task, lines.decode("utf-8", "replace"))


def _checkpoint(details: RunDetails, task: TaskLine) -> int | None:
    """The newest checkpoint of a task, if its store can be asked."""
    with suppress(TrainmasterError):
        for each in details.checkpoints():
            if (each["experiment"], each["task"]) == (task.experiment, task.task):
                return int(each["checkpoint"])
    return None


@router.get("/runs/{run}/tasks")
def tasks_of(request: Request, run: str, found: Runs, by: str = "") -> Response:
    """All its tasks, sorted by any column."""
    status, details = found.status(run), found.details(run)
    total = sum(each["tasks"]["total"] for each in status["experiments"].values())
    table, to_end = TaskTable.of(details.tasks(), total, time.time(), by), details.cancelled_tasks()
    head = _head(found, run, status)
    return page(request, "tasks.html", **head, table=table, to_end=to_end, most=MAX_TOLD_TASKS)


@router.get("/runs/{run}/logs")
def logs(
    request: Request,
    run: str,
    found: Runs,
    wanted: Annotated[LogViewQuery, Query()],
) -> Response:
    """A member's log as numbered lines: its end, followed live, or lines around one; what was looked for."""
    if is_part(request):
        return page(request, "log_part.html", run=run, view=LogView.of(found, run, wanted))
    status = found.status(run)
    lines, problem, view = "", "", None
    try:
        if wanted.system:
            lines = _of_systems(found, run, wanted)
        else:
            view = LogView.of(found, run, wanted)
    except (TrainmasterError, ValueError) as error:
        problem = str(error)
    return page(
        request,
        "logs.html",
        **_head(found, run, status),
        members=found.details(run).members(),
        chosen=wanted,
        levels=LEVELS,
        view=view,
        source=f"{request.url.path}?{request.url.query}",
        lines=lines,
        problem=problem,
    )


@router.post("/runs/{run}/logs/system")
def fetch_system_log(
    run: str, state: State, caller: Submitter, member: Annotated[str, Form()] = ""
) -> Response:
    """Asks a machine what its operating system says, and shows what is kept."""
    state.submissions.fetch_system_log(caller, run, member or None, state.environ)
    return redirect(f"/runs/{quote(run)}/logs?system=1")


def _of_systems(found: TeamRuns, run: str, wanted: LogViewQuery) -> str:
    experiment, task, attempt, member = wanted.place
    text = wanted.text or None
    pieces = found.logs(run, experiment, task, member, attempt=attempt, text=text, system=True)
    last = b""
    for piece in pieces:
        last = (last + piece)[-_FOUND_BYTES:]
    return last.decode("utf-8", "replace")


@router.get("/runs/{run}/machines")
def machines(request: Request, run: str, found: Runs) -> Response:
    """What was rented, and CPU, GPUs, memory and network over time."""
    head = _head(found, run, found.status(run))
    details = found.details(run)
    machines, recipe = details.machines(), details.recipe()
    places = {each["provider"] for each in machines}
    asked = {name for each in recipe.experiments.values() for name in each.provider or (recipe.provider,)}
    return page(
        request,
        "machines.html",
        **head,
        machines=machines,
        has_places=len(places) > 1,
        is_here=all(capabilities_of(each).is_here for each in asked),
    )


@router.get("/runs/{run}/history")
def history(request: Request, run: str, found: Runs) -> Response:
    """Attempts, checkpoints and events."""
    details = found.details(run)
    problem, checkpoints = "", []
    try:
        checkpoints = details.checkpoints()
    except TrainmasterError as error:  # a store that is away: the rest is there
        problem = str(error)
    return page(
        request,
        "history.html",
        **_head(found, run, found.status(run)),
        attempts=details.attempts(),
        checkpoints=checkpoints,
        problem=problem,
        events=found.events(run)[-_EVENTS:],
    )


@router.get("/runs/{run}/sweeps")
def sweeps(request: Request, run: str, found: Runs, by: str = "") -> Response:
    """Its searches, grids and samples: trials, the best one, which parameters matter."""
    status, details = found.status(run), found.details(run)
    known = {search["experiment"]: search for search in details.searches()}
    tasks = details.tasks()
    curves: dict[str, list[dict[str, Any]]] = {}
    for curve in found.metrics(run, points=_POINTS_ON_THE_WAY):
        curves.setdefault(curve["experiment"], []).append(curve)
    pictures = [
        SearchPicture.of(
            name, its, each["tasks"]["total"], known.get(name), time.time(), by, curves.get(name, ())
        )
        for name, each in status["experiments"].items()
        if (its := [task for task in tasks if task["experiment"] == name])
    ]
    shown = [each for each in pictures if each]
    head = _head(found, run, status)
    return page(request, "sweeps.html", **head, searches=shown, to_end=details.cancelled_tasks())


@router.get("/runs/{run}/again")
def again(
    request: Request,
    run: str,
    found: Runs,
    caller: Submitter,
    experiment: str = "",
    task: int | None = None,
    narrow: str = "",
    checkpoint: int | None = None,
) -> Response:
    """Its recipe, to be changed and run again: as it was, from a task or its checkpoint, or narrowed."""
    values: dict[str, Any] = {"max_usd": "", "diff": [], "mistakes": []}
    recipe = text = without_triggers(found.recipe(run))
    if experiment:
        tasks = [each for each in found.details(run).tasks() if each["experiment"] == experiment]
        if narrow:
            best = {int(number) for number in narrow.split(",") if number.isdecimal()}
            chosen = [each["parameters"] for each in tasks if each["task"] in best]
            recipe = narrowed(text, experiment, chosen)
        else:
            one = next((each for each in tasks if each["task"] == task), None)
            recipe = again_from(text, experiment, one["parameters"] if one else {})
            if checkpoint is not None:
                recipe = beginning_with(recipe, RunReference(run, experiment, task, checkpoint))
        values["diff"] = recipe_diff(text, recipe, run, "changed")
    values["recipe"] = recipe
    return page(request, "again.html", **_head(found, run, found.status(run)), **values, key=new_key())


@router.post("/runs/{run}/again")
@asks_places
def send_again(
    request: Request,
    run: str,
    found: Runs,
    state: State,
    caller: Submitter,
    recipe: Annotated[str, Form()],
    max_usd: Annotated[str, Form()] = "",
    act: Annotated[str, Form()] = "compare",
    key: Annotated[str, Form()] = "",
) -> Response:
    """Shows what was changed, or runs it."""
    recipe = recipe.replace("\r\n", "\n")  # as browsers send lines
    diff = recipe_diff(found.recipe(run), recipe, run, "changed")
    problem = None
    try:
        code = state.submissions.code_of(caller, run)
        amount_of(max_usd)
        if act == "run":
            asked = RunRequest(recipe, code, None, agreed_usd(max_usd, recipe))
            return begin(request, state, caller, asked, key_of(key, asked))
        wanted = state.submissions.read(caller, RunRequest(recipe, code))
        with_versions(state.service.of_team(caller.team or None), wanted)
    except TrainmasterError as error:
        problem = error
    mistakes = mistakes_of(problem, caller)
    values: dict[str, Any] = {"recipe": recipe, "max_usd": max_usd, "diff": diff, "mistakes": mistakes}
    if is_part(request):
        return page(request, "changed.html", **values)
    head = _head(found, run, found.status(run))
    return page(
        request,
        "again.html",
        422 if problem and act == "run" else 200,
        **head,
        **values,
        key=key or new_key(),
    )


@router.post("/runs/{run}/cancel")
def cancel(run: str, found: Runs, state: State, caller: Submitter) -> Response:
    """Ends it."""
    found.cancel(run, state.environ)
    return redirect(f"/runs/{quote(run)}")


@router.post("/runs/{run}/tasks/cancel")
def cancel_task(
    run: str,
    found: Runs,
    state: State,
    caller: Submitter,
    task: Annotated[str, Form()],
    at: Annotated[Literal["", "/tasks", "/sweeps"], Form()] = "",
) -> Response:
    """Ends one of its tasks; then the page where that was asked for."""
    found.cancel_tasks(run, [task], state.environ)
    return redirect(f"/runs/{quote(run)}{at}")


@router.post("/runs/{run}/approval")
def answer(
    run: str,
    found: Runs,
    state: State,
    caller: Submitter,
    experiment: Annotated[str, Form()],
    say: Annotated[str, Form()],
    why: Annotated[str, Form(max_length=1000)] = "",
) -> Response:
    """Approves or denies that an experiment begins."""
    found.answer(run, experiment, state.environ, is_given=say == "approve", why=why)
    return redirect(f"/runs/{quote(run)}")


@router.post("/runs/{run}/describe")
def describe(
    run: str,
    found: Runs,
    state: State,
    caller: Submitter,
    labels: Annotated[str, Form()] = "",
    note: Annotated[str, Form()] = "",
) -> Response:
    """Writes labels and a note on it: those that are there no more, are taken away."""
    written = parsed_changes(line.strip() for line in labels.splitlines() if line.strip())
    gone = dict.fromkeys(found.brief(run).get("labels", {}))
    found.describe(run, {**gone, **written}, note.replace("\r\n", "\n"), state.environ)
    return redirect(f"/runs/{quote(run)}")


@router.post("/runs/{run}/resume")
def resume(
    run: str, found: Runs, state: State, caller: Submitter, max_usd: Annotated[str, Form()] = ""
) -> Response:
    """Goes on with it."""
    found.resume(run, state.environ, amount_of(max_usd))
    return redirect(f"/runs/{quote(run)}")


def _head(found: TeamRuns, run: str, status: dict[str, Any]) -> dict[str, Any]:
    """What every page of a run needs."""
    return {
        "run": run,
        "status": status,
        "is_over": status["state"] == "DONE",
        "recipe_text": found.recipe(run),
        "has_search": any("top" in e or e["tasks"]["total"] > 1 for e in status["experiments"].values()),
    }
