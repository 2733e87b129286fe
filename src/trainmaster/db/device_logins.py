"""Logins of command lines that wait until a person confirms them; of both codes the SHA-256 is kept only."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.patience import Try

_T = t.device_login


def add(database: Database, row: Mapping[str, object], most: int, now: float) -> bool:
    """Keep one; False if so many wait already. Those that are over are forgotten."""

    def write(connection: Connection, this: Try) -> bool:
        if (
            this.again
            and connection.execute(sa.select(_T.c.digest).where(_T.c.digest == row["digest"])).first()
        ):
            return True
        connection.execute(_T.delete().where(_T.c.expires_at <= now))
        if connection.execute(sa.select(sa.func.count()).select_from(_T)).scalar_one() >= most:
            return False
        connection.execute(_T.insert().values(**row))
        return True

    return database.write(write)


def by_user_code(database: Database, digest: str, now: float) -> RowMapping | None:
    """The one that waits for a code to be confirmed."""
    waits = (_T.c.user_digest == digest, _T.c.expires_at > now, _T.c.confirmed.is_(None))
    rows = database.read(sa.select(_T).where(*waits))
    return rows[0] if rows else None


def confirm(database: Database, digest: str, confirmed: str, now: float) -> bool:
    """Note who has confirmed a code; False if no login waits for it any more."""
    waits = (_T.c.user_digest == digest, _T.c.expires_at > now, _T.c.confirmed.is_(None))
    change = _T.update().where(*waits).values(confirmed=confirmed)
    return database.write(lambda connection, _: bool(connection.execute(change).rowcount))


def find(database: Database, digest: str, now: float) -> RowMapping | None:
    """The one that has asked, as long as it waits."""
    rows = database.read(sa.select(_T).where(_T.c.digest == digest, _T.c.expires_at > now))
    return rows[0] if rows else None


def take(database: Database, digest: str) -> bool:
    """Take one out, so that it is answered once; False if another server was quicker."""
    gone = _T.delete().where(_T.c.digest == digest)
    return database.write(lambda connection, this: bool(connection.execute(gone).rowcount) or this.again)
