"""`TargetForecast`: when a task that trains for a target comes to it, by its curve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import Database, queries
from trainmaster.service.runs.task_reports import reports_of
from trainmaster.spec.gate import as_number
from trainmaster.spec.parameter import format_value
from trainmaster.spec.states import State
from trainmaster.spec.units import format_duration

if TYPE_CHECKING:
    from trainmaster.control.task.layout import RunFiles
    from trainmaster.spec import Recipe
    from trainmaster.spec.until import Until
    from trainmaster.sweeps import Curve

#: So many running tasks are foretold.
MOST_TASKS: Final = 8
#: Of a curve so many points are looked at.
_POINTS: Final = 4096
_SHARES: Final = {"p5": 0.05, "p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class TargetForecast:
    """Of one running task.

    Attributes:
        experiment, task: which.
        until: what it trains for.
        step: of its last report. value: of the metric there; None: there is none.
        most: steps that it makes at most; None: unknown.
        chance: that it comes to it at all; None while too little was reported.
        steps: p5, p50 and p95 of the step at which it does; None in place of one: never, by this curve.
        left_s: the same in seconds from now; None where the speed is unknown.
        fan: step, and p5, p50 and p95 of the metric there.
    """

    experiment: str
    task: int
    until: Until
    step: float = 0.0
    value: float | None = None
    most: float | None = None
    chance: float | None = None
    steps: Mapping[str, float | None] | None = None
    left_s: Mapping[str, float | None] | None = None
    fan: tuple[tuple[float, ...], ...] = ()

    @property
    def words(self) -> str:
        """One line for people."""
        name = f"{self.experiment}/{self.task} to {self.until}"
        if self.steps is None or self.chance is None:
            return f"{name}: too little was reported to say when"
        first, middle, last = (self.steps[key] for key in _SHARES)
        within = f" within {_count(self.most)} steps" if self.most is not None else ""
        if middle is None:
            chance = f", the chance is {100 * self.chance:.0f} %" if first is not None else ""
            return f"{name}: never by this curve{within}{chance}"
        until = "never" if last is None else _count(last)
        about = f"{name}: at step {_count(middle)} ({_count(first)} to {until})"
        if self.left_s is None or self.left_s["p50"] is None:
            return about
        soon, late = self.left_s["p5"], self.left_s["p95"]
        until = "never" if late is None else format_duration(late)
        return (
            f"{about}, in {format_duration(self.left_s['p50'])} ({format_duration(soon or 0.0)} to {until})"
        )

    def as_json(self) -> dict[str, Any]:
        """As ``GET /runs/RUN/targets`` has it."""
        keys = ("experiment", "task", "step", "value", "most", "chance", "steps", "left_s")
        return {
            **{key: getattr(self, key) for key in keys},
            "metric": self.until.metric,
            "condition": str(self.until),
            "aim": self.until.value,
            "fan": [list(row) for row in self.fan],
            "words": self.words,
        }


def target_forecasts(database: Database, files: RunFiles, run: str) -> list[TargetForecast]:
    """Of the tasks of a run that train for a target now, at most `MOST_TASKS`."""
    from trainmaster.service.runs.stored_recipe import stored_recipe

    row = database.run_row(run)
    if row["state"] == State.DONE or not any(key in row["recipe"] for key in ('"target"', '"until"')):
        return []
    return list(_forecasts(database, files, run, stored_recipe(row)))


def _forecasts(database: Database, files: RunFiles, run: str, recipe: Recipe) -> Iterator[TargetForecast]:
    running = (
        task
        for task in queries.tasks(database, run, state=State.RUNNING)
        if recipe.experiments[task["experiment"]].ends_at is not None
    )
    for task in islice(running, MOST_TASKS):
        experiment, number, last = recipe.experiments[task["experiment"]], task["number"], task["attempt"]
        until = experiment.ends_at
        assert until is not None
        known = TargetForecast(experiment.name, number, until, most=experiment.builtin_values().get("steps"))
        places = [files.attempt(run, experiment.name, number, attempt) for attempt in range(1, last + 1)]
        reports = reports_of(experiment, places)
        with reports.lock:
            column = reports.columns.get(until.metric)
            curve = column.curve(_POINTS) if column is not None else None
            begun = max(reports.begun.get(until.metric, 0.0), 0.0)
        if not curve:
            yield known
            continue
        took_s = time.time() - (task["started_at"] or math.inf)
        yield foretold(known, curve, (curve.last_step - begun) / took_s if took_s > 0 else 0.0)


def foretold(known: TargetForecast, curve: Curve, steps_per_s: float) -> TargetForecast:
    """By a curve.

    Args:
        known: whose it is, and what it is to come to.
        curve: what was reported.
        steps_per_s: its speed; 0 if unknown.
    """
    from trainmaster.advisor.model.learning_curve import forecast_curve

    until, last = known.until, curve.last_step
    most = None if known.most is not None and last > known.most else known.most  # it counts otherwise
    known = replace(known, step=last, value=as_number(curve.values[-1]), most=most)
    found = forecast_curve(
        curve.steps, curve.values, until.value, more_is_better=until.more_is_better, most=most
    )
    if found is None:
        return known
    reached = {key: found.quantile(share) for key, share in _SHARES.items()}
    left = {key: max(at - last, 0.0) / steps_per_s for key, at in reached.items()} if steps_per_s > 0 else {}
    return replace(
        known,
        chance=round(found.chance, 3),
        steps={key: _known(at) for key, at in reached.items()},
        left_s={key: _known(each) for key, each in left.items()} or None,
        fan=tuple(tuple(float(f"{each:.6g}") for each in row) for row in found.fan),
    )


def _known(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def _count(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}" if value >= 10 else format_value(round(value, 1))
