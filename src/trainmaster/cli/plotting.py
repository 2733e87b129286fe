"""``status --plot``: a picture of each search, or of what the tasks of a run without one reported."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.service.runs.curves import ExperimentCurves
from trainmaster.service.runs.search_results import SearchResults
from trainmaster.spec.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_BEST, _OTHER, _PRUNED = "#c8442b", "#3b6ea5", "#b8b8b8"
_FORMATS = (".svg", ".png", ".pdf")
#: More ticks than this on an axis of choices hide each other.
_MAX_TICKS = 12


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
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError(
            f"--plot needs matplotlib, which cannot be imported: {error}", "pip install 'trainmaster[plot]'"
        ) from error
    from trainmaster.cli.curve_plot import curves_inches, draw_curves

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
    try:
        with warnings.catch_warnings():  # a narrow picture is better than none, and than a warning
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(file)
    except OSError as error:
        raise UsageError(f"--plot {file}: {error.strerror or error}", "Choose another file.") from None


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
    from trainmaster.service import TrialState

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
    from trainmaster.service import TrialState

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
