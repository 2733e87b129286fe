"""What each trial of a sweep made in earlier runs of the very same one: a pruner ends the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress

from sqlalchemy.engine import RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import Database, queries
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec import Recipe
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import EndReason
from trainmaster.sweeps.pruner import MOST_TRIALS

#: Runs that are looked at; tasks of one.
_MOST_RUNS, _MOST_TASKS = 8, 1_000


@dataclass(frozen=True, slots=True)
class EarlierTrials:
    """Of a run of a sweep.

    Attributes:
        shares: of its steps that each trial made, in their order.
        at_once: how many ran side by side at most.
    """

    shares: tuple[float, ...]
    at_once: int


def trials_of_earlier_runs(
    database: Database, recipe: Recipe, name: str, runs: Iterable[str | None]
) -> tuple[EarlierTrials, ...]:
    """What the trials of earlier runs of a sweep made.

    The seed decides which parameters each trial has, so only runs with the same one count.

    Args:
        database: the database.
        recipe: of the sweep.
        name: of its experiment.
        runs: ids of runs of the same code, the newest first; None is no run.
    """
    experiment = recipe.experiments[name]
    steps = experiment.builtin_values().get("steps")
    many = len(experiment.tasks(recipe.seed))
    if experiment.search is None or experiment.search.pruner is None or not steps or many > MOST_TRIALS:
        return ()
    found = []
    for run in list(dict.fromkeys(filter(None, runs)))[:_MOST_RUNS]:
        with suppress(TrainmasterError, ValueError, TypeError, KeyError):  # it was removed, or is no such run
            row = database.run_row(run)
            then = stored_recipe(row)
            same = then.experiments[name]
            if row["reason"] != EndReason.SUCCEEDED or then.seed != recipe.seed:
                continue
            if same.search != experiment.search or same.parameters != experiment.parameters:
                continue
            if same.builtin_values().get("steps") != steps:  # a pruner looks at other steps then
                continue
            tasks = [t for t in queries.tasks(database, run, limit=_MOST_TASKS) if t["experiment"] == name]
            if len(tasks) == many:
                found.append(EarlierTrials(tuple(_share(task, steps) for task in tasks), _at_once(tasks)))
    return tuple(found)


def _at_once(tasks: Sequence[RowMapping]) -> int:
    """How many ran side by side at most."""
    times: list[tuple[float, float]] = [
        (task["started_at"], task["ended_at"]) for task in tasks if task["started_at"] is not None
    ]
    return max(sum(begun <= at < ended for begun, ended in times) for at, _ in times)


def _share(task: RowMapping, steps: float) -> float:
    """Of its steps, that a trial has made."""
    if task["end_reason"] == EndReason.SUCCEEDED:
        return 1.0
    return min(float(json.loads(task["metrics"])["step"]) / steps, 1.0)
