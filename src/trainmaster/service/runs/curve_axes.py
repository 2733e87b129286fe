"""What a curve may run over beside steps: seconds, by the samples of the node, and epochs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainmaster.executors.usage import member_samples

if TYPE_CHECKING:
    from trainmaster.executors.member_metrics import MemberMetrics


def written_at(metrics: MemberMetrics) -> list[tuple[float, float]]:
    """How many bytes a member had written at each look at it, and when that was, by the clock of its node.

    Both rise; empty if it is not known.

    Args:
        metrics: of the member, read before: it says whether its file or its log counts.
    """
    looks = [
        row
        for row in member_samples(metrics.directory).get(metrics.member, ())
        if isinstance(row.get("time"), int | float)
    ]
    kind, _ = metrics.place
    known = [(row[kind], row["time"]) for row in looks if isinstance(row.get(kind), int)]
    if not known:
        return []
    marks: list[tuple[float, float]] = [(0.0, looks[0]["time"] - looks[0]["seconds"])]
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
