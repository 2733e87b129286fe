"""Rows of what could not be saved: models that are kept in a home, tasks that still wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.events import event_row, insert_events
from trainmaster.spec.states import EndReason, State


class Reader(Protocol):
    """What answers queries: the database."""

    def read(self, query: sa.Select[Any]) -> Sequence[RowMapping]:
        """All rows."""
        ...


#: A summary names the first ones.
_MOST = 1000


def kept_models(database: Reader, run: str) -> Sequence[RowMapping]:
    """Tasks of a run that are over and whose model is kept; their experiment's name is ``experiment``."""
    return [row for row in database.read(kept_models_query(run)) if row["state"] == State.DONE]


def kept_models_query(run: str) -> sa.Select[tuple[object, ...]]:
    """Tasks of a run whose model is kept; without their state, by which SQLite would go through all tasks."""
    return _tasks(run).where(t.task.c.kept_model.is_not(None))


def waiting_saves(database: Reader, run: str) -> Sequence[RowMapping]:
    """Tasks of a run of which something cannot be saved yet, likewise."""
    states = (State.SAVING, State.RECOVERING)
    return database.read(_tasks(run).where(t.task.c.state.in_(states), t.task.c.tries > 0))


def record_saved(
    connection: Connection, run: str, experiment: str, task: int, uri: str | None, now: float
) -> None:
    """A kept model was published: its task has succeeded after all, and what hung on nothing else, too.

    Args:
        connection: in a transaction.
        run: its id.
        experiment: name.
        task: number.
        uri: of the model; None: it is kept no more, and was not published.
        now: Unix seconds.
    """
    ids = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)
    mine = ids.where(t.experiment.c.name == experiment).scalar_subquery()
    row = t.task.c.experiment_id == mine, t.task.c.number == task
    if uri is None:
        connection.execute(t.task.update().where(*row).values(kept_model=None))
        return
    attempt = connection.execute(sa.select(t.task.c.attempt).where(*row)).scalar_one()
    good = {"reason": EndReason.SUCCEEDED, "message": ""}
    connection.execute(t.task.update().where(*row).values(**good, model_uri=uri, kept_model=None))
    connection.execute(
        t.attempt.update()
        .where(t.attempt.c.experiment_id == mine, t.attempt.c.task == task, t.attempt.c.number == attempt)
        .values(**good)
    )
    events = [
        event_row(
            run, now, "task", State.DONE, State.DONE, EndReason.SUCCEEDED, f"saved: {uri}",
            experiment, task, attempt,
        )
    ]  # fmt: skip
    bad = sa.exists().where(
        t.task.c.experiment_id == t.experiment.c.id,
        sa.or_(t.task.c.state != State.DONE, t.task.c.reason.not_in((EndReason.SUCCEEDED, EndReason.PRUNED))),
    )
    whole = connection.execute(
        t.experiment.update()
        .where(
            t.experiment.c.id == mine,
            t.experiment.c.state == State.DONE,
            t.experiment.c.rest_reason.is_(None),
            ~bad,
        )
        .values(**good)
    )
    if whole.rowcount:
        events.append(
            event_row(run, now, "experiment", State.DONE, State.DONE, EndReason.SUCCEEDED, "", experiment)
        )
    unfinished = sa.exists().where(
        t.experiment.c.run_id == run, t.experiment.c.reason.is_distinct_from(EndReason.SUCCEEDED)
    )
    over = connection.execute(
        t.run.update().where(t.run.c.id == run, t.run.c.state == State.DONE, ~unfinished).values(**good)
    )
    if over.rowcount:
        events.append(event_row(run, now, "run", State.DONE, State.DONE, EndReason.SUCCEEDED))
    insert_events(connection, events)


def _tasks(run: str) -> sa.Select[tuple[object, ...]]:
    return (
        sa.select(t.task, t.experiment.c.name.label("experiment"))
        .join(t.experiment)
        .where(t.experiment.c.run_id == run)
        .order_by(t.experiment.c.ordinal, t.task.c.number)
        .limit(_MOST)
    )
