"""What people ask of the store: reading only, never more than a page of rows at once."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database


def runs(database: Database, limit: int | None = None) -> Sequence[RowMapping]:
    """All runs, newest first."""
    query = sa.select(t.run).order_by(t.run.c.created_at.desc(), t.run.c.id).limit(limit)
    return database.read(query)


def models(database: Database, run: str | None, experiment: str | None = None) -> Sequence[RowMapping]:
    """Models in the order of runs (newest first), experiments and tasks.

    Columns: ``run``, ``experiment``, ``task``, ``uri``, ``metrics`` (JSON), ``parameters`` (JSON).
    """
    query = (
        sa.select(
            t.run.c.id.label("run"),
            t.experiment.c.name.label("experiment"),
            t.task.c.number.label("task"),
            t.task.c.model_uri.label("uri"),
            t.task.c.metrics,
            t.task.c.parameters,
        )
        .select_from(t.task.join(t.experiment).join(t.run))
        .where(t.task.c.model_uri.is_not(None))
        .order_by(t.run.c.created_at.desc(), t.run.c.id, t.experiment.c.ordinal, t.task.c.number)
    )
    if run is not None:
        query = query.where(t.run.c.id == run)
    if experiment is not None:
        query = query.where(t.experiment.c.name == experiment)
    return database.read(query)


def without_model(database: Database, run: str) -> Sequence[RowMapping]:
    """Experiments of a run of which tasks succeeded and left no model, in order.

    Columns: ``experiment``, ``tasks`` (how many), ``silent`` (how many of them without any metrics),
    ``metrics`` (of one of them, JSON).
    """
    task = t.task.c
    query = (
        sa.select(
            t.experiment.c.name.label("experiment"),
            sa.func.count().label("tasks"),
            sa.func.sum(sa.case((task.metrics == "{}", 1), else_=0)).label("silent"),
            sa.func.max(task.metrics).label("metrics"),
        )
        .select_from(t.task.join(t.experiment))
        .where(t.experiment.c.run_id == run, task.reason == "SUCCEEDED", task.model_uri.is_(None))
        .group_by(t.experiment.c.name, t.experiment.c.ordinal)
        .order_by(t.experiment.c.ordinal)
    )
    return database.read(query)


def tasks(
    database: Database, run: str, *, state: str | None = None, bad_only: bool = False, limit: int = 100
) -> Sequence[RowMapping]:
    """Tasks of a run with their experiment's name as ``experiment``, in order.

    Args:
        database: the database.
        run: its id.
        state: only tasks in this state.
        bad_only: only tasks that are DONE and did not succeed.
        limit: at most so many.
    """
    query = (
        sa.select(t.task, t.experiment.c.name.label("experiment"))
        .join(t.experiment)
        .where(t.experiment.c.run_id == run)
        .order_by(t.experiment.c.ordinal, t.task.c.number)
        .limit(limit)
    )
    if state is not None:
        query = query.where(t.task.c.state == state)
    if bad_only:
        query = query.where(t.task.c.state == "DONE", t.task.c.reason.not_in(("SUCCEEDED", "PRUNED")))
    return database.read(query)


def results(database: Database, run: str, experiment: str) -> Sequence[RowMapping]:
    """All tasks of one experiment that have a row, in order, with its name as ``experiment``."""
    query = (
        sa.select(t.task, t.experiment.c.name.label("experiment"))
        .join(t.experiment)
        .where(t.experiment.c.run_id == run, t.experiment.c.name == experiment)
        .order_by(t.task.c.number)
    )
    return database.read(query)


def run_ids(database: Database) -> list[str]:
    """Ids of all runs, newest first."""
    return [
        row["id"]
        for row in database.read(sa.select(t.run.c.id).order_by(t.run.c.created_at.desc(), t.run.c.id))
    ]


def attempts(
    database: Database, run: str, experiment: str | None = None, task: int | None = None, after: int = 0
) -> Sequence[RowMapping]:
    """Attempts of a run in order of experiment, task and number, those with an id above ``after``.

    Columns: ``id``, ``experiment`` (name), ``task``, ``number``, ``ended_at``.
    """
    query = (
        sa.select(
            t.attempt.c.id,
            t.experiment.c.name.label("experiment"),
            t.attempt.c.task,
            t.attempt.c.number,
            t.attempt.c.ended_at,
        )
        .join(t.experiment, t.attempt.c.experiment_id == t.experiment.c.id)
        .where(t.experiment.c.run_id == run, t.attempt.c.id > after)
        .order_by(t.experiment.c.ordinal, t.attempt.c.task, t.attempt.c.number)
    )
    if experiment is not None:
        query = query.where(t.experiment.c.name == experiment)
    if task is not None:
        query = query.where(t.attempt.c.task == task)
    return database.read(query)


def ended_attempts(database: Database, ids: Sequence[int]) -> set[int]:
    """Which of these attempts have ended."""
    ended: set[int] = set()
    for start in range(0, len(ids), 500):  # databases limit the number of values
        some = ids[start : start + 500]
        query = sa.select(t.attempt.c.id).where(t.attempt.c.id.in_(some), t.attempt.c.ended_at.is_not(None))
        ended.update(row["id"] for row in database.read(query))
    return ended


def last_event(database: Database, run: str) -> int:
    """Id of the newest event of a run, 0 if it has none."""
    query = sa.select(sa.func.max(t.event.c.id).label("last")).where(t.event.c.run_id == run)
    return database.read(query)[0]["last"] or 0


def last_notes(database: Database, run: str, limit: int) -> Sequence[RowMapping]:
    """The newest notes of a run, the oldest of them first."""
    query = (
        sa.select(t.event)
        .where(t.event.c.run_id == run, t.event.c.kind == "note")
        .order_by(t.event.c.id.desc())
        .limit(limit)
    )
    return list(reversed(database.read(query)))


def events(database: Database, run: str, after: int = 0, limit: int = 1000) -> Sequence[RowMapping]:
    """Events of a run in order, those with an id larger than ``after``."""
    query = (
        sa.select(t.event)
        .where(t.event.c.run_id == run, t.event.c.id > after)
        .order_by(t.event.c.id)
        .limit(limit)
    )
    return database.read(query)
