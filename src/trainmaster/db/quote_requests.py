"""Quotes, plans and operations that were asked of a server: rows that any server may work on, one at a time.

A worker holds one by a name of its own until a time; what a worker writes counts only while it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.retry_policy import Try
from trainmaster.spec.states import State

_T = t.quote_request


def add(database: Database, row: Mapping[str, object], places: int, forget_before: float) -> bool:
    """Keep a request in one of the places that its team has; False if all are taken.

    Args:
        database: the database.
        row: without ``place``.
        places: how many there are.
        forget_before: Unix seconds: those that ended before are forgotten.
    """

    def write(connection: Connection, this: Try) -> bool:
        if this.again and connection.execute(sa.select(_T.c.id).where(_T.c.id == row["id"])).first():
            return True
        connection.execute(_T.delete().where(_T.c.ended_at < forget_before))
        mine = sa.select(_T.c.place).where(_T.c.team == row["team"], _T.c.place.is_not(None))
        taken = {found.place for found in connection.execute(mine)}
        for place in range(places):
            if place in taken:
                continue
            try:
                with connection.begin_nested():
                    connection.execute(_T.insert().values(**row, place=place))
            except sa.exc.IntegrityError:  # another server has just taken it
                continue
            return True
        return False

    return database.write(write)


def claim(
    database: Database, worker: str, now: float, hold_s: float, without: Collection[str] = ()
) -> RowMapping | None:
    """Hold the oldest unclaimed request; None if there is none.

    Args:
        database: the database.
        worker: a new name.
        now: by the database's clock.
        hold_s: for how long.
        without: kinds that are left to others.
    """
    is_free = _is_free(now, without)

    def write(connection: Connection, this: Try) -> None:
        if this.again and connection.execute(sa.select(_T.c.id).where(_T.c.worker == worker)).first():
            return  # it was claimed, and the answer got lost
        oldest = sa.select(_T.c.id).where(is_free).order_by(_T.c.created_at).limit(1).scalar_subquery()
        connection.execute(
            _T.update()
            .where(_T.c.id == oldest, is_free)
            .values(
                state=State.RUNNING,
                worker=worker,
                expires_at=now + hold_s,
                attempts=_T.c.attempts + 1,
                told="[]",
                progress=None,
            )
        )

    database.write(write)
    return database.first(sa.select(_T).where(_T.c.worker == worker))


def is_any_free(database: Database, now: float, without: Collection[str] = ()) -> bool:
    """Whether there is an unclaimed request, of other kinds: quick, to be asked often."""
    return bool(database.read(sa.select(_T.c.id).where(_is_free(now, without)).limit(1)))


def write(database: Database, worker: str, values: Mapping[str, object]) -> bool:
    """Write to the request that a worker holds; False if it does not any more."""
    changed = _T.update().where(_T.c.worker == worker, _T.c.state == State.RUNNING).values(**values)
    return bool(database.execute(changed))


def end(
    database: Database, which: sa.ColumnElement[bool], now: float, *, answer: str | None, error: str | None
) -> bool:
    """End a request that is not over, and give its place back; False if it was over."""
    values = {
        "state": State.DONE,
        "place": None,
        "progress": None,
        "answer": answer,
        "error": error,
        "ended_at": now,
    }
    changed = _T.update().where(which, _T.c.state != State.DONE).values(**values)
    return bool(database.execute(changed))


def held_by(worker: str) -> sa.ColumnElement[bool]:
    """For `end`: what a worker holds."""
    return _T.c.worker == worker


def named(name: str) -> sa.ColumnElement[bool]:
    """For `end`: the request of that id."""
    return _T.c.id == name


def find(database: Database, name: str) -> RowMapping | None:
    """A request by its id."""
    return database.first(sa.select(_T).where(_T.c.id == name))


def newest(
    database: Database, kind: str, teams: Collection[str] | None, since: float, limit: int
) -> Sequence[RowMapping]:
    """Requests of a kind that were asked since then, the newest first: of these teams, or None for all."""
    mine = (_T.c.kind == kind) & (_T.c.created_at >= since)
    if teams is not None:
        mine &= _T.c.team.in_(teams)
    return database.read(sa.select(_T).where(mine).order_by(_T.c.created_at.desc(), _T.c.id).limit(limit))


def _is_free(now: float, without: Collection[str]) -> sa.ColumnElement[bool]:
    is_left = (_T.c.state == State.RUNNING) & (_T.c.expires_at < now)
    return ((_T.c.state == State.WAITING) | is_left) & _T.c.kind.not_in(without)
