"""What was found out of a run while it was driven: the first look decides, for whoever drives it later.

A row is written once and never changed. Only the holder of the run's lease writes one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.leases import Lease
from trainmaster.db.run_files import write_held
from trainmaster.spec.facts import Fact

if TYPE_CHECKING:
    from trainmaster.db.database import Database


def facts_of(database: Database, run: str) -> dict[tuple[Fact, str], str]:
    """All that is known of a run, by kind and name."""
    rows = database.read(sa.select(t.run_fact).where(t.run_fact.c.run_id == run))
    return {(Fact(row["kind"]), row["name"]): row["value"] for row in rows}


def put_fact(database: Database, lease: Lease, kind: Fact, name: str, value: str) -> str:
    """Write down what was found, unless something is known already; what is known from now on.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """
    row = {"run_id": lease.run, "kind": kind.value, "name": name}
    query = sa.select(t.run_fact.c.value).filter_by(**row)

    def write(connection: Connection) -> str:
        known: str | None = connection.execute(query).scalar()
        if known is None:
            connection.execute(t.run_fact.insert().values(**row, value=value))
        return value if known is None else known

    return write_held(database, lease, write, alone=True)
