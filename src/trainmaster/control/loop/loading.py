"""From the database's rows and the recipe to what a controller works on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainmaster.control.decide.queue_wait import QueueWait
from trainmaster.control.decide.task import Policy
from trainmaster.control.loop.run_state import RECORDED, ExperimentState, FirstBad, RunState, Task
from trainmaster.control.task.gangs import checkpoints_of, helpers_of
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, queries
from trainmaster.db.changes import Promotion
from trainmaster.db.task_rows import JSON_COLUMNS
from trainmaster.launchers import get_launcher
from trainmaster.spec import Experiment as RecipeExperiment
from trainmaster.spec import Recipe
from trainmaster.spec.gate import Gate
from trainmaster.spec.model_reference import ModelReference
from trainmaster.spec.serve import MOST_REPLICAS
from trainmaster.spec.states import EndReason, State

#: Tasks under way beyond those that run: they wait at the node, so that no slot is ever idle.
LOOKAHEAD = 32


@dataclass(frozen=True, slots=True)
class Shape:
    """What the recipe says of an experiment's place in the run: see `ExperimentState`."""

    after: tuple[str, ...]
    window: int
    keeps_results: bool = False
    promotes: Promotion | None = None
    gate: Gate | None = None
    serves: bool = False
    needs_approval: bool = False


def load_run_state(
    database: Database, run: str, recipe: Recipe, at_once: Callable[[RecipeExperiment], int]
) -> RunState:
    """The run as recorded.

    Args:
        database: the database.
        run: its id.
        recipe: of the run.
        at_once: how many tasks of an experiment may run at the same time; see `Site.at_once`.
    """
    shapes = {
        name: shape_of(each, at_once(each)) for name in recipe.order() for each in [recipe.experiments[name]]
    }
    found = run_state_from_rows(
        shapes,
        database.run_row(run),
        database.experiment_rows(run),
        database.tallies(run),
        database.live_task_rows(run),
        ended_rows(database, run, shapes),
    )
    if begun := [task for task in found.live_tasks() if task.attempt]:
        opened = queries.opened_at(database, run)
        for task in begun:
            task.opened_at = opened.get((*task.key, task.attempt), 0.0)
    if any(shape.needs_approval for shape in shapes.values()):
        for name, said in database.approvals(run).items():
            found.experiments[name].approval = said
    return found


def ended_rows(database: Database, run: str, shapes: Mapping[str, Shape]) -> list[Mapping[Any, Any]]:
    """Rows of the tasks that are DONE, of experiments that keep their results."""
    return [
        row
        for name, shape in shapes.items()
        if shape.keeps_results
        for row in queries.results(database, run, name)
        if row["state"] == State.DONE
    ]


def shape_of(experiment: RecipeExperiment, at_once: int) -> Shape:
    """An experiment's place in the run, where so many of its tasks run at the same time at most."""
    shape = Shape(
        tuple(experiment.depends_on),
        at_once + LOOKAHEAD,
        promotes=promotion_of(experiment),
        gate=gate_of(experiment),
        needs_approval=experiment.approval is not None,
    )
    if experiment.serve is not None:
        return replace(shape, window=2 * MOST_REPLICAS, promotes=None, gate=None, serves=True)
    if experiment.search is None:
        return shape
    from trainmaster.control.loop.searching import keeps_results, looks_back

    # A sampler that looks back is asked when a task can start and not before: each result that it has seen
    # makes its next choice better.
    window = at_once if looks_back(experiment.search) else shape.window
    return replace(shape, window=window, keeps_results=keeps_results(experiment))


def gate_of(experiment: RecipeExperiment) -> Gate | None:
    """What its key ``require`` asks for: of the best model of its search, else of the best by that metric."""
    wanted, search = experiment.require, experiment.search
    if wanted is None:
        return None
    if search is None:
        return Gate(wanted, wanted.metric, wanted.smallest)
    return Gate(wanted, search.metric, search.goal == "min")


def promotion_of(experiment: RecipeExperiment) -> Promotion | None:
    """What its key ``promote`` asks for: the best model is that of its gate or search, or the only one."""
    if experiment.promote is None:
        return None
    wanted, search = ModelReference.parse(experiment.promote), experiment.search
    if (gate := gate_of(experiment)) is not None:
        return Promotion(wanted.name, wanted.must_alias, gate.metric, gate.smallest, gate)
    if search is None:
        return Promotion(wanted.name, wanted.must_alias)
    return Promotion(wanted.name, wanted.must_alias, search.metric, search.goal == "min")


def run_state_from_rows(
    shapes: Mapping[str, Shape],
    run: Mapping[Any, Any],
    experiment_rows: Iterable[Mapping[Any, Any]],
    tallies: Iterable[Mapping[Any, Any]],
    live_task_rows: Iterable[Mapping[Any, Any]],
    ended_task_rows: Iterable[Mapping[Any, Any]] = (),
) -> RunState:
    """The run that rows of the database describe; pure.

    Args:
        shapes: every experiment, in topological order.
        run: row of the run.
        experiment_rows: see `Database.experiment_rows`.
        tallies: see `Database.tallies`.
        live_task_rows: see `Database.live_task_rows`.
        ended_task_rows: the same of tasks that are DONE, of experiments that keep their results.
    """
    rows = {found["name"]: found for found in experiment_rows}
    experiments = {
        name: ExperimentState(
            name=name,
            after=shape.after,
            total=rows[name]["tasks_total"],
            window=shape.window,
            state=State(rows[name]["state"]),
            reason=_reason(rows[name]["reason"]),
            message=rows[name]["message"],
            rest_reason=_reason(rows[name]["rest_reason"]),
            results={} if shape.keeps_results else None,
            promotes=shape.promotes,
            gate=shape.gate,
            serves=shape.serves,
            needs_approval=shape.needs_approval,
        )
        for name, shape in shapes.items()
    }
    for count in tallies:
        experiment = experiments[count["experiment"]]
        experiment.created += count["tasks"]
        if count["state"] == State.DONE:
            reason = EndReason(count["reason"])
            experiment.ended[reason] += count["tasks"]
            if not reason.is_success:
                experiment.note_bad(FirstBad(count["first"], reason))
    for experiment in experiments.values():
        if experiment.serves:  # how many there are to be is decided again
            experiment.total = experiment.created
    for task in live_task_rows:
        experiments[task["experiment"]].live[task["number"]] = _task(task)
    for row in ended_task_rows:
        results = experiments[row["experiment"]].results
        if results is not None:
            ended = _task(row)
            ended.end_reason = _reason(row["reason"])
            results[ended.number] = ended
    return RunState(
        run["id"],
        experiments,
        State(run["state"]),
        _reason(run["reason"]),
        run["message"],
        QueueWait(run["queued_s"]),
    )


def load_policies(recipe: Recipe) -> dict[str, Policy]:
    """What the recipe says about each experiment's tasks."""
    return {
        name: Policy(
            retries=experiment.retries,
            timeout_s=experiment.timeout_s,
            grace_s=experiment.grace_s,
            checkpoint_every_s=math.inf if experiment.serve else checkpoints_of(experiment).every_s,
            helpers=helpers_of(experiment, get_launcher(experiment.launcher)),
            until=experiment.ends_at,
            memory_bytes=experiment.hardware.memory_bytes,
            silence_s=experiment.silence_s,
            searched="" if experiment.search is None else experiment.search.metric,
        )
        for name, experiment in recipe.experiments.items()
    }


def _task(row: Mapping[Any, Any]) -> Task:
    columns = {name: row[name] for name in RECORDED}
    lists = {name: json.loads(row[name]) for name in JSON_COLUMNS}
    lists["bad_checkpoints"] = tuple(lists["bad_checkpoints"])
    state, end_reason = State(row["state"]), _reason(row["end_reason"])
    return Task(**{**columns, **lists, "state": state, "end_reason": end_reason})


def _reason(text: str | None) -> EndReason | None:
    return EndReason(text) if text else None
