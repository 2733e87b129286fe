"""`RunTable`: one page of runs in any order, with the metrics, parameters and labels that one chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import queries
from trainmaster.db.database import Database
from trainmaster.db.queries import RunFilter
from trainmaster.db.run_table import column_values, offered_columns, order_by, progress, why_failed
from trainmaster.service.runs.curves import goal_of
from trainmaster.service.runs.summary import briefs, runs_summary
from trainmaster.spec.errors import UsageError
from trainmaster.spec.metric_names import COUNTERS, says_how_good
from trainmaster.spec.states import State
from trainmaster.spec.where import Both, Has, names_in

#: Columns that are not asked for: metrics that at least half of the runs have, at most so many.
USUAL_COLUMNS: Final = 3
MOST_COLUMNS: Final = 12
#: The order of `listed_runs` by the first metric that its condition names: the best run first.
BEST: Final = "best"
#: Of how many runs come before a page: more is no number that a database takes.
_MOST_DIGITS: Final = 12
#: Of so many runs the values are read at once.
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What is to be seen.

    Attributes:
        rows: of a page.
        page: its number, from 1 on.
        sort: a column, see `order_by`; with ``-`` before it what falls. Empty: newest first.
        columns: metrics, parameters and labels such as ``metric:loss``; without any the usual ones.
    """

    rows: int = 50
    page: int = 1
    sort: str = ""
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunTable:
    """What is seen.

    Attributes:
        runs: as `TeamRuns.page` has them.
        count: of all that are meant.
        page, pages: its number and how many there are.
        columns: that are shown, in order.
        offered: all that may be shown.
        values: by run and column.
        instead: by run without a value in the usual columns that say how good it is: its own metric.
        why: by run that failed, for people.
        done: by run that goes on: tasks that are done, all tasks, and the share of the work if it is known.
    """

    runs: list[dict[str, Any]]
    count: int
    page: int
    pages: int
    columns: tuple[str, ...]
    offered: tuple[str, ...]
    values: Mapping[str, Mapping[str, Any]]
    instead: Mapping[str, tuple[str, Any]]
    why: Mapping[str, str]
    done: Mapping[str, tuple[int, int, float | None]]


def run_table(database: Database, which: RunFilter, wish: TableQuery) -> RunTable:
    """See `RunTable`."""
    count = queries.count_runs(database, which=which)
    pages = max(1, -(-count // wish.rows))
    number = min(max(1, wish.page), pages)
    order = order_by(wish.sort.removeprefix("-"), database.clock_s(), falls=wish.sort.startswith("-"))
    runs = briefs(database, queries.runs(database, wish.rows, None, which, order, (number - 1) * wish.rows))
    ids = [run["run"] for run in runs]
    found = offered_columns(database, ids)
    labels = Counter(f"label:{name}" for run in runs for name in run.get("labels", ()))
    offered = tuple(sorted({*found, *labels} - _COUNTED, key=_rank))
    columns = wish.columns[:MOST_COLUMNS] or _usual(offered, found, len(runs))
    values = _values(database, ids, columns)
    instead = {} if wish.columns else _instead(database, ids, offered, columns, values)
    for run in runs:
        for name, value in run.get("labels", {}).items():
            values.setdefault(run["run"], {})[f"label:{name}"] = value
    failed = [run["run"] for run in runs if run["reason"]]
    going_on = [run["run"] for run in runs if run["state"] != State.DONE]
    return RunTable(
        runs,
        count,
        number,
        pages,
        columns,
        offered,
        values,
        instead,
        why_failed(database, failed),
        progress(database, going_on),
    )


def listed_runs(
    database: Database, limit: int | None, after: str | None, which: RunFilter, sort: str = ""
) -> dict[str, Any]:
    """Runs with ``values`` of what a condition names, such as ``metric:loss``: all, or a page.

    Args:
        database: the database.
        limit: as of `runs_summary`.
        after: as there; with ``sort`` how many runs come before.
        which: only these.
        sort: a column, see `TableQuery`, or `BEST`. Empty: newest first.

    Raises:
        NotFoundError: there is no such run.
        UsageError: the limit is below 1, there is no such column, or ``after`` is no number.
    """
    if not sort:
        return _with_named_values(database, runs_summary(database, limit, after, which), which)
    if limit is not None and limit < 1:
        raise UsageError(f"{limit} is no number of runs to list", "Give a limit of 1 or more.")
    if not (before := after or "0").isdecimal() or len(before) > _MOST_DIGITS:
        raise UsageError(f"{before[:100]!r} is no place in this order", "Give what the page before has told.")
    order = _order(database, which, sort)
    found = briefs(database, queries.runs(database, limit, None, which, order, int(before)))
    page: dict[str, Any] = {"runs": found}
    if limit is not None:
        count = queries.count_runs(database, which=which)
        page = {"runs": found, "older": max(count - int(before) - len(found), 0)}
    return _with_named_values(database, page, which)


def _order(database: Database, which: RunFilter, sort: str) -> list[Any]:
    """Of `queries.runs`; empty, which is the newest first, where a condition names no metric."""
    column, falls = sort.removeprefix("-"), sort.startswith("-")
    if sort == BEST:
        names = [] if which.where is None else names_in(which.where)
        its = (each.name for each in names if each.kind in ("", "metric"))
        first = next((name for name in its if _is_reported(database, which, name)), None)
        if first is None:
            return []
        column, falls = f"metric:{first}", goal_of(first) == "max"
    if found := order_by(column, database.clock_s(), falls=falls):
        return found
    what = f"there is no column {column[:100]!r} to sort by"
    hint = f"Write {BEST}, or such as created, cost, took, metric:loss; - before it turns it round."
    raise UsageError(what, hint)


def _is_reported(database: Database, which: RunFilter, metric: str) -> bool:
    assert which.where is not None
    both = Both("and", (which.where, Has("metric", metric)))
    return queries.count_runs(database, which=replace(which, where=both)) > 0


def _with_named_values(database: Database, found: Mapping[str, Any], which: RunFilter) -> dict[str, Any]:
    """A page of ``runs`` whose lines have ``values`` of what a condition names, such as ``metric:loss``."""
    if which.where is None:
        return dict(found)
    columns = [
        f"{kind}:{each.name}"
        for each in names_in(which.where)
        for kind in ("metric", "param")
        if each.kind in ("", kind)
    ][:MOST_COLUMNS]
    lines = found["runs"]
    values: dict[str, dict[str, Any]] = {}
    for at in range(0, len(lines), _AT_ONCE):
        values |= _values(database, [each["run"] for each in lines[at : at + _AT_ONCE]], columns)
    its = [{"values": values[each["run"]]} if each["run"] in values else {} for each in lines]
    return {**found, "runs": [each | more for each, more in zip(lines, its, strict=True)]}


def _values(database: Database, runs: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        run: {column: _shown(column, *pair) for column, pair in its.items()}
        for run, its in column_values(database, runs, columns).items()
    }


_COUNTED: Final = frozenset(f"metric:{name}" for name in COUNTERS)


def _rank(column: str) -> tuple[int, str]:
    kind, _, name = column.partition(":")
    if kind != "metric":
        return (3 if kind == "param" else 4), name
    return 0 if says_how_good(name) and "loss" in name else 1 if says_how_good(name) else 2, name


def _usual(offered: tuple[str, ...], found: Mapping[str, int], runs: int) -> tuple[str, ...]:
    return tuple(
        each for each in offered if each.startswith("metric:") and 2 * found[each] >= runs
    )[:USUAL_COLUMNS]  # fmt: skip


def _instead(
    database: Database,
    ids: list[str],
    offered: tuple[str, ...],
    columns: tuple[str, ...],
    values: Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[str, Any]]:
    """A run whose loss has another name is not one without a loss; names with ``train`` come last."""
    good = [each for each in offered if each.startswith("metric:") and says_how_good(each)]
    if not columns or columns[0] not in good:
        return {}
    lacking = [run for run in ids if not values.get(run, {}).keys() & {*good}]
    own = sorted({*good} - {*columns}, key=lambda each: ("train" in each, good.index(each)))[:MOST_COLUMNS]
    return {
        run: next((each.partition(":")[2], _shown(each, *its[each])) for each in own if each in its)
        for run, its in column_values(database, lacking, own).items()
        if its
    }


def _shown(column: str, least: Any, most: Any) -> Any:  # noqa: ANN401 - of a metric or parameter
    """Of a metric the best value of all tasks; of a parameter both ends, where tasks differ."""
    kind, _, name = column.partition(":")
    if kind == "metric":
        return least if goal_of(name) == "min" else most
    return least if least == most else (least, most)
