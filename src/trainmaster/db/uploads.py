"""Rows of what is uploaded to a server: how far each is, its parts, and which server makes something of it.

A part is an object that is never changed; it counts once its row is there. Of several that send the same
bytes at once the row of one is written, so what is received is what the rows say, whatever was killed when.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.retry_policy import Try

#: A claim is good for so long, and renewed by its holder.
CLAIM_S = 30.0
_OVER = ("DONE", "REMOVED")


def add(database: Database, row: dict[str, Any], quota_bytes: int, most: int) -> tuple[int, int] | None:
    """Begin an upload, if its team may have one more of this size.

    Args:
        database: of the home.
        row: of the upload.
        quota_bytes: of all that nothing was made of yet.
        most: how many those may be.

    Returns:
        None, or what there is already in the way: bytes and uploads.
    """

    def write(connection: Connection, this: Try) -> tuple[int, int] | None:
        team = t.team.select().where(t.team.c.name == row["team"]).with_for_update()
        connection.execute(team)  # one at a time of a team: two may not fit together
        if this.again and connection.execute(_by_id(row["id"])).first():
            return None
        total = sa.func.coalesce(sa.func.sum(t.upload.c.size_bytes), 0)
        mine = t.upload.c.team.is_not_distinct_from(row["team"]) & t.upload.c.state.not_in(_OVER)
        there, count = connection.execute(sa.select(total, sa.func.count()).where(mine)).one()
        if there + row["size_bytes"] > quota_bytes or count >= most:
            return int(there), int(count)
        connection.execute(t.upload.insert().values(row))
        return None

    return database.write(write)


def find(database: Database, upload: str) -> RowMapping | None:
    """An upload that was not removed."""
    return database.first(_by_id(upload).where(t.upload.c.state != "REMOVED"))


def of_teams(
    database: Database, teams: Collection[str | None] | None, name: str | None = None
) -> Sequence[RowMapping]:
    """What is not made into something yet, newest first; of some teams, or of all (None), by name."""
    query = t.upload.select().where(t.upload.c.state.not_in(_OVER)).order_by(t.upload.c.created_at.desc())
    if teams is not None:
        query = query.where(sa.or_(*(t.upload.c.team.is_not_distinct_from(team) for team in teams)))
    if name is not None:
        query = query.where(t.upload.c.name == name)
    return database.read(query.limit(1000))


def add_part(database: Database, upload: str, offset: int, size_bytes: int, key: str, now: float) -> bool:
    """Count a part; False if the upload does not wait for it (any more)."""

    def write(connection: Connection, this: Try) -> bool:
        part = t.upload_part.select().where(
            t.upload_part.c.upload_id == upload, t.upload_part.c.offset == offset
        )
        if this.again and (found := connection.execute(part).mappings().first()):
            return bool(found["key"] == key)
        advanced = connection.execute(
            t.upload.update()
            .where(
                t.upload.c.id == upload,
                t.upload.c.state == "OPEN",
                t.upload.c.received_bytes == offset,
                t.upload.c.size_bytes >= offset + size_bytes,
            )
            .values(received_bytes=offset + size_bytes, used_at=now)
        )
        if not advanced.rowcount:
            return False
        connection.execute(
            t.upload_part.insert().values(upload_id=upload, offset=offset, size_bytes=size_bytes, key=key)
        )
        return True

    return database.write(write)


def parts(database: Database, upload: str) -> Sequence[RowMapping]:
    """Its parts in order."""
    mine = t.upload_part.c.upload_id == upload
    return database.read(t.upload_part.select().where(mine).order_by(t.upload_part.c.offset))


@transaction
def claim(connection: Connection, uploads: Sequence[str], now: float) -> int | None:
    """Claim whole uploads, all or none, so that one at a time makes something of them.

    Args:
        connection: of its transaction.
        uploads: ids; the first stands for all.
        now: Unix seconds by `Database.clock_s`.

    Returns:
        What the claim is called; None if somebody has one, or one of them is over or not whole.
    """
    rows = connection.execute(t.upload.select().where(t.upload.c.id.in_(uploads)).with_for_update())
    found = list(rows.mappings())
    if len(found) != len(set(uploads)) or not all(_is_free(row, now) for row in found):
        return None
    token = 1 + max(int(row["claim"]) for row in found)
    connection.execute(
        t.upload.update()
        .where(t.upload.c.id.in_(uploads))
        .values(state="FINISHING", claim=token, claimed_until=now + CLAIM_S, result=None)
    )
    return token


def is_finishing(row: RowMapping, now: float) -> bool:
    """Whether a process that lives makes something of it."""
    return row["state"] == "FINISHING" and bool(row["claimed_until"] > now)


def renew(database: Database, uploads: Sequence[str], token: int, now: float) -> bool:
    """Keep a claim; False if it is lost."""
    renewed = _claimed(uploads, token).values(claimed_until=now + CLAIM_S)
    return bool(database.execute(renewed))


@transaction
def end(
    connection: Connection, uploads: Sequence[str], token: int, state: str, result: str | None, now: float
) -> bool:
    """End a claim with what came of it; False if it was lost meanwhile. To be told twice changes nothing."""
    values = {"state": state, "result": result, "used_at": now, "claimed_until": None}
    connection.execute(_claimed(uploads, token).values(values))
    found = connection.execute(_by_id(uploads[0])).mappings().first()
    return found is not None and (found["claim"], found["state"]) == (token, state)


@transaction
def remove(connection: Connection, upload: str, now: float) -> bool:
    """Take an upload away, unless somebody makes something of it just now; its rows go with `forget`."""
    row = connection.execute(_by_id(upload).with_for_update()).mappings().first()
    if row is None or is_finishing(row, now):
        return row is None
    connection.execute(t.upload.update().where(t.upload.c.id == upload).values(state="REMOVED"))
    return True


@transaction
def forget(connection: Connection, upload: str, *, keeps_row: bool = False) -> None:
    """Its objects are gone: its parts, and it itself, are no rows any more."""
    connection.execute(t.upload_part.delete().where(t.upload_part.c.upload_id == upload))
    if not keeps_row:
        connection.execute(t.upload.delete().where(t.upload.c.id == upload))


def unused(database: Database, since: float) -> Sequence[RowMapping]:
    """What was removed, and what was unused since then (Unix seconds)."""
    is_old = t.upload.c.used_at < since
    return database.read(t.upload.select().where((t.upload.c.state == "REMOVED") | is_old))


@transaction
def describe(connection: Connection, content: str, described: str) -> None:
    """Keep what was found in the files of a version; the same content is described once."""
    connection.execute(t.volume_content.delete().where(t.volume_content.c.id == content))
    connection.execute(t.volume_content.insert().values(id=content, described=described))


def described(database: Database, content: str) -> str | None:
    """What was found in the files of a version, if it was looked for."""
    rows = database.read(t.volume_content.select().where(t.volume_content.c.id == content))
    return str(rows[0]["described"]) if rows else None


def _by_id(upload: str) -> sa.Select[Any]:
    return t.upload.select().where(t.upload.c.id == upload)


def _is_free(row: RowMapping, now: float) -> bool:
    whole = row["received_bytes"] == row["size_bytes"]
    return whole and row["state"] not in _OVER and not is_finishing(row, now)


def _claimed(uploads: Sequence[str], token: int) -> sa.Update:
    held = (t.upload.c.state == "FINISHING") & (t.upload.c.claim == token)
    return t.upload.update().where(t.upload.c.id.in_(uploads), held)
