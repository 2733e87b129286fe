"""Models that were taken out of the registry: which of them are not needed, so that their files may go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.patience import Try
from trainmaster.spec.states import EndReason, State

_R, _V = t.removed_model.c, t.model_version.c
_PAGE: Final = 1000


def note_removed(connection: Connection, version: RowMapping, now: float) -> None:
    """Remember what a version pointed to, in the transaction that takes it out of the registry."""
    row = {key: version[key] for key in ("run_id", "experiment", "task", "uri", "team", "name", "version")}
    same = (_R.run_id == row["run_id"], _R.experiment == row["experiment"], _R.task == row["task"])
    connection.execute(t.removed_model.delete().where(*same))
    connection.execute(t.removed_model.insert().values(**row, removed_at=now))


def removed_before(database: Database, before: float) -> Iterator[RowMapping]:
    """Those that were removed before a time, the oldest first, in pages: many may stay."""
    key = (_R.removed_at, _R.run_id, _R.experiment, _R.task)
    query = sa.select(t.removed_model).where(_R.removed_at < before).order_by(*key).limit(_PAGE)
    page = database.read(query)
    while page:
        yield from page
        last = tuple(page[-1][column.name] for column in key)
        page = database.read(query.where(sa.tuple_(*key) > last))


def give_up(database: Database, row: RowMapping, before: float, now: float) -> bool:
    """Make sure that a model is not needed, nor will be: its run has it no more, and its files may go.

    What registers it holds the row of its task, as this does: it is a version by then, or gone.

    Args:
        database: the database.
        row: of `removed_before`.
        before: Unix seconds: what has ended without success since then may still be resumed with it.
        now: Unix seconds.
    """
    run, experiment, number = row["run_id"], row["experiment"], row["task"]
    mine = t.task.c.experiment_id.in_(
        sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run, t.experiment.c.name == experiment)
    )
    task = sa.select(t.task.c.id, t.task.c.model_uri).where(mine, t.task.c.number == number)
    needs = may_go_on(before)
    starts_from = (
        t.run_model.c.team == row["team"],
        t.run_model.c.name == row["name"],
        t.run_model.c.version == row["version"],
    )
    serves = (t.endpoint.c.ended_at.is_(None), t.endpoint.c.model_uri == row["uri"])
    users = (
        sa.select(_V.version).where(_V.run_id == run, _V.experiment == experiment, _V.task == number),
        sa.select(t.run.c.id).where(t.run.c.id == run, needs),
        sa.select(t.run.c.id)
        .join(t.run_model, t.run_model.c.run_id == t.run.c.id)
        .where(*starts_from, needs),
        sa.select(t.endpoint.c.id).where(*serves),
        sa.select(t.replica.c.id).where(t.replica.c.state != "GONE", t.replica.c.model_uri == row["uri"]),
    )

    def write(connection: Connection, _: Try) -> bool:
        found = connection.execute(task.with_for_update()).first()
        if any(connection.execute(query.limit(1)).first() is not None for query in users):
            return False
        if found is not None and found.model_uri == row["uri"]:
            connection.execute(t.task.update().where(t.task.c.id == found.id).values(model_uri=None))
            what = f"its model is removed: it was {row['name']}@{row['version']}, which was removed before"
            told = event_row(run, now, "note", message=what, experiment=experiment, task=number)
            insert_events(connection, [told])
        return found is None or found.model_uri in (None, row["uri"])

    return database.write(write)


def forget(database: Database, row: RowMapping) -> None:
    """Its files are gone, or it is needed again."""
    same = (_R.run_id == row["run_id"], _R.experiment == row["experiment"], _R.task == row["task"])
    gone = t.removed_model.delete().where(*same, _R.removed_at == row["removed_at"])
    database.write(lambda connection, _: connection.execute(gone))


def may_go_on(before: float) -> sa.ColumnElement[bool]:
    """Runs that go on, or may be gone on with."""
    succeeded = t.run.c.reason == EndReason.SUCCEEDED
    is_gone = succeeded | (t.run.c.ended_at < before) | t.run.c.removed_at.is_not(None)
    is_over = (t.run.c.state == State.DONE) & is_gone
    return sa.not_(sa.func.coalesce(is_over, sa.false()))
