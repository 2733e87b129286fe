"""Whole databases: saved into a file of SQLite, made right for another place, put into an empty database."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from trainmaster.db import endpoint_changes, ledger, workflow_rows
from trainmaster.db import tables as t
from trainmaster.db.engine import make_engine, open_database, shown
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.migrations import lock_schema
from trainmaster.spec.errors import UsageError
from trainmaster.spec.states import EndReason, State

_ROWS_AT_ONCE: Final = 1000
#: In a database while a backup is put there: which one. A restore that was killed is known by it.
_MARK = sa.Table("restored_from", sa.MetaData(), sa.Column("backup", sa.Text, primary_key=True))
#: A path is a whole one: neither the end of a longer one, nor the beginning of another name.
_WHOLE: Final = r"(?:(?<=file://)|(?<![^\s\"'=:,(\[])){}(?=[/\"'\s,;)\]@]|$)"


def save(engine: Engine, file: Path) -> None:
    """Write all rows, as they are at one moment, into a new file of SQLite; writers wait for nothing.

    Args:
        engine: of the database, which has this version's schema.
        file: is not there yet.
    """
    if engine.dialect.name == "sqlite":
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("VACUUM INTO ?", (str(file),))
        finally:
            raw.close()
        return
    copy = open_database(_url(file))
    try:
        one_moment = engine.connect().execution_options(isolation_level="REPEATABLE READ")
        with one_moment as reading, copy.begin() as writing:
            _copy(reading, writing)
    finally:
        copy.dispose()


def fill(file: Path, url: str, backup: str) -> None:
    """Put all rows of a file into an empty database, in one transaction; nothing if that was done already.

    Args:
        file: of SQLite, with this version's schema.
        url: of the database.
        backup: tells it from every other one.

    Raises:
        UsageError: the database is not empty.
        StoreError: it cannot be used.
    """
    source, target = open_database(_url(file)), open_database(url)
    try:
        with source.connect() as reading, target.begin() as writing:
            lock_schema(writing)
            if _mark(writing) == backup:
                return
            if any(_has_rows(writing, table) for table in t.metadata.sorted_tables):
                raise UsageError(
                    f"the database {shown(url)} is not empty: nothing was restored",
                    "TRAINMASTER_DATABASE names another one, such as one that you have just made.",
                )
            _MARK.drop(writing, checkfirst=True)
            _MARK.create(writing)
            writing.execute(_MARK.insert().values(backup=backup))
            _copy(reading, writing)
            if writing.dialect.name != "sqlite":
                _count_on(writing)
    finally:
        source.dispose()
        target.dispose()


def forget_mark(url: str) -> None:
    """What was put into a database is whole, and its home too."""
    engine = make_engine(url)
    try:
        with engine.begin() as connection:
            _MARK.drop(connection, checkfirst=True)
    finally:
        engine.dispose()


def relocate(connection: Connection, before: Path, now: Path) -> None:
    """Have all rows of a file of SQLite mean another directory, but those of the audit: they are chained."""
    forms = _forms(before, now)
    if before == now:
        return

    def moved(text: str) -> str:
        for old, new in forms.items():
            text = re.sub(_WHOLE.format(re.escape(old)), lambda _, new=new: new, text)  # type: ignore[misc]
        return text

    raw = connection.connection.driver_connection
    assert raw is not None
    raw.create_function("moved", 1, moved, deterministic=True)
    for table in t.metadata.sorted_tables:
        for column in table.columns:
            if isinstance(column.type, sa.Text) and table is not t.audit:
                has_it = sa.or_(*(sa.func.instr(column, old) > 0 for old in forms))
                connection.execute(table.update().where(has_it).values({column.name: sa.func.moved(column)}))


def hold(connection: Connection, now: float, why: str) -> int:
    """End all that would go on by itself: runs, services, apps, workflows, messages; how many runs.

    What they have is kept: a run can be resumed, a workflow too.

    Args:
        connection: in a transaction.
        now: Unix seconds.
        why: for people; the message of such runs.
    """
    over = {"state": State.DONE, "reason": EndReason.CANCELLED, "message": why}
    runs = connection.execute(sa.select(t.run.c.id, t.run.c.state).where(t.run.c.state != State.DONE)).all()
    ids = [run.id for run in runs]
    experiments = sa.select(t.experiment.c.id).where(t.experiment.c.run_id.in_(ids))
    named = sa.select(t.experiment.c.run_id, t.experiment.c.name).where(t.experiment.c.run_id.in_(ids))
    for row in connection.execute(named).all():
        endpoint_changes.close(connection, row.run_id, row.name, now)
    connection.execute(
        t.task.update()
        .where(t.task.c.experiment_id.in_(experiments), t.task.c.state != State.DONE)
        .values(**over, ended_at=now)
    )
    connection.execute(
        t.attempt.update()
        .where(t.attempt.c.experiment_id.in_(experiments), t.attempt.c.reason.is_(None))
        .values(reason=EndReason.CANCELLED, message=why, ended_at=now)
    )
    connection.execute(
        t.experiment.update()
        .where(t.experiment.c.id.in_(experiments), t.experiment.c.state != State.DONE)
        .values(**over, rest_reason=EndReason.CANCELLED)
    )
    connection.execute(
        t.admission.update().where(t.admission.c.admitted_at.is_(None)).values(admitted_at=now)
    )
    undriven = {"lease_owner": None, "lease_expires_at": now, "stop_wanted": None, "away": None}
    connection.execute(
        t.run.update()
        .where(t.run.c.id.in_(ids))
        .values(**over, **undriven, ended_at=now, closed_at=now, queued_at=None, queued_for=None)
    )
    insert_events(
        connection,
        [event_row(run.id, now, "run", run.state, State.DONE, EndReason.CANCELLED, why) for run in runs],
    )
    for run in ids:
        ledger.release(connection, run, now)
    connection.execute(
        t.app.update()
        .where(t.app.c.state != State.DONE)
        .values(state=State.DONE, reason=why, ended_at=now, place=None, port=None, expires_at=None)
    )
    error = json.dumps({"type": "UsageError", "message": why, "hint": "Ask again."})
    connection.execute(
        t.quote_request.update()
        .where(t.quote_request.c.state != State.DONE)
        .values(state=State.DONE, place=None, progress=None, error=error, ended_at=now)
    )
    for workflow in connection.execute(sa.select(t.workflow.c.id)).scalars().all():
        workflow_rows.pause(connection, workflow, now)
    connection.execute(t.outbox.delete())  # where they come from, they were sent
    connection.execute(t.notice.update().where(t.notice.c.done_at.is_(None)).values(done_at=now, status=why))
    return len(ids)


# --- private --------------------------------------------------------------------------------------------


def _url(file: Path) -> str:
    return sa.URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def _copy(reading: Connection, writing: Connection) -> None:
    for table in t.metadata.sorted_tables:  # what is referred to comes first
        found = reading.execute(sa.select(table), execution_options={"yield_per": _ROWS_AT_ONCE})
        for rows in found.mappings().partitions():
            writing.execute(table.insert(), [dict(row) for row in rows])


def _has_rows(connection: Connection, table: sa.Table) -> bool:
    return connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None


def _mark(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(_MARK.name):
        return None
    return connection.execute(sa.select(_MARK.c.backup)).scalar()


def _count_on(connection: Connection) -> None:
    """Rows to come get numbers that none has."""
    for table in t.metadata.sorted_tables:
        column = table.autoincrement_column
        if column is None:
            continue
        most = sa.select(sa.func.max(column)).scalar_subquery()
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        is_there = most.is_not(None)
        connection.execute(sa.select(sa.func.setval(sequence, sa.func.coalesce(most, 1), is_there)))


def _forms(before: Path, now: Path) -> Mapping[str, str]:
    """How a path is written: as it is, in URLs, in JSON."""
    plain = {str(before): str(now)}
    urls = {old.replace("%", "%25"): new.replace("%", "%25") for old, new in plain.items()}
    both = {**plain, **urls}
    return {**both, **{json.dumps(old)[1:-1]: json.dumps(new)[1:-1] for old, new in both.items()}}
