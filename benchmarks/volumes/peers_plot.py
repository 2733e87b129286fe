"""Draws what `peers.py` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_KEYS = (
    ("files_per_s", "files/s"),
    ("samples_per_s", "samples/s"),
    ("mb_per_s", "MB/s"),
)


def draw(result: dict[str, Any], path: Path) -> None:
    """One panel for each section: medians with their ranges, ours in colour, sorted.

    Args:
        result: section -> row -> figures.
        path: of the SVG.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sections = {name: rows for name, rows in result.items() if name != "fill"}
    if not sections:
        return
    columns = 3
    lines = -(-len(sections) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(16, 4.4 * lines), squeeze=False)
    for axes in grid.flat[len(sections) :]:
        axes.axis("off")
    for axes, (section, rows) in zip(grid.flat, sections.items(), strict=False):
        key, unit = _shown(section, rows)
        figures = {name: row[key] for name, row in rows.items() if key in row}
        names = sorted(figures, key=lambda name: figures[name]["median"])
        medians = [figures[name]["median"] for name in names]
        spread = [
            [figures[name]["median"] - figures[name]["min"] for name in names],
            [figures[name]["max"] - figures[name]["median"] for name in names],
        ]
        colours = [_colour(name) for name in names]
        axes.barh(names, medians, xerr=spread, color=colours, error_kw={"lw": 0.8, "ecolor": "#555555"})
        if len(medians) > 1 and max(medians) > 30 * (min(medians) or 1) and key != "stall_share":
            axes.set_xscale("log")
        axes.set_title(section)
        axes.set_xlabel(unit)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _shown(section: str, rows: dict[str, Any]) -> tuple[str, str]:
    if section.startswith("stall"):
        return "stall_share", "share of the epoch that the training waits"
    if section.startswith("cold"):
        return "mb_per_s", "MB/s"
    return next((key, unit) for key, unit in _KEYS if any(key in row for row in rows.values()))


def _colour(name: str) -> str:
    if name.startswith("ours"):
        return "#3b6ea5"
    return "#666666" if name.startswith(("ext4", "plain")) else "#b8b8b8"
