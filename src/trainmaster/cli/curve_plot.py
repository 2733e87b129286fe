"""The picture of a run without a search: a row per experiment, a panel per metric, a line per task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from trainmaster.service import Curve
    from trainmaster.service.runs.curves import ExperimentCurves, TaskCurves

#: So many tasks get a colour and a line in the legend each; more get a colour scale.
_MAX_NAMED = 10
_MAX_LABEL = 44
_COLUMNS = 3
_BAD, _POINT = "#b8b8b8", "#3b6ea5"
#: A curve with more points is drawn pale, with its running mean over it.
_NOISY_POINTS = 100
_PANEL_INCHES = (5.2, 3.4)


def curves_inches(experiments: Sequence[ExperimentCurves]) -> tuple[float, float]:
    """Width and height that the curves need."""
    shapes = [_shape(len(experiment.metrics)) for experiment in experiments]
    width, height = _PANEL_INCHES
    columns = max(columns for _, columns in shapes)
    return width * max(columns, 1.5), (height + 0.3) * sum(rows for rows, _ in shapes) + 0.4


def draw_curves(
    experiments: Sequence[ExperimentCurves],
    figure: Figure | SubFigure,
    targets: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draw the curves of a run's tasks.

    Args:
        experiments: see `run_curves`; at least one.
        figure: an empty one.
        targets: see `TargetForecast`; each is a fan.
    """
    shapes = [_shape(len(experiment.metrics)) for experiment in experiments]
    heights = [rows for rows, _ in shapes]
    columns = max(columns for _, columns in shapes)
    places = figure.subfigures(len(experiments), 1, squeeze=False, height_ratios=heights)
    for experiment, (rows, _), place in zip(experiments, shapes, places[:, 0], strict=True):
        mine = [target for target in targets if target["experiment"] == experiment.name]
        _draw(experiment, place, rows, columns, mine)


def _shape(panels: int) -> tuple[int, int]:
    """Rows and columns."""
    columns = min(panels, _COLUMNS)
    return math.ceil(panels / columns), columns


def _draw(
    experiment: ExperimentCurves,
    figure: Any,  # noqa: ANN401 - a SubFigure
    rows: int,
    columns: int,
    targets: Sequence[Mapping[str, Any]],
) -> None:
    tasks, metrics = experiment.tasks, experiment.metrics
    figure.suptitle(_title(experiment), fontsize="medium")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flat
    used = [next(panels) for _ in metrics]
    for rest in panels:
        rest.set_axis_off()
    points = all(len(curve) == 1 for task in tasks for curve in task.metrics.values()) and len(tasks) > 1
    colours = [_BAD if task.bad else _POINT for task in tasks] if points else _colours(tasks)
    for metric, axes in zip(metrics, used, strict=True):
        for task, colour in zip(tasks, colours, strict=True):
            if metric not in task.metrics:
                continue
            if points:
                axes.plot([task.number], task.metrics[metric].values, "o", color=colour, markersize=5)
            else:
                _line(axes, task, task.metrics[metric], colour, smooth=len(tasks) <= _MAX_NAMED)
        for target in targets:
            if target["metric"] == metric and target["fan"] and not points:
                number = target["task"]
                _fan(axes, target, next(c for t, c in zip(tasks, colours, strict=True) if t.number == number))
        axes.set_title(metric, fontsize="medium")
        axes.tick_params(labelbottom=True)  # of every row, though they share it
        axes.set_xlabel("task" if points else experiment.axis)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.xaxis.get_major_locator().set_params(integer=True)
    if points or len(tasks) == 1:
        return
    if len(tasks) <= _MAX_NAMED:
        used[0].legend(fontsize="small")
    else:
        _scale(figure, used, tasks)


def _fan(axes: Axes, target: Mapping[str, Any], colour: Any) -> None:  # noqa: ANN401 - what matplotlib takes
    """How a curve goes on, p5 to p95, and what it is to come to."""
    steps, low, middle, high = zip(*target["fan"], strict=True)
    axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(steps, middle, ":", color=colour, linewidth=1.2)
    axes.axhline(target["aim"], color=_BAD, linewidth=0.8, linestyle="--")


def _title(experiment: ExperimentCurves) -> str:
    count, drawn = experiment.count, len(experiment.tasks)
    title = f"{experiment.name}: {count} task{'s' if count != 1 else ''}"
    if drawn < count:
        title += f", {drawn} of them drawn"
    if any(task.bad for task in experiment.tasks):
        title += "; grey or dashed: did not succeed"
    return title


def _colours(tasks: Sequence[TaskCurves]) -> list[Any]:
    import matplotlib

    if len(tasks) <= _MAX_NAMED:
        colours: list[Any] = list(matplotlib.colormaps["tab10"].colors)  # type: ignore[attr-defined]
        return colours[: len(tasks)]
    scale = matplotlib.colormaps["viridis"]
    low, high = tasks[0].number, tasks[-1].number
    return [_BAD if task.bad else scale((task.number - low) / (high - low)) for task in tasks]


def _line(axes: Axes, task: TaskCurves, curve: Curve, colour: Any, *, smooth: bool) -> None:  # noqa: ANN401
    values = [value if math.isfinite(value) else math.nan for value in curve.values]
    style = "--" if task.bad else "-"
    marker = "o" if len(curve) == 1 else ""
    if smooth and len(curve) > _NOISY_POINTS:
        axes.plot(curve.steps, values, color=colour, linewidth=0.7, alpha=0.3)
        axes.plot(curve.steps, _running_mean(values, max(3, len(values) // 50)), style, color=colour,
                  linewidth=1.8, label=_label(task))  # fmt: skip
    else:
        width = 1.5 if smooth else 0.9
        axes.plot(
            curve.steps, values, style, color=colour, linewidth=width, marker=marker, label=_label(task)
        )


def _label(task: TaskCurves) -> str:
    values = ", ".join(
        f"{name}={f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in task.parameters.items()
    )
    text = f"task {task.number}: {values}" if values else f"task {task.number}"
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"


def _running_mean(values: Sequence[float], half: int) -> list[float]:
    """Each value's mean with so many on either side; those that are NaN do not count."""
    sums = list(accumulate((0.0 if math.isnan(value) else value for value in values), initial=0.0))
    counts = list(accumulate((not math.isnan(value) for value in values), initial=0))
    ends = [(max(0, at - half), min(len(values), at + half + 1)) for at in range(len(values))]
    return [
        (sums[to] - sums[start]) / (counts[to] - counts[start]) if counts[to] > counts[start] else math.nan
        for start, to in ends
    ]


def _scale(figure: Any, panels: Sequence[Axes], tasks: Sequence[TaskCurves]) -> None:  # noqa: ANN401 - a SubFigure
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    numbers = Normalize(tasks[0].number, tasks[-1].number)
    figure.colorbar(ScalarMappable(numbers, "viridis"), ax=list(panels), label="task", fraction=0.02)
