"""`SearchPicture`: the trials of a search, a grid or a random sample as dots, slices, lines and rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.runs.comparison import varied
from trainmaster.service.runs.curves import goal_of
from trainmaster.service.runs.task_reports import thinned
from trainmaster.spec.errors import UsageError
from trainmaster.spec.sections import RunReference
from trainmaster.web.figures import ValueAxis, parallel_coordinates
from trainmaster.web.recipe_form import scalar
from trainmaster.web.recipe_text import RecipeText
from trainmaster.web.rendering import look_of
from trainmaster.web.task_table import TaskTable

#: Heights of what is as wide as there is room: along it places are percent, of which so many are for numbers.
_HEIGHT: Final = 220
_LEFT: Final = 13
_RIGHT: Final = 98
#: Of a slice: width, height; margins for numbers.
_SLICE: Final = (180, 152)
_MARGIN: Final = 12
#: Of all curves together so many points are drawn, of one at most and at least so many.
_MOST_POINTS: Final = 1600
_OF_CURVE: Final = (6, 40)
_BOTTOM: Final = 28
_MOST_SLICES: Final = 6


@dataclass(frozen=True, slots=True)
class SearchPicture:
    """Of one experiment with several tasks that differ.

    Attributes:
        experiment, metric, goal: what is looked at; goal is ``min`` or ``max``.
        words: which value of a task counts, and what kind of search it is.
        counts: how many tasks ended how: ``30 succeeded, 14 pruned``.
        best: the best task; None before there is one.
        history, curves, slices, lines: figures; None or empty where there is too little. Curves are what was
            reported on the way, of each trial until it ended or was pruned.
        measure, importance: shares of the parameters in the result, and what they are.
        table: all tasks. shown: numbers of those that have a value, as the lines have them.
        narrow: numbers of the best quarter, for a search with narrower ranges; empty if they are too few.
    """

    experiment: str
    metric: str
    goal: str
    words: str
    counts: str
    best: _TrialRow | None
    history: Mapping[str, Any] | None
    curves: Mapping[str, Any] | None
    slices: Sequence[Mapping[str, Any]]
    lines: Mapping[str, Any] | None
    measure: str
    importance: Mapping[str, float]
    table: TaskTable
    shown: Sequence[int]
    narrow: str

    @classmethod
    def of(
        cls,
        experiment: str,
        tasks: Sequence[Mapping[str, Any]],
        total: int,
        search: Mapping[str, Any] | None,
        now: float,
        by: str = "",
        curves: Sequence[Mapping[str, Any]] = (),
    ) -> SearchPicture | None:
        """Of the tasks of an experiment; None if they are no choice between several.

        Args:
            experiment: its name.
            tasks: as `RunDetails.tasks` has them.
            total: of all.
            search: as `RunDetails.searches` has it; None for grids and samples.
            now: Unix seconds.
            by: column by which the rows are sorted.
            curves: of its tasks, as `TeamRuns.metrics` has them.
        """
        names = varied(tasks)
        if search is None and not names:
            return None
        table = TaskTable.of(tasks, total, now, by)
        metric = search["metric"] if search else (table.metrics[0] if table.metrics else "")
        goal = search["goal"] if search else goal_of(metric)
        values = {trial["task"]: trial["value"] for trial in search["trials"]} if search else {}
        trials = [_TrialRow.of(task, values.get(task["task"], task["metrics"].get(metric))) for task in tasks]
        seen = [trial for trial in trials if trial.value is not None]
        sign = 1 if goal == "min" else -1
        whole = sorted(
            (t for t in seen if t.kind != "cut" and t.kind != "bad"), key=lambda t: sign * (t.value or 0)
        )
        good = {trial.number for trial in whole[: max(1, len(seen) // 4)]}
        best = whole[0] if whole else None
        gap = max(110, min(220, 900 // max(1, len(names))))
        rows = [({**t.parameters, metric: t.value}, 2 if t.number in good else 7) for t in seen]
        return cls(
            experiment,
            metric,
            goal,
            _WORDS.get(search["value"], f"the {search['value']}") if search else "its last value",
            _counted(tasks),
            best,
            _history(seen, sign),
            _curves([each for each in curves if each["key"] == metric], trials, best),
            [_slice(name, seen, best) for name in names[:_MOST_SLICES]] if len(seen) > 1 else [],
            parallel_coordinates([*names, metric], rows, gap, metric if goal == "min" else ""),
            search["measure"] if search else "",
            search["importance"] if search else {},
            table,
            [trial.number for trial in seen],
            ",".join(map(str, sorted(good))) if len(good) > 1 else "",
        )


_WORDS: Final = {"last": "its last value", "min": "its smallest value", "max": "its largest value"}


@dataclass(frozen=True, slots=True)
class _TrialRow:
    number: int
    kind: str
    value: float | None
    parameters: Mapping[str, Any]

    @property
    def counts(self) -> bool:
        """Whether it may be the best: it was not pruned, and did not fail."""
        return self.value is not None and self.kind not in ("cut", "bad")

    @classmethod
    def of(cls, task: Mapping[str, Any], value: object) -> _TrialRow:
        finite = float(value) if isinstance(value, int | float) and math.isfinite(value) else None
        return cls(task["task"], look_of(task["state"], task["reason"])[0], finite, task["parameters"])


def _counted(tasks: Sequence[Mapping[str, Any]]) -> str:
    words: dict[str, int] = {}
    for task in tasks:
        word = look_of(task["state"], task["reason"])[1]
        words[word] = words.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in words.items())


def _history(trials: Sequence[_TrialRow], sign: int) -> dict[str, Any] | None:
    """A dot per trial by number, and the best value so far as steps."""
    if len(trials) < 2:
        return None
    x = ValueAxis("", 0, [float(t.number) for t in trials], _LEFT + 2, _RIGHT - 2, math.inf)
    y = ValueAxis("", 0, [t.value for t in trials], _HEIGHT - _BOTTOM - 8, _MARGIN + 8)
    best, path = None, ""
    for trial in trials:
        is_better = best is None or sign * (trial.value or 0.0) < sign * best
        if trial.counts and is_better:
            best = trial.value
            at, value = f"{x.place(float(trial.number)):.1f}", f"{y.place(best):.1f}"
            path += f" H{at} V{value}" if path else f"M{at} {value}"
    return {
        **_frame(y),
        "best": f"{path} H{_RIGHT}" if path else "",
        "dots": [_dot(t, x.place(float(t.number)), y.place(t.value)) for t in trials],
        "x_ticks": [{"text": f"{number}", "x": x.place(float(number))} for number in _ends(trials)],
    }


def _curves(
    found: Sequence[Mapping[str, Any]], trials: Sequence[_TrialRow], best: _TrialRow | None
) -> dict[str, Any] | None:
    """A line per trial over its steps; the best one last, so that none hides it."""
    kinds = {trial.number: trial.kind for trial in trials}
    known = [
        (each["task"], points) for each in found if each["task"] in kinds and len(points := _points(each)) > 1
    ]
    if len(known) < 2:
        return None
    least, most = _OF_CURVE
    of_each = max(least, min(most, _MOST_POINTS // len(known)))
    x = ValueAxis("", 0, [step for _, points in known for step, _ in points], _LEFT, _RIGHT - 1, math.inf)
    y = ValueAxis(
        "", 0, [value for _, points in known for _, value in points], _HEIGHT - _BOTTOM, _MARGIN + 8
    )
    lines = []
    for task, points in sorted(known, key=lambda each: best is not None and each[0] == best.number):
        steps, values = zip(*points, strict=True)
        kept = [points[index] for index in thinned(steps, values, of_each)]
        places = [f"{x.place(step):.1f} {y.place(value):.1f}" for step, value in kept]
        ends, end = points[-1][0], {"x": x.place(points[-1][0]), "y": y.place(points[-1][1])}
        is_best = best is not None and task == best.number
        lines.append(
            {"task": task, "path": "M" + "L".join(places), "kind": kinds[task], "step": ends, **end}
            | {"is_best": is_best}
        )
    return {
        **_frame(y),
        "lines": lines,
        "axis": found[0]["axis"],
        "x_ticks": [{"text": each["text"], "x": each["y"]} for each in x.ticks()],
    }


def _points(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    pairs = zip(curve["steps"], curve["values"], strict=True)
    return [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]


def _frame(y: ValueAxis) -> dict[str, Any]:
    return {
        "height": _HEIGHT,
        "left": _LEFT,
        "bottom": _HEIGHT - _BOTTOM,
        "is_log": y.is_log,
        "y_ticks": y.ticks(),
    }


def _ends(trials: Sequence[_TrialRow]) -> list[int]:
    return list(dict.fromkeys((trials[0].number, trials[len(trials) // 2].number, trials[-1].number)))


def _slice(name: str, trials: Sequence[_TrialRow], best: _TrialRow | None) -> dict[str, Any]:
    """The values by one parameter."""
    width, height = _SLICE
    those = [t for t in trials if t.parameters.get(name) is not None]
    x = ValueAxis(name, 0, [t.parameters[name] for t in those], 16, width - 16)
    y = ValueAxis("", 0, [t.value for t in those], height - _BOTTOM - 8, 28)
    return {
        "name": name,
        "width": width,
        "height": height,
        "bottom": height - _BOTTOM,
        "is_log": x.is_log,
        "dots": [
            {**_dot(t, x.place(t.parameters[name]), y.place(t.value)), "is_best": t is best} for t in those
        ],
        "ticks": [{"text": each["text"], "x": each["y"]} for each in x.ticks()],
    }


def _dot(trial: _TrialRow, x: float, y: float) -> dict[str, Any]:
    return {
        "task": trial.number,
        "kind": trial.kind,
        "value": trial.value,
        "parameters": trial.parameters,
        "x": round(x, 1),
        "y": round(y, 1),
    }


def again_from(text: str, experiment: str, parameters: Mapping[str, Any]) -> str:
    """A recipe that runs an experiment once, with the parameters of one of its tasks; all else stays.

    Raises:
        UsageError: it has no such experiment.
    """
    found, at = _experiment(text, experiment)
    for name, value in parameters.items():
        found = found.put((*at, "parameters", name), f"[{scalar(value)}]")
    for key in ("search", "samples"):
        found = found.without((*at, key))
    return found.text


def beginning_with(text: str, checkpoint: RunReference) -> str:
    """A recipe whose experiment begins with a checkpoint of the one of the same name; all else stays.

    Raises:
        UsageError: it has no such experiment.
    """
    found, at = _experiment(text, checkpoint.experiment or "")
    return found.put((*at, "checkpoint", "from"), str(checkpoint)).text


def narrowed(text: str, experiment: str, trials: Sequence[Mapping[str, Any]]) -> str:
    """A recipe whose continuous ranges are those of some tasks, such as the best quarter; all else stays.

    Raises:
        UsageError: it has no such experiment.
    """
    found, at = _experiment(text, experiment)
    for name, given in (found.values["experiments"][experiment].get("parameters") or {}).items():
        is_range = isinstance(given, dict) and "range" in given and "step" not in given
        values = [each[name] for each in trials if isinstance(each.get(name), float)]
        if is_range and values and min(values) < max(values):
            low, high = (f"{value:.4g}" for value in (min(values), max(values)))
            found = found.put((*at, "parameters", name, "range"), f"[{low}, {high}]")
    return found.text


def _experiment(text: str, experiment: str) -> tuple[RecipeText, tuple[str, ...]]:
    found = RecipeText(text)
    try:
        found.values["experiments"][experiment]
    except (KeyError, TypeError):
        raise UsageError(f"the recipe has no experiment {experiment!r}", "Choose another one.") from None
    return found, ("experiments", experiment)
