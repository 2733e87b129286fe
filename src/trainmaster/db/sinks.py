"""How far what tasks report was sent elsewhere: rows of sinks, and a cursor for each attempt."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.transactions import put_row
from trainmaster.spec.states import State

_S = t.sink
_C = t.sink_cursor
#: Experiment, task and number of an attempt.
Attempt = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far one attempt is.

    Attributes:
        remote: what the other side calls the task.
        reports: so many of the attempt were taken.
        sending: up to here is on its way, or was when its sender died; 0 for nothing.
        sending_at: Unix seconds, of reports on their way that do not say when they were made.
        is_over: there is nothing more of it.
    """

    remote: str
    reports: int = 0
    sending: int = 0
    sending_at: float = 0.0
    is_over: bool = False


def open_sinks(database: Database, run: str | None = None) -> Sequence[RowMapping]:
    """Sinks that do not have all of their run, with ``run_state``, ``team`` and ``submitted_by`` of it."""
    query = (
        sa.select(_S, t.run.c.state.label("run_state"), t.run.c.team, t.run.c.submitted_by)
        .join(t.run, t.run.c.id == _S.c.run_id)
        .where((_S.c.state != State.DONE) | (t.run.c.state != State.DONE))
        .order_by(_S.c.try_at)
    )
    return database.read(query if run is None else query.where(_S.c.run_id == run))


def claim(database: Database, row: RowMapping, owner: str, expires_at: float) -> bool:
    """Become the sender; False if another one has become it since the row was read."""
    same = _S.c.owner.is_(None) if row["owner"] is None else _S.c.owner == row["owner"]
    free = _S.update().where(_S.c.run_id == row["run_id"], _S.c.kind == row["kind"], same)
    free = free.where(_S.c.expires_at.is_not_distinct_from(row["expires_at"]))
    values = {"owner": owner, "expires_at": expires_at}
    return bool(database.execute(free.values(values)))


def change(database: Database, run: str, kind: str, sender: str, **values: object) -> bool:
    """Write to a sink; False if another one has become the sender."""
    mine = (_S.c.run_id == run, _S.c.kind == kind, _S.c.owner == sender)
    return bool(database.execute(_S.update().where(*mine).values(values)))


def cursors(database: Database, run: str, kind: str) -> dict[Attempt, Cursor]:
    """Of all attempts of which anything was sent."""
    rows = database.read(sa.select(_C).where(_C.c.run_id == run, _C.c.kind == kind))
    names = Cursor.__slots__
    return {
        (row["experiment"], row["task"], row["attempt"]): Cursor(**{name: row[name] for name in names})
        for row in rows
    }


@transaction
def save_cursor(connection: Connection, run: str, kind: str, attempt: Attempt, cursor: Cursor) -> None:
    """Write down how far an attempt is."""
    key = {"run_id": run, "kind": kind, "experiment": attempt[0], "task": attempt[1], "attempt": attempt[2]}
    values = {name: getattr(cursor, name) for name in Cursor.__slots__}
    put_row(connection, _C, key, values)
