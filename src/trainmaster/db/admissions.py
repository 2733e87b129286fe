"""Rows of admissions: runs that were sent to a server, and whether their turn has come. No business rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.events import event_row, insert_events

# The state is written out: both databases use the index of open runs only for those words.
_OPEN: Final = t.run.c.state != sa.literal_column("'DONE'")
#: Those of runs that are not over, with what the run says of its waiting.
OPEN: Final[sa.Select[Any]] = (
    sa.select(t.admission, t.run.c.team, t.run.c.queued_for).join(t.run).where(_OPEN)
)
#: A run that waits for its turn is not to be driven.
WAITS: Final = sa.exists().where(t.admission.c.run_id == t.run.c.id, t.admission.c.admitted_at.is_(None))


def waiting_query(run: str | None = None) -> sa.Select[Any]:
    """Whether a run waits for its turn, or any: one row or none."""
    query = OPEN.where(t.admission.c.admitted_at.is_(None)).limit(1)
    return query if run is None else query.where(t.admission.c.run_id == run)


def ask(connection: Connection, row: Mapping[str, object]) -> None:
    """Add a run that waits for its turn."""
    connection.execute(t.admission.insert().values(**row))


def admit(connection: Connection, run: str, now: float, note: str = "") -> None:
    """Its turn has come, which ``note`` tells."""
    mine = t.admission.update().where(t.admission.c.run_id == run, t.admission.c.admitted_at.is_(None))
    connection.execute(mine.values(admitted_at=now))
    # Nothing has driven it: until now it has waited, and from now on its time is its own.
    waited = t.run.update().where(
        t.run.c.id == run, t.run.c.queued_at.is_not(None), t.run.c.lease_owner.is_(None)
    )
    waited_s = t.run.c.queued_s + (now - t.run.c.queued_at)
    connection.execute(waited.values(queued_s=waited_s, lease_expires_at=now))
    connection.execute(t.run.update().where(t.run.c.id == run).values(queued_at=None, queued_for=None))
    if note:
        insert_events(connection, [event_row(run, now, "note", message=note)])


def reprice(connection: Connection, run: str, usd_per_hour: float) -> None:
    """Its machines are others now, which cost so much per hour."""
    mine = t.admission.update().where(t.admission.c.run_id == run)
    connection.execute(mine.values(usd_per_hour=usd_per_hour))


def wait(connection: Connection, run: str, since: float, waits_for: str) -> None:
    """Write down since when it waits, and for what, as JSON."""
    connection.execute(t.run.update().where(t.run.c.id == run).values(queued_at=since, queued_for=waits_for))
