"""What a search has found so far: its best task, and everything that a picture of it shows."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import RowMapping

from trainmaster.control.task.layout import RunFiles
from trainmaster.dataclass import dataclass
from trainmaster.db import Database, queries
from trainmaster.spec.states import WHOLE, EndReason, State
from trainmaster.sweeps import Curve, Goal, SearchSpace, Trial, TrialState

#: Of a curve so many points are shown.
_POINTS = 2000
#: Of these a last value counts as long as the experiment is not over.
_UNDER_WAY = (State.RUNNING, State.RECOVERING, State.SAVING)


def best_tasks(
    database: Database, run: str, experiment: str, search: Mapping[str, Any], most: int
) -> list[dict[str, Any]]:
    """The best tasks, the best one first: of each ``task``, ``value``, ``parameters``.

    Tasks that succeeded count, and those under way with their last value, if that is finite; of equal ones
    the lowest number comes first.

    Args:
        database: the database.
        run: its id.
        experiment: its name.
        search: of the recipe, as JSON.
        most: how many.
    """
    sign = -1 if search["goal"] == "min" else 1
    found: list[tuple[float, int, RowMapping]] = []
    for row in queries.results(database, run, experiment):
        if row["reason"] not in WHOLE and row["state"] not in _UNDER_WAY:
            continue
        value = json.loads(row["metrics"]).get(search["metric"])
        if isinstance(value, int | float):
            found.append((-sign * value, row["number"], row))
    return [
        {"task": number, "value": -sign * value, "parameters": json.loads(row["parameters"])}
        for value, number, row in heapq.nsmallest(most, found, key=lambda each: each[:2])
    ]


@dataclass(frozen=True, slots=True)
class SearchResults:
    """One searching experiment.

    Attributes:
        experiment: its name.
        metric: what it looks at.
        goal: which values are better.
        space: what it searches.
        trials: those with a row, in order, with their curves; FAILED ones too.
        best: number of the best one, if any.
        counts: which value of a task does, as the recipe has it.
    """

    experiment: str
    metric: str
    goal: Goal
    space: SearchSpace
    trials: list[Trial]
    best: int | None
    counts: str = "last"

    def importance(self) -> tuple[str, dict[str, float]]:
        """Name of the measure, and shares of the parameters in what came of the trials; they sum to 1."""
        from trainmaster.sweeps.importance import importance

        return importance(self.trials, self.space, self.goal)


def search_results(database: Database, files: RunFiles, run: str) -> list[SearchResults]:
    """All searching experiments of a run; reads the metrics files of all their tasks."""
    from trainmaster.service.runs.stored_recipe import stored_recipe
    from trainmaster.service.runs.task_reports import reports_of
    from trainmaster.sweeps.earlier import TRIAL_STATES

    recipe = stored_recipe(database.run_row(run))
    found = []
    for name in recipe.order():
        experiment = recipe.experiments[name]
        search = experiment.search
        if search is None:
            continue
        trials = []
        for row in queries.results(database, run, name):
            state = TrialState.RUNNING
            if row["state"] == State.DONE:
                state = TRIAL_STATES.get(EndReason(row["reason"]), TrialState.FAILED)
            places = [files.attempt(run, name, row["number"], n) for n in range(1, row["attempt"] + 1)]
            reports = reports_of(experiment, places, is_over=row["state"] == State.DONE)
            with reports.lock:
                column = reports.columns.get(search.metric)
                curve = Curve() if column is None else column.curve(_POINTS)
            value = _last_value(json.loads(row["metrics"]), search.metric, curve)
            trials.append(Trial(row["number"], json.loads(row["parameters"]), state, value, curve))
        best = best_tasks(database, run, name, search.model_dump(mode="json"), 1)
        found.append(
            SearchResults(
                experiment=name,
                metric=search.metric,
                goal=Goal(search.goal),
                space=SearchSpace(experiment.parameters, len(experiment.tasks(recipe.seed)), recipe.seed),
                trials=trials,
                best=best[0]["task"] if best else None,
                counts=search.best,
            )
        )
    return found


def _last_value(metrics: Mapping[str, Any], metric: str, curve: Curve) -> float | None:
    value = metrics.get(metric, "")
    if value is None:
        return math.nan
    if isinstance(value, int | float):
        return float(value)
    return curve.values[-1] if len(curve) else None
