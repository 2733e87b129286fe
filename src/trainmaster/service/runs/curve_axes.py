"""What a curve may run over beside steps: seconds, by the samples of the node, and epochs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.executors.usage import member_samples

if TYPE_CHECKING:
    from trainmaster.executors.member_metrics import MemberMetrics
    from trainmaster.executors.metrics import Metrics


class ReportTimes:
    """When a member has reported what, by how much it had written at each look at it.

    Args:
        metrics: of the member.
    """

    def __init__(self, metrics: MemberMetrics) -> None:
        self._metrics = metrics
        self._looks: list[dict[str, Any]] = []
        for row in member_samples(metrics.directory).get(metrics.member, ()):
            if isinstance(row.get("time"), int | float):
                self._looks.append(row)

    def rows(self) -> Iterator[tuple[Metrics, float | None]]:
        """All it has reported, each with Unix seconds by the clock of its node; None if these are unknown."""
        size, at = 1, None
        while size:
            before = self._metrics.place[1]
            rows, size = self._metrics.read()
            kind, end = self._metrics.place
            marks = self._marks(kind)
            for number, row in enumerate(rows, 1):  # lines of one member are about as long as each other
                at = placed(marks, [before + (end - before) * number / len(rows)])[0] if marks else None
                yield row, at
        for row in self._metrics.finish():
            yield row, at

    def _marks(self, kind: str) -> list[tuple[float, float]]:
        """Bytes and times, both rising, of looks that tell them."""
        known = [(row[kind], row["time"]) for row in self._looks if isinstance(row.get(kind), int)]
        if not known:
            return []
        marks: list[tuple[float, float]] = [(0.0, self._looks[0]["time"] - self._looks[0]["seconds"])]
        for size, at in known:
            if size == marks[-1][0] and size:
                continue
            marks.append((size, at)) if size else marks.__setitem__(-1, (0.0, at))
        return marks if len(marks) > 1 else []


def placed(marks: Sequence[tuple[float, float]], at: Sequence[float]) -> list[float]:
    """Values at some places, on straight lines through those that are known, the last of which goes on.

    Args:
        marks: places, rising, and values; at least two.
        at: the places.

    >>> placed([(0, 10.0), (100, 20.0), (200, 40.0)], [-1, 0, 50, 150, 250])
    [9.9, 10.0, 15.0, 30.0, 50.0]
    """
    found = []
    for x in at:
        right = min(max(1, bisect_left(marks, (x, float("-inf")))), len(marks) - 1)
        (x1, y1), (x2, y2) = marks[right - 1], marks[right]
        found.append(round(y1 + (y2 - y1) * (x - x1) / (x2 - x1), 4))
    return found
