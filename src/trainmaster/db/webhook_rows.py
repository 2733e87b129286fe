"""Rows of webhooks, and which server sends which notice when.

A sender claims a notice by counting its tries up, which puts off the next try: one that dies while it sends
leaves it to be sent again, under the same id.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction

#: What was delivered or given up is shown for so long, in seconds.
SHOWN_S: Final = 30 * 86400.0


def due(database: Database, now: float, without: Collection[str], limit: int) -> Sequence[RowMapping]:
    """Notices that may be sent now, with their webhooks; of each webhook one, the oldest.

    Args:
        database: the database.
        now: Unix seconds.
        without: webhooks that are left out.
        limit: at most so many.
    """
    is_open = (t.notice.c.done_at.is_(None), t.notice.c.due_at <= now, t.webhook.c.disabled_at.is_(None))
    query = (
        sa.select(t.notice, t.webhook.c.kind, t.webhook.c.team, t.webhook.c.target, t.webhook.c.secrets)
        .join(t.webhook)
        .where(*is_open, t.webhook.c.id.not_in(without))
        .order_by(t.notice.c.due_at, t.notice.c.id)
        .limit(limit)
    )
    oldest: dict[str, RowMapping] = {}
    for row in database.read(query):
        oldest.setdefault(row["webhook_id"], row)
    return list(oldest.values())


def claim(database: Database, notice: RowMapping, until: float) -> bool:
    """Whether a notice is ours to send; if nothing comes of it, it is due again at ``until``."""
    mine = t.notice.update().where(
        t.notice.c.id == notice["id"], t.notice.c.tries == notice["tries"], t.notice.c.done_at.is_(None)
    )
    values = {"tries": notice["tries"] + 1, "due_at": until}
    return database.execute(mine.values(values), patient=False) == 1


def end(
    database: Database, notice: RowMapping, status: str, now: float, again_at: float | None, *, given_up: bool
) -> None:
    """Write what came of a try: done, to be tried again, or given up, which disables the webhook.

    No effect if somebody else has claimed the notice since.
    """
    values = (
        {"status": status, "done_at": now} if again_at is None else {"status": status, "due_at": again_at}
    )
    hook = notice["webhook_id"]

    def write(connection: Connection, _: object) -> None:
        mine = t.notice.c.id == notice["id"], t.notice.c.tries == notice["tries"] + 1
        is_ours = connection.execute(t.notice.update().where(*mine).values(values)).rowcount == 1
        if given_up and is_ours:
            rest = t.notice.update().where(t.notice.c.webhook_id == hook, t.notice.c.done_at.is_(None))
            connection.execute(rest.values(done_at=now, status="not sent: disabled before"))
            off = t.webhook.update().where(t.webhook.c.id == hook, t.webhook.c.disabled_at.is_(None))
            connection.execute(off.values(disabled_at=now, disabled_why=status))
        connection.execute(t.notice.delete().where(t.notice.c.done_at < now - SHOWN_S))

    database.write(write, patient=False)


# --- webhooks -------------------------------------------------------------------------------------------


def add_hook(database: Database, row: Mapping[str, object]) -> None:
    """Keep a new webhook."""
    database.execute(t.webhook.insert().values(**row), patient=False)


def hooks_query(team: str | None) -> sa.Select[Any]:
    """Webhooks of a team, or of all (None)."""
    query = sa.select(t.webhook).order_by(t.webhook.c.created_at, t.webhook.c.id)
    return query if team is None else query.where(t.webhook.c.team == team)


def change_hook(database: Database, hook: str, values: Mapping[str, object]) -> None:
    """Change columns of a webhook."""
    changed = t.webhook.update().where(t.webhook.c.id == hook).values(**values)
    database.execute(changed)


@transaction
def remove_hook(connection: Connection, hook: str) -> None:
    """Forget a webhook, and what it was to be told."""
    connection.execute(t.notice.delete().where(t.notice.c.webhook_id == hook))
    connection.execute(t.webhook.delete().where(t.webhook.c.id == hook))


def deliveries_query(hook: str, limit: int) -> sa.Select[Any]:
    """What a webhook was told and is to be told, newest first."""
    query = sa.select(t.notice).where(t.notice.c.webhook_id == hook)
    return query.order_by(t.notice.c.at.desc(), t.notice.c.id).limit(limit)
