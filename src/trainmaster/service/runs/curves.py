"""What the tasks of a run have reported over time: all that a picture of a run without a search shows."""

from __future__ import annotations

import json
import math
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from trainmaster.db import Database, queries
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.metric_names import in_order
from trainmaster.spec.states import FINISHED, State

if TYPE_CHECKING:
    from trainmaster.control.task.layout import AttemptPlace, RunFiles
    from trainmaster.executors.member_metrics import MemberMetrics
    from trainmaster.executors.metrics import Metrics
    from trainmaster.spec import Experiment
    from trainmaster.sweeps import Curve

#: These say how far a task is, not how well it does.
COUNTERS = frozenset({"step", "epoch", "examples", "seconds", "time", "timestamp", "wall_time"})
#: A metric with one of these words in its name is better when it is smaller.
_SMALLER_IS_BETTER = frozenset({"loss", "error", "err", "perplexity", "mae", "mse", "rmse"})
#: These have a best value, too.
_WORDS_WITH_GOAL = _SMALLER_IS_BETTER | {
    *("acc", "accuracy", "auc", "bleu", "dice", "f1", "iou", "map", "precision", "psnr", "r2", "recall"),
    *("return", "reward", "rouge", "score", "ssim", "top1", "top5", "win"),
}
#: Of an experiment with more tasks so many are drawn, evenly chosen: more lines hide each other.
MAX_TASKS = 200
#: Reading more takes seconds: what was found is kept until a file changes, so many curves of all runs.
_LONG_BYTES = 1 << 20
_MOST_KEPT = 128
_kept: OrderedDict[tuple[object, ...], tuple[str, dict[str, Curve]]] = OrderedDict()
_lock = threading.Lock()
#: Of a task that reports more metrics, the first ones: of results first.
MAX_METRICS = 8


def has_goal(metric: str, stored: Mapping[str, Any]) -> bool:
    """Whether a metric has a best value: a search or a gate looks at it, or it is called like one that has.

    Args:
        metric: its name.
        stored: its experiment, as JSON.

    >>> has_goal("val_loss", {}), has_goal("layer_00/grad_norm", {}), has_goal("lr", {})
    (True, False, False)
    """
    if metric == (stored.get("search") or {}).get("metric") or metric in json.dumps(stored.get("require")):
        return True
    return not _WORDS_WITH_GOAL.isdisjoint(re.split(r"[^a-z0-9]+", metric.lower()))


def goal_of(metric: str, search: Mapping[str, Any] | None = None) -> str:
    """Which values of a metric are better, ``min`` or ``max``.

    Args:
        metric: its name.
        search: of its experiment, as JSON: it counts if it looks at this metric. Else names that sound like a
            loss or an error are better when they are smaller.

    >>> goal_of("val_loss"), goal_of("accuracy"), goal_of("loss", {"metric": "loss", "goal": "max"})
    ('min', 'max', 'max')
    """
    if search is not None and search["metric"] == metric:
        return str(search["goal"])
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
        from trainmaster.service.runs.curve_axes import placed

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
    database: Database, files: RunFiles, run: str, *, has_axes: bool = False
) -> list[ExperimentCurves]:
    """The curves of all experiments of a run that have some; reads the metrics files of their tasks.

    Args:
        database: the database.
        files: of the run.
        run: its id.
        has_axes: with what curves may run over beside steps, which takes longer.
    """
    from trainmaster.service.runs.stored_recipe import stored_recipe

    recipe = stored_recipe(database.run_row(run))
    found = []
    for name in recipe.order():
        experiment, axis = recipe.experiments[name], "report"
        rows = queries.results(database, run, name)
        tasks = []
        for row in (rows[index] for index in _evenly(len(rows))):
            bad = row["state"] == State.DONE and row["reason"] not in FINISHED
            places = [files.attempt(run, name, row["number"], n) for n in range(1, row["attempt"] + 1)]
            axes: dict[str, Curve] = {}
            if has_axes:
                curves: dict[str, Curve] = {}
                own_axis = _read(experiment, places, curves, axes)
            else:
                own_axis, curves = _kept_or_read(experiment, places)
            axis = own_axis or axis
            if curves:
                curves = {key: curves[key] for key in in_order(curves)}
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
        ``experiment``, ``task``, ``attempt`` and what was reported then.

    Raises:
        NotFoundError: it has no such experiment or task.
    """
    from trainmaster.service.runs.stored_recipe import stored_recipe

    tasks_of(database, run, experiment, task)
    recipe = stored_recipe(database.run_row(run))
    for row in queries.attempts(database, run, experiment, task):
        name = row["experiment"]
        place = files.attempt(run, name, row["task"], row["number"])
        at = {"experiment": name, "task": row["task"], "attempt": row["number"]}
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


def thinned(values: Sequence[float], most: int) -> list[int]:
    """Indices of at most so many values: the first, the last, and of each stretch its least and its greatest.

    Where some are no numbers, the first of these in each stretch, too: a picture says where they begin.

    >>> thinned([5, 1, 2, 9, 3, 4, 0, 7], 6)
    [0, 1, 3, 5, 6, 7]
    """
    from trainmaster.sweeps.trial import extremes

    count = len(values)
    if count <= most:
        return list(range(count))
    if most < 5:
        return [0, count - 1][:most]
    of_each = 2 if all(map(math.isfinite, values)) else 3
    size = -(-(count - 2) // max(1, (most - 2) // of_each))
    return [0, *extremes(values, range(1, count - 1), size), count - 1]


def _evenly(count: int) -> Iterable[int]:
    """At most `MAX_TASKS` of so many."""
    if count <= MAX_TASKS:
        return range(count)
    return (index * count // MAX_TASKS for index in range(MAX_TASKS))


def _kept_or_read(experiment: Experiment, places: Sequence[AttemptPlace]) -> tuple[str, dict[str, Curve]]:
    """What `_read` finds; of long files what it found the last time, as long as no file has changed."""
    key, size = _files_of(places)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    curves: dict[str, Curve] = {}
    found = _read(experiment, places, curves), curves
    if size > _LONG_BYTES:
        with _lock:
            _kept[key] = found
            while sum(len(each) for _, each in _kept.values()) > _MOST_KEPT and len(_kept) > 1:
                _kept.popitem(last=False)
    return found


def _files_of(places: Sequence[AttemptPlace]) -> tuple[tuple[object, ...], int]:
    """All files of some attempts with their sizes and times; how many bytes they have."""
    found: list[object] = []
    total = 0
    for place in places:
        with suppress(OSError), os.scandir(place.directory) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((entry.path, status.st_ino, status.st_size, status.st_mtime_ns))
                    total += status.st_size
    return tuple(found), total


def _read(
    experiment: Experiment,
    places: Iterable[AttemptPlace],
    curves: dict[str, Curve],
    axes: dict[str, Curve] | None = None,
) -> str:
    """Add what the attempts at one task reported, and when; the name of what it counts, if it said it."""
    from trainmaster.sweeps import Curve

    axis, began_at = "", None
    for place in places:
        at: dict[str, float] = {}
        metrics = _member_metrics(experiment, place)
        for row, time_s in _untimed(metrics) if axes is None else _timed(metrics):
            numbers = {key: value for key, value in row.items() if _is_number(value)}
            at.update({key: numbers[key] for key in ("step", "epoch") if key in numbers})
            if at and not axis:
                axis = "step" if "step" in at else "epoch"
            step = at.get("step", at.get("epoch"))
            for name in (key for key in numbers if key not in COUNTERS):
                curve = curves.setdefault(name, Curve())
                reports = curve.last_step + 1 if len(curve) else 1
                curve.add(reports if step is None else step, numbers[name])
            if step is None or axes is None:
                continue
            if time_s is not None:
                began_at = time_s if began_at is None else began_at
                axes.setdefault("time", Curve()).add(step, time_s - began_at)
            epochs = axes.setdefault("epoch", Curve())
            if "epoch" in at and (
                step <= epochs.last_step or not len(epochs) or epochs.values[-1] < at["epoch"]
            ):
                epochs.add(step, at["epoch"])
    return axis


def attempt_reports(experiment: Experiment, place: AttemptPlace) -> Iterator[Metrics]:
    """What the first member of an attempt reported; if nothing, then what it printed."""
    for row, _ in _untimed(_member_metrics(experiment, place)):
        yield row


def _timed(metrics: MemberMetrics) -> Iterator[tuple[Metrics, float | None]]:
    from trainmaster.service.runs.curve_axes import ReportTimes

    return ReportTimes(metrics).rows()


def _untimed(metrics: MemberMetrics) -> Iterator[tuple[Metrics, None]]:
    yield from ((row, None) for row in metrics.rows())
    yield from ((row, None) for row in metrics.finish())


def _member_metrics(experiment: Experiment, place: AttemptPlace) -> MemberMetrics:
    from trainmaster.control.task.gangs import member_names
    from trainmaster.executors.member_metrics import MemberMetrics

    member = "{}-{}".format(*member_names(experiment)[0])
    return MemberMetrics(place.directory, member, experiment.metrics_pattern)


def read_curves(experiment: Experiment, places: Iterable[AttemptPlace]) -> dict[str, Curve]:
    """What the attempts at one task reported, by metric."""
    curves: dict[str, Curve] = {}
    _read(experiment, places, curves)
    return curves


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
