"""What a table of runs needs beyond their rows: an order by any of its columns, and what stands in these."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from trainmaster.db import tables as t
from trainmaster.spec.states import FINISHED, EndReason, State

if TYPE_CHECKING:
    from trainmaster.db.database import Database
    from trainmaster.db.queries import RunFilter

_RUN, _TASK = t.run.c, t.task.c
_SOURCES: Final = {"metric": _TASK.metrics, "param": _TASK.parameters}
_NO_FAULT: Final = (*FINISHED, EndReason.CANCELLED, EndReason.SKIPPED)


def order_by(column: str, now: float, *, falls: bool) -> list[sa.ColumnElement[Any]]:
    """For `queries.runs`: what a run does not have comes last, whichever way it is.

    Args:
        column: ``run``, ``state``, ``took``, ``cost``, ``owner`` or ``created``, or a metric, parameter or
            label such as ``metric:loss``. Of a run with many tasks the least counts, or the greatest.
        now: Unix seconds of `Database.clock_s`.
        falls: the greatest first.
    """
    from trainmaster.db.run_search import JsonNumber, JsonText

    kind, _, name = column.partition(":")
    if kind in _SOURCES and name:
        pick = sa.func.max if falls else sa.func.min
        mine = t.experiment.c.run_id == _RUN.id
        found: list[Any] = [
            sa.select(pick(of(_SOURCES[kind], sa.literal(name))))
            .select_from(t.experiment.join(t.task))
            .where(mine)
            .correlate(t.run)
            .scalar_subquery()
            for of in (JsonNumber, JsonText)
        ]
    elif kind == "label" and name:
        found = [JsonText(_RUN.labels, sa.literal(name))]
    else:
        ends = sa.func.coalesce(_RUN.closed_at, _RUN.ended_at, now)
        known: dict[str, Any] = {
            "run": _RUN.id, "owner": _RUN.submitted_by, "cost": _RUN.cost_usd, "created": _RUN.created_at,
            "state": sa.func.coalesce(_RUN.reason, _RUN.state),
            "took": _RUN.earlier_s - _RUN.queued_s - _RUN.session_at + sa.func.coalesce(_RUN.queued_at, ends),
        }  # fmt: skip
        found = [known[column]] if column in known else []
    return [sa.nulls_last(each.desc() if falls else each.asc()) for each in found]


def offered_columns(database: Database, runs: Collection[str]) -> dict[str, int]:
    """Metrics and parameters of the first tasks of runs, such as ``metric:loss``: how many runs have each."""
    query = sa.select(t.experiment.c.run_id, _TASK.metrics, _TASK.parameters).join_from(t.experiment, t.task)
    query = query.where(t.experiment.c.run_id.in_(runs), _TASK.number == 0).order_by(_TASK.id)
    found: dict[str, set[str]] = defaultdict(set)
    for row in database.read(query):
        for kind, text in (("metric", row["metrics"]), ("param", row["parameters"])):
            for name in json.loads(text):
                found[f"{kind}:{name}"].add(row["run_id"])
    return {column: len(its) for column, its in found.items()}


def column_values(
    database: Database, runs: Collection[str], columns: Sequence[str]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """By run and column (a metric or parameter) the least and the greatest value of its tasks."""
    from trainmaster.db.run_search import JsonNumber, JsonText  # who asks how it stands needs no columns

    wanted = [each for each in columns if each.partition(":")[0] in _SOURCES]
    if not wanted or not runs:
        return {}
    selected: list[Any] = [t.experiment.c.run_id]
    for column in wanted:
        kind, _, name = column.partition(":")
        for of in (JsonNumber, JsonText):
            value = of(_SOURCES[kind], sa.literal(name))
            selected += [sa.func.min(value), sa.func.max(value)]
    query = sa.select(*selected).join_from(t.experiment, t.task)
    query = query.where(t.experiment.c.run_id.in_(runs)).group_by(t.experiment.c.run_id)
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    for row in database.read(query):
        run, *values = list[Any](row.values())
        pairs = [values[at : at + 4] for at in range(0, len(values), 4)]
        found[run] = {
            column: (least, most) if least is not None else (word, last)
            for column, (least, most, word, last) in zip(wanted, pairs, strict=True)
            if least is not None or word is not None
        }
    return found


def why_failed(database: Database, runs: Collection[str]) -> dict[str, str]:
    """Of runs of which a task failed the message of the first one."""
    is_bad = _TASK.reason.is_not(None) & _TASK.reason.not_in(_NO_FAULT) & (_TASK.message != "")
    of_run = sa.select(sa.func.min(_TASK.id)).join_from(t.experiment, t.task)
    of_run = of_run.where(t.experiment.c.run_id.in_(runs), is_bad).group_by(t.experiment.c.run_id)
    query = sa.select(t.experiment.c.run_id, _TASK.message).join_from(t.experiment, t.task)
    return {row["run_id"]: row["message"] for row in database.read(query.where(_TASK.id.in_(of_run)))}


def progress(database: Database, runs: Collection[str]) -> dict[str, tuple[int, int, float | None]]:
    """Of runs that go on: tasks that are done, all tasks, and the share of the work if that is known."""
    query = sa.select(_RUN.id, _RUN.recipe).where(_RUN.id.in_(runs))
    steps = {row["id"]: _steps(row["recipe"]) for row in database.read(query)}
    query = sa.select(t.experiment.c.run_id, sa.func.sum(t.experiment.c.tasks_total).label("tasks"))
    query = query.where(t.experiment.c.run_id.in_(runs)).group_by(t.experiment.c.run_id)
    totals = {row["run_id"]: int(row["tasks"]) for row in database.read(query)}
    is_seen = (_TASK.state == State.RUNNING) | _TASK.reason.in_(FINISHED)
    seen = sa.select(t.experiment.c.run_id, t.experiment.c.name, _TASK.reason, _TASK.metrics)
    seen = seen.join_from(t.experiment, t.task).where(t.experiment.c.run_id.in_(runs), is_seen)
    done: dict[str, int] = defaultdict(int)
    under_way: dict[str, float] = defaultdict(float)
    known = set()
    for row in database.read(seen):
        run, most = row["run_id"], steps.get(row["run_id"], {}).get(row["name"])
        if row["reason"] is not None:
            done[run] += 1
        elif most and isinstance(at := json.loads(row["metrics"]).get("step"), int | float):
            under_way[run] += min(1.0, at / most)
            known.add(run)
    return {
        run: (
            done[run],
            total,
            (done[run] + under_way[run]) / total if total and (total > 1 or run in known) else None,
        )
        for run, total in totals.items()
    }


def _steps(recipe: str) -> dict[str, float]:
    try:
        found: Mapping[str, Any] = json.loads(recipe)["experiments"]
        return {
            name: each["steps"] for name, each in found.items() if isinstance(each.get("steps"), int | float)
        }
    except (ValueError, KeyError, AttributeError):  # a damaged one is shown, too
        return {}


def ended_since(database: Database, which: RunFilter, since: float) -> list[tuple[str, int, float]]:
    """Why runs have ended since then, of how many that is so, and what they have cost, US dollars."""
    query = sa.select(_RUN.reason, sa.func.count().label("runs"), sa.func.sum(_RUN.cost_usd).label("usd"))
    query = query.where(which.condition(), _RUN.reason.is_not(None), _RUN.ended_at >= since)
    query = query.group_by(_RUN.reason).order_by(sa.func.count().desc(), _RUN.reason)
    return [(row["reason"], int(row["runs"]), float(row["usd"])) for row in database.read(query)]


def going_or_ended_since(which: RunFilter, since: float) -> sa.Select[Any]:
    """A query of the ids of runs that go on, or have ended since then."""
    return sa.select(_RUN.id).where(which.condition(), _RUN.ended_at.is_(None) | (_RUN.ended_at >= since))


def failed_since(database: Database, which: RunFilter, since: float, limit: int) -> list[str]:
    """Runs that have failed since then, the last ones first.

    Without those of a recipe that the same person has run since then, with success.
    """
    later = t.run.alias("later")
    put_right = sa.exists().where(
        later.c.name == _RUN.name,
        later.c.reason == EndReason.SUCCEEDED,
        later.c.created_at >= since,  # which has an index
        later.c.created_at > _RUN.ended_at,
        later.c.recipe_path == _RUN.recipe_path,
        later.c.team.is_not_distinct_from(_RUN.team),
        later.c.submitted_by.is_not_distinct_from(_RUN.submitted_by),
    )
    query = sa.select(_RUN.id).where(
        which.condition(), _RUN.reason.is_not(None), _RUN.reason.not_in(_NO_FAULT), _RUN.ended_at >= since
    )
    query = query.where(~put_right)
    return [row["id"] for row in database.read(query.order_by(_RUN.ended_at.desc(), _RUN.id).limit(limit))]
