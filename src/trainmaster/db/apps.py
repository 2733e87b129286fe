"""Apps and who is let in to them: rows that servers, the process of an app, and proxies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.spec.states import State

_A = t.app
_P = t.app_pass
#: Any number: that of nothing else of ours.
_OPENING: Final = 0x7A11_A995


@transaction
def add(connection: Connection, row: Mapping[str, object], most: int) -> RowMapping | None:
    """Keep a new app, or find the one that is open in its ``place``; None if its team has ``most`` open."""
    there = sa.select(_A).where(_A.c.place == row["place"])
    of_team = sa.select(sa.func.count()).where(
        _A.c.state != State.DONE, _A.c.team.is_not_distinct_from(row["team"])
    )
    if connection.dialect.name != "sqlite":  # where every writer is alone
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING)))
    found = connection.execute(there).mappings().first()
    if found is None and connection.execute(of_team).scalar_one() < most:
        connection.execute(_A.insert().values(**row))
        found = connection.execute(there).mappings().one()
    return found


def find(database: Database, app: str) -> RowMapping | None:
    """An app by its id."""
    return database.first(sa.select(_A).where(_A.c.id == app))


def apps(database: Database, teams: Sequence[str | None] | None, most: int) -> Sequence[RowMapping]:
    """Those of teams (None in it: of the owner of the home) or of all, the newest first."""
    query = sa.select(_A).order_by(_A.c.created_at.desc(), _A.c.id).limit(most)
    if teams is not None:
        named = [team for team in teams if team is not None]
        query = query.where(_A.c.team.in_(named) | (_A.c.team.is_(None) if None in teams else sa.false()))
    return database.read(query)


def open_here(database: Database, home_id: str) -> Sequence[RowMapping]:
    """Those of a home that are not over."""
    return database.read(sa.select(_A).where(_A.c.home_id == home_id, _A.c.state != State.DONE))


def claim(database: Database, app: str, owner: str, expires_at: float) -> bool:
    """Be the process that looks after an app; False if another one is, or was."""
    free = (_A.c.id == app, _A.c.state != State.DONE, _A.c.owner.is_(None))
    database.execute(_A.update().where(*free).values(owner=owner, expires_at=expires_at))
    found = find(database, app)
    return found is not None and found["owner"] == owner


def change(database: Database, app: str, **values: object) -> bool:
    """Write to an app that is not over; False if it is."""
    changed = _A.update().where(_A.c.id == app, _A.c.state != State.DONE).values(**values)
    return bool(database.execute(changed))


def note_use(database: Database, app: str, now: float) -> None:
    """It was used; an older time changes nothing."""
    used = _A.update().where(_A.c.id == app, _A.c.used_at < now).values(used_at=now)
    database.execute(used, patient=False)


@transaction
def end(connection: Connection, app: str, reason: str, now: float) -> None:
    """It is over, and its door is closed; what it was the end of stays what it was."""
    connection.execute(
        _A.update()
        .where(_A.c.id == app, _A.c.state != State.DONE)
        .values(state=State.DONE, reason=reason, ended_at=now, place=None, port=None, expires_at=None)
    )
    connection.execute(_P.delete().where(_P.c.app_id == app))


# --- who is let in ---------------------------------------------------------------------------------------


def add_pass(database: Database, row: Mapping[str, object], now: float) -> None:
    """Keep a ticket; those that are over are forgotten."""
    database.add_lasting(_P, row, _P.c.expires_at <= now)


def take_ticket(
    database: Database, ticket: str, cookie: str, expires_at: float, now: float
) -> RowMapping | None:
    """Make a cookie of a ticket, once; None if it is not known, used already or over.

    Args:
        database: the database.
        ticket: SHA-256 of it.
        cookie: SHA-256 of the cookie.
        expires_at: of the cookie.
        now: Unix seconds.
    """
    good = (_P.c.digest == ticket, _P.c.is_ticket.is_(True), _P.c.expires_at > now)
    changed = _P.update().where(*good).values(digest=cookie, is_ticket=False, expires_at=expires_at)
    database.execute(changed)
    return passes(database, [cookie], now).get(cookie)


def passes(database: Database, cookies: Sequence[str], now: float) -> dict[str, RowMapping]:
    """What cookies are good for, by their SHA-256."""
    good = (_P.c.digest.in_(cookies), _P.c.is_ticket.is_(False), _P.c.expires_at > now)
    return {row["digest"]: row for row in database.read(sa.select(_P).where(*good))}
