"""What the tasks of a run have reported over time: all that a picture of a run without a search shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass, field
from trainmaster.db import Database, queries
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.metric_names import in_order
from trainmaster.spec.states import FINISHED, State
from trainmaster.spec.until import stored_end

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.layout import AttemptPlace, RunFiles
    from trainmaster.executors.telemetry.metrics import Metrics
    from trainmaster.spec import Experiment
    from trainmaster.sweeps import Curve

#: A metric with one of these words in its name is better when it is smaller.
_SMALLER_IS_BETTER = frozenset({"loss", "error", "err", "perplexity", "mae", "mse", "rmse"})
#: These have a best value, too.
_WORDS_WITH_GOAL = _SMALLER_IS_BETTER | {
    *("acc", "accuracy", "auc", "bleu", "dice", "f1", "iou", "map", "precision", "psnr", "r2", "recall"),
    *("return", "reward", "rouge", "score", "ssim", "top1", "top5", "win"),
}
#: What names of parameters begin with beside what is reported, as in conditions.
PARAMETER = "param:"
#: Of an experiment with more tasks so many are drawn: more lines hide each other.
MAX_TASKS = 200
#: Of these so many at least are the best ones by each metric, by their last values.
_BEST = 10
_AXIS_POINTS = 4096
#: Of a task that reports more metrics, the first ones: of results first.
MAX_METRICS = 8


def stated_goals(stored: Mapping[str, Any]) -> dict[str, str]:
    """Metrics that a recipe looks at by itself, each with which of its values are better.

    Args:
        stored: an experiment, as JSON: its search comes first, then what ends its training, then its gate.

    >>> stated_goals({"search": {"metric": "f1", "goal": "max"}, "until": "cost < 3"})
    {'f1': 'max', 'cost': 'min'}
    """
    found: dict[str, str] = {}
    if search := stored.get("search"):
        found[search["metric"]] = str(search["goal"])
    if end := stored_end(stored):
        found.setdefault(end.metric, "min" if end.op in ("<", "<=") else "max")
    if gate := stored.get("require"):
        found.setdefault(gate["metric"], str(gate["goal"] or "max"))
    return found


def has_goal(metric: str, stored: Mapping[str, Any]) -> bool:
    """Whether a metric has a best value: its recipe looks at it, or it is called like one that has.

    Args:
        metric: its name.
        stored: its experiment, as JSON.

    >>> has_goal("val_loss", {}), has_goal("layer_00/grad_norm", {}), has_goal("lr", {})
    (True, False, False)
    """
    if metric in stated_goals(stored):
        return True
    return not _WORDS_WITH_GOAL.isdisjoint(re.split(r"[^a-z0-9]+", metric.lower()))


def goal_of(metric: str, stored: Mapping[str, Any] | None = None) -> str:
    """Which values of a metric are better, ``min`` or ``max``.

    Args:
        metric: its name.
        stored: its experiment, as JSON: it counts if it looks at this metric. Else names that sound like a
            loss or an error are better when they are smaller.

    >>> goal_of("val_loss"), goal_of("accuracy"), goal_of("cost", {"until": "cost < 3"})
    ('min', 'max', 'min')
    """
    if stored is not None and (stated := stated_goals(stored).get(metric)):
        return stated
    return "min" if _SMALLER_IS_BETTER.intersection(re.split(r"[^a-z]+", metric.lower())) else "max"


@dataclass(frozen=True, slots=True)
class TaskCurves:
    """One task.

    Attributes:
        number: of the task.
        parameters: its parameters.
        bad: it ended, and did not succeed.
        metrics: a curve per metric: losses and other results first, else as they were reported first.
        axes: other places of what was reported, by step: as ``time`` seconds since its beginning, as
            ``epoch`` where each began; without those that are not known, empty if they were not asked for.
    """

    number: int
    parameters: Mapping[str, object]
    bad: bool
    metrics: dict[str, Curve] = field(default_factory=dict)
    axes: dict[str, Curve] = field(default_factory=dict)

    def along(self, axis: str, steps: Sequence[float]) -> list[float] | None:
        """Where some steps are on another axis, rising; None if that is not known."""
        from trainmaster.service.runs.task_reports import placed

        known = self.axes.get(axis, ())
        return placed(list(known), steps) if len(known) > 1 else None


@dataclass(frozen=True, slots=True)
class ExperimentCurves:
    """One experiment that has reported something.

    Attributes:
        name: of the experiment.
        count: of its tasks that have a row.
        tasks: those with a curve, in order, at most `MAX_TASKS`.
        axis: what the curves run over: ``step``, ``epoch``, or ``report`` where the tasks only count reports.
    """

    name: str
    count: int
    tasks: list[TaskCurves]
    axis: str

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, at most `MAX_METRICS`."""
        names = dict.fromkeys(name for task in self.tasks for name in task.metrics)
        return in_order(names)[:MAX_METRICS]


def run_curves(
    database: Database,
    files: RunFiles,
    run: str,
    keys: Sequence[str],
    most: int,
    *,
    has_axes: bool = False,
) -> list[ExperimentCurves]:
    """The curves of all experiments of a run that have some; reads the metrics files of their tasks.

    Args:
        database: the database.
        files: of the run.
        run: its id.
        keys: names of metrics; all without.
        most: points of one curve; see `thinned`.
        has_axes: with what curves may run over beside steps.
    """
    from trainmaster.service.runs.stored_recipe import stored_recipe
    from trainmaster.service.runs.task_reports import reports_of

    run_row = database.run_row(run)
    recipe, stored = stored_recipe(run_row), json.loads(run_row["recipe"])["experiments"]
    found = []
    for name in recipe.order():
        experiment, axis = recipe.experiments[name], "report"
        rows = queries.results(database, run, name)
        tasks = []
        for row in (rows[index] for index in _drawn(rows, stored[name])):
            is_over = row["state"] == State.DONE
            bad = is_over and row["reason"] not in FINISHED
            places = (files.attempt(run, name, row["number"], n) for n in range(1, row["attempt"] + 1))
            reports = reports_of(experiment, places, is_over=is_over)
            with reports.lock:
                axis = reports.axis or axis
                known = {key: column for key, column in reports.columns.items() if column.steps}
                names = [key for key in in_order(known) if not keys or key in keys]
                curves = {key: reports.columns[key].curve(most) for key in names}
                axes = reports.axes(_AXIS_POINTS) if curves and has_axes else {}
            if curves:
                tasks.append(TaskCurves(row["number"], json.loads(row["parameters"]), bad, curves, axes))
        if tasks:
            found.append(ExperimentCurves(name, len(rows), tasks, axis))
    return found


def reported(
    database: Database, files: RunFiles, run: str, experiment: str | None = None, task: int | None = None
) -> Iterator[dict[str, Any]]:
    """What the tasks of a run have reported, in order: a dictionary per line, from the first member's files.

    Args:
        database: the database.
        files: of the run.
        run: its id.
        experiment: only this one.
        task: only this number.

    Yields:
        ``experiment``, ``task``, ``attempt``, each parameter of the task as ``param:NAME``, and what was
        reported then.

    Raises:
        NotFoundError: it has no such experiment or task.
    """
    from trainmaster.service.runs.stored_recipe import stored_recipe

    tasks_of(database, run, experiment, task)
    recipe = stored_recipe(database.run_row(run))
    drawn: dict[str, dict[int, str]] = {}
    for row in queries.attempts(database, run, experiment, task):
        name = row["experiment"]
        place = files.attempt(run, name, row["task"], row["number"])
        at = {"experiment": name, "task": row["task"], "attempt": row["number"]}
        if name not in drawn:
            drawn[name] = {
                each["number"]: each["parameters"] for each in queries.results(database, run, name)
            }
        parameters = json.loads(drawn[name].get(row["task"]) or "{}")
        at |= {f"{PARAMETER}{key}": value for key, value in parameters.items()}
        for line in attempt_reports(recipe.experiments[name], place):
            yield {**at, **line, **at}  # first, and not what the script calls so


def tasks_of(
    database: Database, run: str, experiment: str | None = None, task: int | None = None
) -> dict[str, int]:
    """How many tasks each experiment of a run has.

    Args:
        database: the database.
        run: its id.
        experiment: that is asked for.
        task: the number that is asked for.

    Raises:
        NotFoundError: it has no such experiment or task.
    """
    totals = {row["name"]: int(row["tasks_total"]) for row in database.experiment_rows(run)}
    if experiment is not None and experiment not in totals:
        raise NotFoundError(f"{run} has no experiment {experiment!r}", f"It has {', '.join(sorted(totals))}.")
    total = totals[experiment] if experiment is not None else max(totals.values(), default=0)
    if task is not None and not 0 <= task < total:
        raise NotFoundError(f"{run} has no task {task} there", f"Its tasks are 0 to {total - 1}.")
    return totals


def _drawn(rows: Sequence[RowMapping | Mapping[str, Any]], stored: Mapping[str, Any]) -> Iterable[int]:
    """Which of the tasks are drawn, at most `MAX_TASKS`: the best ones, and of the others evenly chosen ones.

    >>> rows = [{"metrics": json.dumps({"loss": abs(task - 301) + 1})} for task in range(500)]
    >>> drawn = list(_drawn(rows, {}))
    >>> len(drawn), {300, 301, 302} <= {*drawn}, drawn[:3], drawn[-1]
    (200, True, [0, 2, 5], 497)
    """
    if len(rows) <= MAX_TASKS:
        return range(len(rows))
    told = [json.loads(row["metrics"]) for row in rows]
    names = in_order(dict.fromkeys(name for each in told for name in each))
    best: set[int] = set()
    for name in [each for each in names if has_goal(each, stored)][:MAX_METRICS]:
        sign = 1 if goal_of(name, stored) == "min" else -1
        values = ((each.get(name), task) for task, each in enumerate(told))
        known = [(sign * value, task) for value, task in values if isinstance(value, int | float)]
        best.update(task for _, task in nsmallest(_BEST, known))
    others = [task for task in range(len(rows)) if task not in best]
    count = MAX_TASKS - len(best)
    return sorted(best.union(others[index * len(others) // count] for index in range(count)))


def attempt_reports(experiment: Experiment, place: AttemptPlace) -> Iterator[Metrics]:
    """What the first member of an attempt reported; if nothing, then what it printed."""
    from trainmaster.control.task.gangs import member_names
    from trainmaster.executors.telemetry.member_metrics import MemberMetrics

    member = "{}-{}".format(*member_names(experiment)[0])
    metrics = MemberMetrics(place.directory, member, experiment.metrics_pattern)
    yield from metrics.rows()
    yield from metrics.finish()
