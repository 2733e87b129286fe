"""`TaskTable`: the tasks of a run in rows, those that need somebody first, or by any column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.service.runs.comparison import varied
from trainmaster.service.runs.curves import goal_of
from trainmaster.spec.metric_names import COUNTERS, in_order, says_how_good
from trainmaster.spec.states import FINISHED

#: Columns of metrics and of parameters, at most.
_METRICS: Final = 3
_PARAMETERS: Final = 5


@dataclass(frozen=True, slots=True)
class TaskTable:
    """Rows, and what their columns are.

    Attributes:
        parameters, metrics: names of columns.
        rows: as `RunDetails.tasks` has them, and ``took_s`` (None before it has begun).
        total: how many tasks there are. by: what they are sorted by: a column, with ``-`` from the greatest;
            empty: failed and running ones first, then the best.
        has_places: they are in several places.
    """

    parameters: Sequence[str]
    metrics: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    total: int
    by: str
    has_places: bool

    @classmethod
    def of(
        cls, tasks: Sequence[Mapping[str, Any]], total: int, now: float, by: str = "", most: int | None = None
    ) -> TaskTable:
        """A table of tasks.

        Args:
            tasks: those with a row, in order.
            total: of all.
            now: Unix seconds.
            by: see the class.
            most: rows at most.
        """
        names = in_order({name: None for task in tasks for name in task["metrics"] if name not in COUNTERS})
        good = [name for name in names if says_how_good(name)]
        metrics = (good or names)[:_METRICS]
        rows = [{**task, "took_s": _took_s(task, now)} for task in tasks]
        goal = goal_of(metrics[0]) if good else ""
        rows.sort(key=lambda row: (_urgency(row), _rank(row, metrics[0], goal) if goal else 0.0))
        column = by.removeprefix("-")
        if column:
            with_value = [row for row in rows if _value(row, column) is not None]
            with_value.sort(key=lambda row: _ordered(_value(row, column)), reverse=by.startswith("-"))
            rows = with_value + [row for row in rows if _value(row, column) is None]
        has_places = any(row.get("place") for row in rows)
        return cls(varied(tasks)[:_PARAMETERS], metrics, rows[:most], total, by, has_places)

    def link(self, column: str) -> str:
        """What a click on a column's head sorts by: it again the other way round."""
        return f"-{column}" if self.by == column else column


def _value(row: Mapping[str, Any], column: str) -> Any:  # noqa: ANN401 - a parameter or a metric
    if column in ("task", "attempt", "took_s", "place"):
        return row.get(column)
    if column == "state":
        return row["reason"] or row["state"]
    return row["metrics"].get(column, row["parameters"].get(column))


def _ordered(value: Any) -> tuple[bool, Any]:  # noqa: ANN401
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else str(value)


def _urgency(row: Mapping[str, Any]) -> int:
    if row["state"] != "DONE":
        return 1 if row["state"] != "WAITING" else 3
    return 2 if row["reason"] in FINISHED else 0


def _rank(row: Mapping[str, Any], metric: str, goal: str) -> float:
    value = row["metrics"].get(metric)
    if not isinstance(value, int | float):
        return math.inf
    return value if goal == "min" else -value


def _took_s(task: Mapping[str, Any], now: float) -> float | None:
    began = task["started_at"]
    return None if began is None else max(0.0, (task["ended_at"] or now) - began)
