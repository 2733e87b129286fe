"""Rows of tasks and attempts: many changes become few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.changes import Change, ClosedAttempt, Progress, TaskChange
from trainmaster.db.events import json_column, storable
from trainmaster.spec.states import State

#: Columns of a task that hold JSON text.
JSON_COLUMNS = frozenset({"parameters", "metrics", "bad_checkpoints"})

Row = dict[str, Any]


def write_tasks(
    connection: Connection, changes: Sequence[Change], experiment_ids: Mapping[str, int], now: float
) -> None:
    """Write what changes say of tasks and their attempts; the others are passed over.

    Args:
        connection: in a transaction.
        changes: in order; the last word on a column counts.
        experiment_ids: by name.
        now: Unix seconds.
    """
    rows: dict[tuple[int, int], Row] = {}
    new: set[tuple[int, int]] = set()
    opened: list[Row] = []
    closed: list[Row] = []
    for change in changes:
        if not isinstance(change, TaskChange | Progress):
            continue
        experiment = experiment_ids[change.experiment]
        key = (experiment, change.task)
        row = rows.setdefault(key, {})
        row.update((name, _encoded(name, value)) for name, value in change.fields.items())
        if isinstance(change, Progress):
            continue
        row["state"] = change.after
        row["reason"] = change.reason if change.after is State.DONE else None
        if change.message or change.after is State.DONE:
            row["message"] = storable(change.message)
        if change.creates:
            new.add(key)
        if change.opens:
            row["attempt"] = change.attempt
            opened.append(
                {"experiment_id": experiment, "task": change.task, "number": change.attempt, "opened_at": now}
            )
        if change.closes:
            closed.append(_closed(experiment, change.task, change.closes))
    _write_rows(connection, rows, new)
    if opened:
        connection.execute(t.attempt.insert(), opened)
    if closed:
        connection.execute(_CLOSE_ATTEMPT, closed)


def tasks_of(run: str) -> sa.Select[Any]:
    """The tasks of a run in order, with their experiment's name as ``experiment``."""
    return (
        sa.select(t.task, t.experiment.c.name.label("experiment"))
        .join(t.experiment)
        .where(t.experiment.c.run_id == run)
        .order_by(t.experiment.c.ordinal, t.task.c.number)
    )


def _write_rows(connection: Connection, rows: dict[tuple[int, int], Row], new: set[tuple[int, int]]) -> None:
    # Rows are grouped by their columns so that each group is one statement for the driver.
    inserts: dict[tuple[str, ...], list[Row]] = {}
    updates: dict[tuple[str, ...], list[Row]] = {}
    for (experiment, number), row in rows.items():
        if (experiment, number) in new:
            full = {"experiment_id": experiment, "number": number, **row}
            inserts.setdefault(tuple(sorted(full)), []).append(full)
        elif row:
            updates.setdefault(tuple(sorted(row)), []).append(
                {"b_experiment": experiment, "b_number": number, **row}
            )
    for group in inserts.values():
        connection.execute(t.task.insert(), group)
    for columns, group in updates.items():
        connection.execute(_update_task(columns), group)


def _closed(experiment: int, task: int, closes: ClosedAttempt) -> Row:
    columns = {name: getattr(closes, name) for name in _CLOSED} | {"message": storable(closes.message)}
    return {"b_experiment": experiment, "b_task": task, "b_number": closes.number, **columns}


def _encoded(name: str, value: object) -> object:
    return json_column(value) if name in JSON_COLUMNS else value


#: Columns of an attempt that its end gives.
_CLOSED = tuple(name for name in ClosedAttempt.__slots__ if name in t.attempt.c and name != "number")
_CLOSE_ATTEMPT = (
    t.attempt.update()
    .where(
        t.attempt.c.experiment_id == sa.bindparam("b_experiment"),
        t.attempt.c.task == sa.bindparam("b_task"),
        t.attempt.c.number == sa.bindparam("b_number"),
    )
    .values({name: sa.bindparam(name) for name in _CLOSED})
)
_update_statements: dict[tuple[str, ...], sa.Update] = {}


def _update_task(columns: tuple[str, ...]) -> sa.Update:
    if columns not in _update_statements:
        _update_statements[columns] = (
            t.task.update()
            .where(
                t.task.c.experiment_id == sa.bindparam("b_experiment"),
                t.task.c.number == sa.bindparam("b_number"),
            )
            .values({name: sa.bindparam(name) for name in columns})
        )
    return _update_statements[columns]
