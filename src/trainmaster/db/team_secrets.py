"""Secrets of teams as they are kept: sealed. What is done with them is `service.team_secrets`'s."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.patience import Try

_C = t.team_secret.c


def put(database: Database, team: str, name: str, sealed: bytes, by: str, now: float) -> bool:
    """Keep a sealed value, in place of an earlier one; False if there is no such team."""
    values = {"sealed": sealed, "changed_by": by, "changed_at": now}

    def write(connection: Connection, _: Try) -> bool:
        if connection.execute(sa.select(t.team.c.name).where(t.team.c.name == team)).scalar() is None:
            return False
        changed = connection.execute(
            t.team_secret.update().where(_C.team == team, _C.name == name).values(**values)
        )
        if not changed.rowcount:
            connection.execute(t.team_secret.insert().values(team=team, name=name, **values))
        return True

    return database.write(write)


def of_team(database: Database, team: str) -> Sequence[RowMapping]:
    """All of a team by name."""
    return database.read(sa.select(t.team_secret).where(_C.team == team).order_by(_C.name))


def remove(database: Database, team: str, name: str) -> bool:
    """Forget one; False if the team has none of that name."""

    def write(connection: Connection, this: Try) -> bool:
        gone = connection.execute(t.team_secret.delete().where(_C.team == team, _C.name == name))
        return bool(gone.rowcount) or this.again

    return database.write(write)
