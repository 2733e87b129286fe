"""Columns that hold what is sealed, by their tables: which keys sealed what, and the same sealed again.

Secrets of teams as they are kept: sealed. What is done with them is `service.team_secrets`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Admit, Database, transaction
from trainmaster.db.retry_policy import Try
from trainmaster.db.transactions import put_row

_C = t.team_secret.c


@transaction
def put_secret(
    connection: Connection,
    team: str,
    name: str,
    sealed: bytes,
    by: str,
    now: float,
    admit: Admit = lambda _: None,
) -> bool:
    """Keep a sealed value, in place of an earlier one; False if there is no such team.

    ``admit`` is called before that, in the transaction; what it raises leaves all as it was.
    """
    values = {"sealed": sealed, "changed_by": by, "changed_at": now}
    if connection.execute(sa.select(t.team.c.name).where(t.team.c.name == team)).scalar() is None:
        return False
    admit(connection)
    put_row(connection, t.team_secret, {"team": team, "name": name}, values)
    return True


def of_team(database: Database, team: str) -> Sequence[RowMapping]:
    """All of a team by name."""
    return database.read(sa.select(t.team_secret).where(_C.team == team).order_by(_C.name))


def has(connection: Connection, team: str, name: str) -> bool:
    """Whether a team has one of that name, as a transaction sees it."""
    return connection.execute(sa.select(_C.name).where(_C.team == team, _C.name == name)).first() is not None


def remove(database: Database, team: str, name: str, admit: Admit = lambda _: None) -> bool:
    """Forget one; False if the team has none of that name. ``admit``: see `put_secret`."""

    def write(connection: Connection, this: Try) -> bool:
        admit(connection)
        gone = connection.execute(t.team_secret.delete().where(_C.team == team, _C.name == name))
        return bool(gone.rowcount) or this.again

    return database.write(write)


#: All that is sealed. A new column of that kind belongs here, or it is lost with the key before.
COLUMNS: Final[tuple[sa.Column[Any], ...]] = (
    t.team_secret.c.sealed,
    t.webhook.c.secrets,
    t.workflow.c.secret,
    t.run_private.c.sealed,
)


def heads(database: Database, head_bytes: int) -> Counter[bytes]:
    """How many values begin with what, which names their keys.

    Raises:
        StoreError: the database cannot be used.
    """
    found: Counter[bytes] = Counter()
    for column in COLUMNS:
        head = sa.func.substr(column, 1, head_bytes, type_=sa.LargeBinary()).label("head")
        query = sa.select(head, sa.func.count().label("values")).where(column.is_not(None)).group_by(head)
        rows: Sequence[RowMapping] = database.read(query)  # type: ignore[arg-type]  # of no table
        for row in rows:
            found[bytes(row["head"])] += row["values"]
    return found


def with_other_heads(database: Database, head: bytes) -> Iterator[tuple[sa.Column[Any], RowMapping]]:
    """Columns and rows whose values begin otherwise, as they are when their turn comes.

    Raises:
        StoreError: the database cannot be used.
    """
    for column in COLUMNS:
        is_other = sa.func.substr(column, 1, len(head), type_=sa.LargeBinary()) != head
        for key in database.read(sa.select(*column.table.primary_key.columns).where(is_other)):
            same = [column.table.c[name] == value for name, value in key.items()]
            for row in database.read(sa.select(column.table).where(*same, is_other)):
                yield column, row


@transaction
def put(connection: Connection, column: sa.Column[Any], row: RowMapping, value: bytes) -> bool:
    """Write a value in place of the one of a row; False if somebody has written another one since.

    Raises:
        StoreError: the database cannot be used.
    """
    same = [each == row[each.name] for each in column.table.primary_key.columns]
    change = column.table.update().where(*same, column == row[column.name])
    return connection.execute(change.values({column.name: value})).rowcount == 1


def runs_away(database: Database) -> list[str]:
    """Runs that a machine of their own drives, with what this database had sealed for it.

    Raises:
        StoreError: the database cannot be used.
    """
    rows = database.read(sa.select(t.run.c.id).where(t.run.c.away.is_not(None)).order_by(t.run.c.id))
    return [row["id"] for row in rows]
