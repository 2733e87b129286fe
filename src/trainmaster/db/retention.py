"""Rows that are not needed any more are removed, a thousand at a time; several servers may do so at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from trainmaster.db import audit
from trainmaster.db import tables as t
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from trainmaster.db.database import Database

#: So many of one transaction: others wait for it.
_AT_ONCE: Final = 1000
#: Any number: that of nothing else of ours.
_LOCK: Final = 0x7A11_0001

#: Of each kind its rows' key, and since when they are old.
_AGES: Final[dict[str, tuple[sa.Column[Any], sa.Column[Any]]]] = {
    "notices": (t.notice.c.id, t.notice.c.done_at),
    "quotes": (t.quote_request.c.id, t.quote_request.c.ended_at),
    "sessions": (t.web_session.c.digest, t.web_session.c.expires_at),
    "device_logins": (t.device_login.c.digest, t.device_login.c.expires_at),
    "sign_ins": (t.sign_in.c.digest, t.sign_in.c.expires_at),
    "login_attempts": (t.login_attempt.c.id, t.login_attempt.c.at),
    "starts": (t.workflow_firing.c.id, t.workflow_firing.c.at),
    "invites": (t.invite.c.digest, t.invite.c.expires_at),
}
KINDS: Final = (*_AGES, "sealed", "audit")


def remove_older(database: Database, kind: str, before: float) -> int:
    """Remove rows of a kind; how many. None while another server removes some.

    Args:
        database: the database.
        kind: of `KINDS`; ``sealed`` is what is private of runs that have ended without success, by their end.
        before: Unix seconds.

    Raises:
        StoreError: the database cannot be used.
    """
    now = database.clock_s()
    if kind == "audit":
        remove: Callable[[Connection], int] = partial(audit.prune, before=before, now=now)
    elif kind == "sealed":
        over = (t.run.c.state == State.DONE) & (t.run.c.ended_at < before)
        undriven = t.run.c.lease_owner.is_(None) | (t.run.c.lease_expires_at < before)
        key = t.run_private.c.run_id
        old = sa.select(key).join(t.run, t.run.c.id == key).where(over, undriven).distinct()
        remove = partial(_remove, key=key, old=old)
    else:
        key, since = _AGES[kind]
        remove = partial(_remove, key=key, old=sa.select(key).where(since < before))

    def write(connection: Connection, _: object) -> int:
        if connection.dialect.name != "sqlite":
            alone = sa.select(sa.func.pg_try_advisory_xact_lock(_LOCK))
            if not connection.execute(alone).scalar():
                return 0
        return remove(connection)

    removed = 0
    while found := database.write(write, patient=False):
        removed += found
    return removed


def _remove(connection: Connection, key: sa.Column[Any], old: sa.Select[Any]) -> int:
    return connection.execute(key.table.delete().where(key.in_(old.limit(_AT_ONCE)))).rowcount


def named_code(database: Database) -> set[str]:
    """Digests of the code of all runs that any server can go on with."""
    query = sa.select(t.run.c.code_path).where(t.run.c.can_move, t.run.c.removed_at.is_(None))
    rows = database.read(query.distinct())
    return {row["code_path"].rpartition("/")[2] for row in rows}
