"""The audit: rows that are only added to, each with a hash over itself and the hash of the row before.

So a row that was changed, put in between or taken out is found by going through them (`walk`). The oldest are
removed some time (`prune`): the audit itself says then up to which hash. Who can write to the database can
make the whole chain anew: against that a hash is kept elsewhere, as by receivers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database

#: Before the first row of a chain.
BEGINNING: Final = ""
#: What is in the chain of a row beside its place.
FIELDS: Final = ("at", "name", "team", "address", "action", "status", "token")
#: How the action begins that says that older rows were removed. A request's method is followed by a path.
PRUNED: Final = "PRUNE audit, hash "
#: HTTP status of what was refused to who asked.
DENIED: Final = (401, 403, 429)
#: Any number: that of nothing else of ours. Writers come one after the other, as SQLite's do anyway.
_LOCK: Final = 0x7A11_0002
_AT_ONCE: Final = 1000
_A = t.audit.c
_S = t.audit_sink.c


def hash_of(before: str, row: Mapping[Any, Any]) -> str:
    """Of a row, and so of all before it.

    Args:
        before: the hash of the row before it.
        row: has `FIELDS`.
    """
    told = json.dumps([before, *(row[name] for name in FIELDS)])
    return hashlib.sha256(told.encode()).hexdigest()


def note(database: Database, row: Mapping[str, Any]) -> None:
    """Add what was done, or refused: a row with `FIELDS`.

    Raises:
        StoreError: the database cannot be used.
    """
    database.write(lambda connection, _: _add(connection, row), patient=False)


def entries(
    database: Database,
    team: str | None,
    before: int | None,
    limit: int,
    name: str | None = None,
    action: str | None = None,
    *,
    is_denied: bool = False,
) -> Sequence[RowMapping]:
    """The audit, newest first.

    Args:
        database: of the home.
        team: on whose behalf; None for all.
        before: the id that the page comes after.
        limit: at most so many.
        name: who, whole.
        action: a part of method and path.
        is_denied: only what was refused to who asked.
    """
    wanted = [
        None if team is None else _A.team == team,
        None if before is None else _A.id < before,
        None if name is None else _A.name == name,
        None if action is None else _A.action.contains(action, autoescape=True),
        _A.status.in_(DENIED) if is_denied else None,
    ]
    query = sa.select(t.audit).where(*(each for each in wanted if each is not None))
    return database.read(query.order_by(_A.id.desc()).limit(limit))


def walk(database: Database, after: int = 0) -> Iterator[RowMapping]:
    """All rows behind an id, oldest first."""
    while rows := following(database, after, _AT_ONCE):
        yield from rows
        after = rows[-1]["id"]


def following(database: Database, after: int, limit: int) -> Sequence[RowMapping]:
    """So many rows behind an id, oldest first."""
    return database.read(sa.select(t.audit).where(_A.id > after).order_by(_A.id).limit(limit))


def first_id(database: Database) -> int | None:
    """Of the oldest row."""
    rows = database.read(sa.select(_A.id).order_by(_A.id).limit(1))
    return rows[0]["id"] if rows else None


def hash_before(database: Database, row: int) -> str:
    """Of the newest row before an id."""
    rows = database.read(sa.select(_A.hash).where(_A.id < row).order_by(_A.id.desc()).limit(1))
    return rows[0]["hash"] if rows else BEGINNING


def removed_up_to(database: Database) -> set[str]:
    """Hashes up to which older rows were removed."""
    rows = database.read(sa.select(_A.action).where(_A.action.startswith(PRUNED, autoescape=True)))
    return {row["action"].removeprefix(PRUNED) for row in rows}


def prune(connection: Connection, before: float, now: float) -> int:
    """Remove the oldest rows, some at a time; how many.

    Only those before all that are to be kept: a clock that was set back makes no hole.

    Args:
        connection: in a transaction.
        before: Unix seconds; what is from then on is kept.
        now: Unix seconds.
    """
    _lock(connection)
    first_kept = connection.execute(sa.select(sa.func.min(_A.id)).where(_A.at >= before)).scalar()
    old = sa.select(_A.id, _A.hash).order_by(_A.id).limit(_AT_ONCE)
    rows = connection.execute(old if first_kept is None else old.where(_A.id < first_kept)).all()
    if not rows:
        return 0
    # First: the newest row is never removed, so SQLite gives no id twice. It is none of those that are old.
    at = max(now, before)
    row = {"at": at, "name": "retention", "address": "", "action": PRUNED + rows[-1].hash, "status": 200}
    _add(connection, {**row, "team": None, "token": None})
    return connection.execute(t.audit.delete().where(_A.id <= rows[-1].id)).rowcount


# --- where it is sent ----------------------------------------------------------------------------------


def sinks(database: Database) -> Sequence[RowMapping]:
    """Where the audit was ever sent, and how far that is."""
    return database.read(sa.select(t.audit_sink).order_by(_S.target))


def sink(database: Database, target: str) -> RowMapping:
    """How far one receiver is; one that is new has nothing."""
    query = sa.select(t.audit_sink).where(_S.target == target)

    def make(connection: Connection, _: object) -> None:
        _lock(connection)
        if connection.execute(query).first() is None:
            connection.execute(t.audit_sink.insert().values(target=target))

    if not (rows := database.read(query)):
        database.write(make)
        rows = database.read(query)
    return rows[0]


def claim_sink(database: Database, row: RowMapping, owner: str, now: float, until: float) -> bool:
    """Become the sender for a while, or stay it; False if another one is, or was since the row was read."""
    free = _S.owner.is_(None) | (_S.owner == owner) | (_S.expires_at < now)
    take = t.audit_sink.update().where(_S.target == row["target"], free, _S.sent == row["sent"])
    take = take.values(owner=owner, expires_at=until)
    return database.execute(take) == 1


def change_sink(database: Database, target: str, owner: str, **values: object) -> bool:
    """Write how far it is; False if another one sends there by now."""
    change = t.audit_sink.update().where(_S.target == target, _S.owner == owner).values(**values)
    return bool(database.execute(change))


def _add(connection: Connection, row: Mapping[str, Any]) -> None:
    _lock(connection)
    before = connection.execute(sa.select(_A.hash).order_by(_A.id.desc()).limit(1)).scalar() or BEGINNING
    connection.execute(t.audit.insert().values(**row, hash=hash_of(before, row)))


def _lock(connection: Connection) -> None:
    """Until the end of the transaction there are no other writers: ids grow as the chain does."""
    if connection.dialect.name != "sqlite":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
