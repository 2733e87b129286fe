"""Pictures that the server makes, as SVG: the graph of a run, quote against truth, parallel coordinates.

Numbers here are places; templates draw them, so that names are escaped in one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Of boxes in a graph, and the gaps between them.
_WIDTH, _HEIGHT, _ACROSS, _DOWN = 168, 52, 56, 18
#: Of parallel coordinates: between two axes, their length, and the margins for names and numbers.
_AXIS_GAP, _AXIS, _SIDE, _TOP = 150, 220, 70, 40
#: Numbers that differ by more than this lie by their logarithm.
_WIDE: Final = 30.0
#: More lines hide each other.
MAX_LINES: Final = 200


def graph(experiments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Places of boxes and arrows: what waits for nothing is at the left.

    Args:
        experiments: in order, each with ``experiment`` and ``after``.

    Returns:
        ``width``, ``height``, ``boxes`` (``experiment``, ``x``, ``y``) and ``arrows`` (paths).
    """
    columns: dict[str, int] = {}
    rows: dict[int, int] = {}
    boxes: dict[str, dict[str, Any]] = {}
    for each in experiments:
        column = 1 + max((columns[name] for name in each["after"]), default=-1)
        columns[each["experiment"]] = column
        row = rows[column] = rows.get(column, -1) + 1
        x, y = 2 + column * (_WIDTH + _ACROSS), 2 + row * (_HEIGHT + _DOWN)
        boxes[each["experiment"]] = {"experiment": each["experiment"], "x": x, "y": y}
    arrows = []
    for each in experiments:
        there = boxes[each["experiment"]]
        for name in each["after"]:
            x1, y1 = boxes[name]["x"] + _WIDTH, boxes[name]["y"] + _HEIGHT // 2
            x2, y2 = there["x"] - 7, there["y"] + _HEIGHT // 2
            if columns[each["experiment"]] - columns[name] == 1:
                arrows.append(f"M{x1} {y1} {_curve(x1, y1, x2, y2)}")
                continue
            below = y1 + (_HEIGHT + _DOWN) // 2  # past the boxes that lie between
            turn, back = x1 + _ACROSS - 7, x2 - _ACROSS + 7
            way = _curve(x1, y1, turn, below), f"L{back} {below}", _curve(back, below, x2, y2)
            arrows.append(f"M{x1} {y1} {' '.join(way)}")
    return {
        "width": 4 + (max(columns.values(), default=0) + 1) * (_WIDTH + _ACROSS) - _ACROSS,
        "height": 4 + (max(rows.values(), default=0) + 1) * (_HEIGHT + _DOWN) - _DOWN,
        "box": {"width": _WIDTH, "height": _HEIGHT},
        "boxes": list(boxes.values()),
        "arrows": arrows,
    }


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    middle = (x1 + x2) // 2
    return f"C{middle} {y1} {middle} {y2} {x2} {y2}"


def parallel_coordinates(
    names: Sequence[str],
    lines: Sequence[tuple[Mapping[str, Any], int]],
    gap: int = _AXIS_GAP,
    falls: str = "",
) -> dict[str, Any] | None:
    """An axis per name and a line per task; None with fewer than two axes.

    Numbers lie on their axis by value, other values at even distances in the order in which they came.

    Args:
        names: of the axes, in order.
        lines: values by name, and the number of the line's colour.
        gap: between two axes.
        falls: the axis whose least value is at the top: what is minimised.

    Returns:
        ``width``, ``height``, ``axes`` (``name``, ``x``, ``ticks``, ``is_log``) and ``lines`` (``path``,
        ``colour``, ``index`` of the given one, ``ys`` on each axis: empty where it has no value).
    """
    shown = lines[:MAX_LINES]
    axes: list[ValueAxis] = []
    for name in names:
        values = [line[name] for line, _ in shown if line.get(name) is not None]
        if values:
            ends = (_TOP, _TOP + _AXIS) if name == falls else (_TOP + _AXIS, _TOP)
            axes.append(ValueAxis(name, _SIDE + len(axes) * gap, values, *ends))
    if len(axes) < 2:
        return None
    drawn = []
    for index, (line, colour) in enumerate(shown):
        points = [f"{a.x} {a.place(line[a.name]):.1f}" for a in axes if line.get(a.name) is not None]
        if len(points) > 1:
            ys = ["" if line.get(a.name) is None else f"{a.place(line[a.name]):.1f}" for a in axes]
            path = "M" + " L".join(points)
            drawn.append({"path": path, "colour": colour % 8, "index": index, "ys": ",".join(ys)})
    return {
        "width": 2 * _SIDE + (len(axes) - 1) * gap,
        "height": _AXIS + _TOP + 20,
        "top": _TOP,
        "bottom": _TOP + _AXIS,
        "axes": [{"name": a.name, "x": a.x, "ticks": a.ticks(), "is_log": a.is_log} for a in axes],
        "lines": drawn,
    }


class ValueAxis:
    """One axis: where a value lies on it.

    Attributes:
        name: what it shows.
        x: where it stands, if it is one of several.
        is_log: whether values lie by their logarithm.

    Args:
        name: what it shows.
        x: where it stands.
        values: all that it has to show.
        begin: place of the least. end: of the greatest.
        wide: of numbers the greatest over the least from which on logarithms are taken.
    """

    def __init__(
        self,
        name: str,
        x: int,
        values: Sequence[Any],
        begin: float = _TOP + _AXIS,
        end: float = _TOP,
        wide: float = _WIDE,
    ) -> None:
        self.name = name
        self.x = x
        self._begin, self._end = begin, end
        self.is_log = False
        self._numbers = all(_is_number(value) for value in values)
        if self._numbers:
            self._low, self._high = min(values), max(values)
            # Such a range was most likely sampled by its logarithm.
            self.is_log = self._low > 0 and self._high / self._low > wide
        else:
            self._words = {text: number for number, text in enumerate(dict.fromkeys(map(str, values)))}

    def place(self, value: Any) -> float:  # noqa: ANN401 - a parameter
        """Where it lies."""
        if not self._numbers:
            return self._y(self._words[str(value)] / max(1, len(self._words) - 1))
        if self._high == self._low:
            return self._y(0.5)
        low, high, at = (self._scaled(each) for each in (self._low, self._high, value))
        return self._y((at - low) / (high - low))

    def ticks(self) -> list[dict[str, Any]]:
        """What is written beside it."""
        if not self._numbers:
            return [{"text": text, "y": self.place(text)} for text in self._words]
        ends = dict.fromkeys((self._low, self._high))
        return [{"text": f"{value:.4g}", "y": self.place(value)} for value in ends]

    def _scaled(self, value: float) -> float:
        return math.log(value) if self.is_log else float(value)

    def _y(self, share: float) -> float:
        return self._begin + share * (self._end - self._begin)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
