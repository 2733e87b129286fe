"""``status --plot``: a picture of each search, or of what the tasks of a run without one reported."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.service import Curve, Quote, TrialState
from trainmaster.service.runs.curves import ExperimentCurves, TaskCurves
from trainmaster.service.runs.search_results import SearchResults
from trainmaster.spec.errors import UsageError, fails_as, imports_of
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


_BEST, _OTHER, _PRUNED = "#c8442b", "#3b6ea5", "#b8b8b8"
_FORMATS = (".svg", ".png", ".pdf")
#: More ticks than this on an axis of choices hide each other.
_MAX_TICKS = 12
#: So many tasks get a colour and a line in the legend each; more get a colour scale.
_MAX_NAMED = 10
_MAX_LABEL = 44
_COLUMNS = 3
_BAD, _POINT = "#b8b8b8", "#3b6ea5"
#: A curve with more points is drawn pale, with its running mean over it.
_NOISY_POINTS = 100
_PANEL_INCHES = (5.2, 3.4)
_CHOSEN, _BEATEN = "#c8442b", "#3b6ea5"
_LABELS = 6
#: Costs that differ by more than this are drawn on a logarithmic axis.
_WIDE = 30


def draw_run(
    run: str,
    searches: list[SearchResults],
    curves: list[ExperimentCurves],
    file: Path,
    targets: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Draw the searches of a run, and the curves of the tasks of its other experiments.

    Args:
        run: its id, for the title.
        searches: see `Service.search_results`.
        curves: see `run_curves`; of the experiments without a search.
        file: its suffix tells the format.
        targets: what its tasks train for, and how their curves go on; see `TargetForecast`.

    Raises:
        MissingPartError: matplotlib is not installed.
        UsageError: there is nothing to draw, or the file cannot be written.
    """
    if not searches and not curves:
        raise UsageError(
            f"--plot: nothing to draw: {run} has no `search`, and none of its tasks has reported a metric",
            "Call `trainmaster.report(step=..., loss=...)`, or give the recipe `metrics: {pattern: ...}`.",
        )
    with imports_of("plot", "--plot"):
        from matplotlib.figure import Figure

    parts: list[tuple[tuple[float, float], Callable[[Figure | SubFigure], None]]] = []
    if searches:
        size = (15.0, 4.6 * len(searches))
        parts.append((size, lambda place: _draw_searches(searches, place)))
    if curves:
        parts.append((curves_inches(curves), lambda place: draw_curves(curves, place, targets)))
    heights = [height for (_, height), _ in parts]
    figure = Figure(layout="constrained", figsize=(max(width for (width, _), _ in parts), sum(heights)))
    places = figure.subfigures(len(parts), 1, squeeze=False, height_ratios=heights)[:, 0]
    for (_, draw), place in zip(parts, places, strict=True):
        draw(place)
    figure.suptitle(run)
    with fails_as(f"--plot {file}", "Choose another file."), warnings.catch_warnings():
        # A narrow picture is better than none, and than a warning.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(file)


def check_format(file: Path) -> None:
    """Refuse a file whose suffix names no kind of picture.

    Raises:
        UsageError: naming those that there are.
    """
    if file.suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot {file}: unknown kind of picture", f"Write one of {', '.join(_FORMATS)}.")


def _draw_searches(searches: list[SearchResults], figure: Figure | SubFigure) -> None:
    """A row each: curves, parallel coordinates, importance of the parameters."""
    rows = figure.subfigures(len(searches), 1, squeeze=False)
    for search, row in zip(searches, rows[:, 0], strict=True):
        _draw(search, row)


def _draw(search: SearchResults, figure: Any) -> None:  # noqa: ANN401 - a SubFigure
    left, middle, right = figure.subplots(1, 3, width_ratios=[4, 5, 2])
    _curves(search, left)
    _coordinates(search, middle)
    _importance(search, right)


def _colour(search: SearchResults, number: int, pruned: bool) -> tuple[str, float, int]:
    """Colour, width and depth of a trial's line: the best one lies on top."""
    if number == search.best:
        return _BEST, 2.2, 3
    return (_PRUNED, 0.8, 1) if pruned else (_OTHER, 0.8, 2)


def _curves(search: SearchResults, axes: Axes) -> None:
    for trial in search.trials:
        colour, width, depth = _colour(search, trial.number, trial.state is not TrialState.COMPLETE)
        alone = len(trial.curve) == 1
        axes.plot(
            trial.curve.steps,
            [value if math.isfinite(value) else math.nan for value in trial.curve.values],
            color=colour, linewidth=width, zorder=depth, marker="o" if alone else "", markersize=3,
            label=f"best: task {trial.number}" if trial.number == search.best else None,
        )  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel(search.metric)
    axes.set_title(f"{search.experiment}: {len(search.trials)} tasks, pruned ones grey")
    if search.best is not None:
        axes.legend(loc="best")
    axes.spines[["top", "right"]].set_visible(False)


def _coordinates(search: SearchResults, axes: Axes) -> None:
    """One upright line per parameter and one for the metric; each task is a line across them."""
    columns = [axis.name for axis in search.space.free] + [search.metric]
    values = [t.value for t in search.trials if t.value is not None and math.isfinite(t.value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    for trial in search.trials:
        if trial.value is None or not math.isfinite(trial.value):
            continue
        heights = [axis.unit(trial.parameters[axis.name]) for axis in search.space.free]
        heights.append((trial.value - low) / (high - low) if high > low else 0.5)
        colour, width, depth = _colour(search, trial.number, trial.state is not TrialState.COMPLETE)
        axes.plot(range(len(columns)), heights, color=colour, linewidth=width, zorder=depth, alpha=0.8)
    for at, axis in enumerate(search.space.free):
        axes.axvline(at, color="black", linewidth=0.8)
        if 0 < axis.count <= _MAX_TICKS:
            ticks = [axis.value(position) for position in range(axis.count)]
        else:
            ticks = [axis.at_unit(0.0), axis.at_unit(0.5), axis.at_unit(1.0)]
        for tick in ticks:
            text = f"{tick:.4g}" if isinstance(tick, float) else axis.parameter.text(tick)[:12]
            axes.text(at, axis.unit(tick), f" {text}", fontsize=7, va="center")
    axes.axvline(len(columns) - 1, color="black", linewidth=0.8)
    for height, value in ((0.0, low), (1.0, high)):
        axes.text(len(columns) - 1, height, f" {value:.4g}", fontsize=7, va="center")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks([])
    axes.set_title("parameters")
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)


def _importance(search: SearchResults, axes: Axes) -> None:
    measure, shares = search.importance()
    ordered = sorted(shares.items(), key=lambda share: share[1])
    axes.barh([name for name, _ in ordered], [share for _, share in ordered], color=_OTHER)
    axes.set_xlim(0, 1)
    axes.set_title("importance")
    axes.set_xlabel(measure)
    axes.spines[["top", "right"]].set_visible(False)
    if not ordered:
        axes.set_axis_off()
        axes.text(0.5, 0.5, measure, ha="center", va="center", wrap=True, color="grey")


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
        _draw_curve(experiment, place, rows, columns, mine)


def _shape(panels: int) -> tuple[int, int]:
    """Rows and columns."""
    columns = min(panels, _COLUMNS)
    return math.ceil(panels / columns), columns


def _draw_curve(
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
    title = f"{experiment.name}: {counted(count, 'task')}"
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


def draw_quote(quote: Quote, name: str, file: Path) -> None:
    """Draw the Pareto front of each experiment.

    Args:
        quote: with times; the policies that know none have nothing to draw.
        name: of the recipe, for the title.
        file: its suffix tells the format.

    Raises:
        MissingPartError: matplotlib is not installed.
        UsageError: there is nothing to draw, or the file cannot be written.
    """
    drawable = [one for one in quote.experiments.values() if one.time_s and one.cost_usd]
    if not drawable:
        why = (
            "nothing is known of the job yet"
            if quote.unknown
            else f"the policy {quote.policy} knows no times"
        )
        raise UsageError(f"--plot: {why}", "Leave --plot out.")
    with imports_of("plot", "--plot"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7.0 * len(drawable), 4.6), layout="constrained")
    for axes, one in zip(figure.subplots(1, len(drawable), squeeze=False)[0], drawable, strict=True):
        assert one.time_s is not None
        assert one.cost_usd is not None
        unit, length = _unit(one.time_s.p95)
        times = [a.time_s / length for a in one.pareto]
        axes.plot(
            times,
            [a.cost_usd for a in one.pareto],
            "o-",
            color=_BEATEN,
            markersize=4,
            label="no cluster is both faster and cheaper",
        )
        step = max(1, len(one.pareto) // _LABELS)
        for alternative, at in list(zip(one.pareto, times, strict=True))[::step]:
            axes.annotate(
                alternative.cluster.words(), (at, alternative.cost_usd), fontsize=7, xytext=(4, 6),
                textcoords="offset points",
            )  # fmt: skip
        low, high = one.time_s.p50 - one.time_s.p5, one.time_s.p95 - one.time_s.p50
        cheap, dear = one.cost_usd.p50 - one.cost_usd.p5, one.cost_usd.p95 - one.cost_usd.p50
        axes.errorbar(
            [one.time_s.p50 / length], [one.cost_usd.p50], xerr=[[low / length], [high / length]],
            yerr=[[cheap], [dear]], fmt="o", color=_CHOSEN, capsize=3,
            label=f"quoted, with 90 %: {one.cluster.words()}",
        )  # fmt: skip
        axes.set_xlabel(f"time [{unit}]")
        axes.set_ylabel("cost [USD]")
        axes.set_title(one.name)
        costs = [a.cost_usd for a in one.pareto if a.cost_usd > 0]
        if costs and max(costs) > _WIDE * min(costs):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(loc="best", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(name)
    with fails_as(f"--plot {file}", "Choose another file."):
        figure.savefig(file)


def _unit(seconds: float) -> tuple[str, float]:
    if seconds > 7200:
        return "h", 3600.0
    return ("min", 60.0) if seconds > 180 else ("s", 1.0)
