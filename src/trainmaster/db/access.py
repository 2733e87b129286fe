"""Who may use a server: teams, tokens, sessions, and what was asked for. Rules: `service.users.access`.

Of tokens and cookies the SHA-256 is kept only: what is stolen with the database opens nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import ledger, workflow_rows
from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.retry_policy import Try

#: A token's last use is written at most so often, in seconds.
USED_EVERY_S = 60.0


@transaction
def add_team(connection: Connection, name: str, limits: Mapping[str, object], now: float) -> None:
    """Make a team, or change its limits; see `ledger.set_limits`."""
    if connection.execute(sa.select(t.team.c.name).where(t.team.c.name == name)).first() is None:
        connection.execute(t.team.insert().values(name=name, created_at=now))
    if limits:
        ledger.set_limits(connection, name, limits)


def teams(database: Database) -> Sequence[RowMapping]:
    """All teams by name."""
    return database.read(sa.select(t.team).order_by(t.team.c.name))


def has_team(database: Database, name: str) -> bool:
    """Whether there is a team of that name."""
    return bool(database.read(sa.select(t.team.c.name).where(t.team.c.name == name)))


def add_token(database: Database, row: Mapping[str, object]) -> str:
    """Keep a new token; else why not: ``taken`` is its name, ``revoked`` what it was to be made with."""
    c = t.token.c

    def write(connection: Connection, this: Try) -> str:
        found = connection.execute(sa.select(c.digest).where(c.name == row["name"])).scalar()
        if found is not None:
            return "" if this.again and found == row["digest"] else "taken"
        # Held, so that who revokes it just now waits, and then finds what was made with it.
        made_with = sa.select(c.revoked_at).where(c.name == row["made_with"]).with_for_update(read=True)
        if connection.execute(made_with).scalar() is not None:
            return "revoked"
        connection.execute(t.token.insert().values(**row))
        return ""

    return database.write(write)


def revoke_token(database: Database, name: str, now: float) -> list[str] | None:
    """End a token, those made with it, and the sessions opened with them; pause their workflows.

    Returns:
        Names of the workflows that were registered with them; None if there is no such token.
    """
    c, workflow = t.token.c, t.workflow.c

    def write(connection: Connection, _: Try) -> list[str] | None:
        ended, more = set[str](), {name}
        is_there = False
        while more:  # revoked first, and then looked for what was made with them: nothing more is
            ended |= more
            revoked = t.token.update().where(c.name.in_(more))
            revoked = revoked.values(revoked_at=sa.func.coalesce(c.revoked_at, now))
            is_there |= bool(connection.execute(revoked).rowcount)
            more = set(connection.execute(sa.select(c.name).where(c.made_with.in_(more))).scalars()) - ended
        connection.execute(t.web_session.delete().where(t.web_session.c.token.in_(ended)))
        made = sa.select(workflow.id, workflow.token).where(workflow.token.in_(ended))
        for found, token in connection.execute(made).all():
            why = f"the token {token} was revoked: take it over or register it again"
            workflow_rows.refuse_in(connection, found, why, now)
        names = sa.select(workflow.name).where(workflow.token.in_(ended)).order_by(workflow.name)
        return list(connection.execute(names).scalars()) if is_there else None

    return database.change_rights(write)


def tokens(database: Database) -> Sequence[RowMapping]:
    """All tokens by name."""
    return database.read(sa.select(t.token).order_by(t.token.c.name))


def tokens_by_name(database: Database, names: Collection[str]) -> dict[str, RowMapping]:
    """The tokens of these names."""
    return _rows_by(database, t.token.c.name, names)


def tokens_by_digest(database: Database, digests: Collection[str]) -> dict[str, RowMapping]:
    """The tokens whose SHA-256 these are."""
    return _rows_by(database, t.token.c.digest, digests)


def note_use(database: Database, token: RowMapping, now: float) -> None:
    """Write down that a token was used, unless that was done within a minute."""
    if token["used_at"] is None or now - token["used_at"] > USED_EVERY_S:
        used = t.token.update().where(t.token.c.name == token["name"]).values(used_at=now)
        database.execute(used, patient=False)


def add_session(database: Database, row: Mapping[str, object], now: float) -> None:
    """Keep a session, and forget those that are over."""
    database.add_lasting(t.web_session, row, t.web_session.c.expires_at < now)


def sessions_by_digest(database: Database, digests: Collection[str]) -> dict[str, RowMapping]:
    """The sessions whose cookies have these SHA-256."""
    return _rows_by(database, t.web_session.c.digest, digests)


def sessions(database: Database, account: str | None, now: float) -> Sequence[RowMapping]:
    """The sessions that are not over, of an account or of all (None), the newest first."""
    c = t.web_session.c
    query = sa.select(t.web_session).where(c.expires_at > now).order_by(c.created_at.desc(), c.digest)
    return database.read(query if account is None else query.where(c.account == account))


def choose_team(database: Database, digest: str, team: str) -> None:
    """Have a session be for another team."""
    chosen = t.web_session.update().where(t.web_session.c.digest == digest).values(team=team)
    database.change_rights(lambda connection, _: connection.execute(chosen))


def end_session(database: Database, digest: str) -> None:
    """Forget a session."""
    database.change_rights(
        lambda connection, _: connection.execute(
            t.web_session.delete().where(t.web_session.c.digest == digest)
        )
    )


def submission(database: Database, caller: str, key: str) -> RowMapping | None:
    """What was accepted under a key."""
    return database.first(
        sa.select(t.submission).where(t.submission.c.caller == caller, t.submission.c.key == key)
    )


def _rows_by(database: Database, column: sa.Column[str], values: Collection[str]) -> dict[str, RowMapping]:
    """The rows of a table in which a unique column has one of some values, by that value."""
    if not values:
        return {}
    return {row[column.name]: row for row in database.read(sa.select(column.table).where(column.in_(values)))}
