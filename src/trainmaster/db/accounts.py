"""Users, service accounts, members, invites, attempts to log in. The rules are `service.users.accounts`'s.

Logins of command lines that wait until a person confirms them; of both codes the SHA-256 is kept only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.retry_policy import Try
from trainmaster.db.transactions import put_row

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
    return database.first(sa.select(_T).where(*waits))


def confirm(database: Database, digest: str, confirmed: str, now: float) -> bool:
    """Note who has confirmed a code; False if no login waits for it any more."""
    waits = (_T.c.user_digest == digest, _T.c.expires_at > now, _T.c.confirmed.is_(None))
    change = _T.update().where(*waits).values(confirmed=confirmed)
    return bool(database.execute(change))


def find(database: Database, digest: str, now: float) -> RowMapping | None:
    """The one that has asked, as long as it waits."""
    return database.first(sa.select(_T).where(_T.c.digest == digest, _T.c.expires_at > now))


def take(database: Database, digest: str) -> bool:
    """Take one out, so that it is answered once; False if another server was quicker."""
    return database.remove(_T.delete().where(_T.c.digest == digest))


#: An account, None if there is none, and its roles by team.
AccountRoles = tuple[RowMapping | None, dict[str, str]]
NO_ACCOUNT: AccountRoles = (None, {})

_A = t.account.c
_M = t.member.c


def add_account(database: Database, row: Mapping[str, object], role: str | None = None) -> bool:
    """Keep a new account, with a role in the team that it names; False if there is one of that name."""

    def write(connection: Connection, this: Try) -> bool:
        found = connection.execute(sa.select(_A.created_at).where(_A.name == row["name"])).scalar()
        if found is not None:
            return this.again and found == row["created_at"]
        connection.execute(t.account.insert().values(**row))
        if role is not None:
            _set_member(connection, str(row["team"]), str(row["name"]), role, by_groups=False)
        return True

    return database.write(write)


def account(database: Database, name: str) -> RowMapping | None:
    """An account by its name."""
    return database.first(sa.select(t.account).where(_A.name == name))


def account_of(database: Database, issuer: str, subject: str) -> RowMapping | None:
    """The account that a single sign-on knows by this."""
    return database.first(sa.select(t.account).where(_A.issuer == issuer, _A.subject == subject))


def accounts(database: Database, kind: str, team: str | None = None) -> Sequence[RowMapping]:
    """All of a kind by name, or those that a team keeps."""
    query = sa.select(t.account).where(_A.kind == kind).order_by(_A.name)
    return database.read(query if team is None else query.where(_A.team == team))


def change_account(database: Database, name: str, **values: object) -> bool:
    """Change columns of an account; False if there is none of that name. Who is disabled is logged out."""

    def write(connection: Connection, _: Try) -> bool:
        changed = connection.execute(t.account.update().where(_A.name == name).values(**values))
        if values.get("disabled_at") is not None:
            connection.execute(t.web_session.delete().where(t.web_session.c.account == name))
        return bool(changed.rowcount)

    return database.change_rights(write)


def account_roles(database: Database, name: str) -> AccountRoles:
    """Of one account; see `roles_of_accounts`."""
    return roles_of_accounts(database, [name]).get(name, NO_ACCOUNT)


def roles_of_accounts(database: Database, names: Collection[str]) -> dict[str, AccountRoles]:
    """Accounts with their roles by team, teams by name, as of one moment; those that there are.

    What groups gave counts as long as it holds.
    """
    if not names:
        return {}
    is_held = _A.groups_until.is_(None) | (_A.groups_until > database.clock_s())
    admin_by = sa.case((is_held | (_A.admin_by != "groups"), _A.admin_by)).label("admin_by")
    others = [column for column in t.account.c if column is not _A.admin_by]
    query = (
        sa.select(*others, admin_by, _M.team.label("of"), _M.role)
        .outerjoin(t.member, (_M.account == _A.name) & (is_held | ~_M.by_groups))
        .where(_A.name.in_(names))
        .order_by(_M.team)
    )
    found: dict[str, AccountRoles] = {}
    for row in database.read(query):
        _, roles = found.setdefault(row["name"], (row, {}))
        if row["of"] is not None:
            roles[row["of"]] = row["role"]
    return found


def members(database: Database, team: str) -> Sequence[RowMapping]:
    """The members of a team by name."""
    return database.read(_members(team))


def _members(team: str) -> sa.Select[Any]:
    return (
        sa.select(_M.account, _M.role, _M.by_groups, _A.kind, _A.disabled_at)
        .join(t.account, _M.account == _A.name)
        .where(_M.team == team)
        .order_by(_M.account)
    )


def set_member(database: Database, team: str, name: str, role: str) -> None:
    """Give a role in a team."""
    database.change_rights(lambda connection, _: _set_member(connection, team, name, role, by_groups=False))


def remove_member(
    database: Database, team: str, name: str, check: Callable[[Sequence[RowMapping]], None] = lambda _: None
) -> bool:
    """Take out of a team, unless ``check`` of its members raises; False if it was not in there."""

    def write(connection: Connection, this: Try) -> bool:
        # Locked: another one may leave at the same time.
        there = connection.execute(_members(team).with_for_update(of=t.member)).mappings().all()
        if any(each["account"] == name for each in there):
            check(there)
        gone = connection.execute(t.member.delete().where(_M.team == team, _M.account == name))
        return bool(gone.rowcount) or this.again

    return database.change_rights(write)


def set_groups(
    database: Database, name: str, roles: Mapping[str, str], *, is_admin: bool, until: float | None = None
) -> None:
    """What single sign-on says of an account, until then, replaces what it said; what people gave stays."""

    def write(connection: Connection, _: Try) -> None:
        connection.execute(t.member.delete().where(_M.account == name, _M.by_groups))
        given = set(connection.execute(sa.select(_M.team).where(_M.account == name)).scalars())
        for team, role in roles.items():
            if team not in given:
                _set_member(connection, team, name, role, by_groups=True)
        connection.execute(
            t.account.update()
            .where(_A.name == name, sa.func.coalesce(_A.admin_by, "groups") == "groups")
            .values(admin_by="groups" if is_admin else None)
        )
        connection.execute(t.account.update().where(_A.name == name).values(groups_until=until))

    database.change_rights(write)


def _set_member(connection: Connection, team: str, name: str, role: str, *, by_groups: bool) -> None:
    values = {"role": role, "by_groups": by_groups}
    put_row(connection, t.member, {"team": team, "account": name}, values)


# --- invites --------------------------------------------------------------------------------------------


def add_invite(database: Database, row: Mapping[str, object]) -> None:
    """Keep an invite."""
    database.add_lasting(t.invite, row)


def invites(database: Database, team: str) -> Sequence[RowMapping]:
    """The invites of a team, the newest first."""
    query = sa.select(t.invite).where(t.invite.c.team == team).order_by(t.invite.c.created_at.desc())
    return database.read(query)


def invite(database: Database, digest: str) -> RowMapping | None:
    """The invite whose link has this SHA-256."""
    return database.first(sa.select(t.invite).where(t.invite.c.digest == digest))


def remove_invite(database: Database, digest: str) -> None:
    """Forget an invite."""
    database.execute(t.invite.delete().where(t.invite.c.digest == digest))


def accept_invite(database: Database, digest: str, new: Mapping[str, object] | None, name: str) -> str:
    """Use an invite up: who comes gets its role, or keeps one that people gave or that his own invite is for.

    Args:
        database: of the home.
        digest: of the invite.
        new: the row of an account that is made for it; None for one that is there.
        name: of the account.

    Returns:
        What became of it: "joined", "used" (the invite was), or "taken" (the name is).
    """

    def write(connection: Connection, this: Try) -> str:
        found = connection.execute(sa.select(t.invite).where(t.invite.c.digest == digest)).mappings().first()
        if found is not None and found["used_by"] == name and this.again:
            return "joined"
        taken = sa.select(_A.name).where(_A.name == name)
        if new is not None and connection.execute(taken).scalar() is not None:
            return "taken"
        used = connection.execute(
            t.invite.update()
            .where(t.invite.c.digest == digest, t.invite.c.used_by.is_(None))
            .values(used_by=name)
        )
        if found is None or not used.rowcount:
            return "used"
        if new is not None:
            connection.execute(t.account.insert().values(**new))
        has = connection.execute(
            sa.select(_M.by_groups).where(_M.team == found["team"], _M.account == name)
        ).scalar()
        if has is None or (has and found["invited_by"] != name):
            _set_member(connection, found["team"], name, found["role"], by_groups=False)
        return "joined"

    return database.change_rights(write)


# --- single sign-on -------------------------------------------------------------------------------------


def begin_sign_in(database: Database, row: Mapping[str, object], now: float) -> None:
    """Keep what the answer of a provider will be checked by, and forget what took too long."""
    database.add_lasting(t.sign_in, row, t.sign_in.c.expires_at < now)


def take_sign_in(database: Database, digest: str) -> RowMapping | None:
    """What was kept for a browser, once: it is gone afterwards."""
    which = t.sign_in.c.digest == digest
    rows = database.read(sa.select(t.sign_in).where(which))
    gone = database.execute(t.sign_in.delete().where(which))
    return rows[0] if rows and gone else None


# --- attempts to log in ---------------------------------------------------------------------------------


def note_attempt(database: Database, address: str, now: float, forget_before: float) -> None:
    """Write down that logging in from an address went wrong, and forget what is long past."""
    row = {"address": address, "at": now}
    database.add_lasting(t.login_attempt, row, t.login_attempt.c.at < forget_before)


def attempts(database: Database, address: str, since: float) -> list[float]:
    """When logging in from an address went wrong since then, Unix seconds, the oldest first."""
    at = t.login_attempt.c.at
    query = sa.select(at).where(t.login_attempt.c.address == address, at >= since).order_by(at)
    return [row["at"] for row in database.read(query)]
