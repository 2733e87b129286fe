"""`Accounts`: users and service accounts, members of teams and their roles, invites."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.db import Database, access
from trainmaster.db import accounts as db
from trainmaster.db.row_values import columns
from trainmaster.service.users.access import TOKEN_S, Access, check_lasts, check_name, digest_of
from trainmaster.service.users.caller import ROLES, Caller, Creator, ForbiddenError, no_team
from trainmaster.spec.errors import AccessError, NotFoundError, UsageError, fails_as

#: 7 days.
INVITE_S: Final = 7 * 86400.0
#: An invite is good for at most so many days.
INVITE_DAYS: Final = 90
#: So much of the digest of an invite is its id.
_INVITE_ID: Final = 12


class Accounts:
    """Who there is, and who is what in which team.

    Methods with a ``caller`` refuse to give more than that one has; the others are for who has the machine.

    Args:
        database: of the home.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- users --------------------------------------------------------------------------------------

    def create_user(self, name: str, *, is_admin: bool = False) -> dict[str, Any]:
        """Make a user.

        Raises:
            UsageError: the name is wrong or taken.
        """
        return self._create(new_account(name, admin_by="server" if is_admin else None))

    def users(self) -> list[dict[str, Any]]:
        """All users by name, with their roles."""
        return [self.user(row["name"]) for row in db.accounts(self._database, "user")]

    def user(self, name: str) -> dict[str, Any]:
        """One user or service account.

        Raises:
            NotFoundError: there is none of that name.
        """
        row, roles = db.account_roles(self._database, name)
        if row is None:
            raise _nobody(name)
        return {
            "name": name,
            "kind": row["kind"],
            "is_admin": row["admin_by"] is not None,
            "teams": roles,
            "single_sign_on": row["issuer"],
            **columns(row, "created_at", "disabled_at"),
        }

    def change_user(
        self, name: str, *, is_disabled: bool | None = None, is_admin: bool | None = None
    ) -> dict[str, Any]:
        """Disable a user or enable him again, make him an admin or no admin; None leaves what is.

        Raises:
            NotFoundError: there is none of that name.
        """
        values: dict[str, Any] = {}
        if is_disabled is not None:
            values["disabled_at"] = self._database.clock_s() if is_disabled else None
        if is_admin is not None:
            values["admin_by"] = "server" if is_admin else None
        if values:
            db.change_account(self._database, name, **values)
        return self.user(name)

    # --- members ------------------------------------------------------------------------------------

    def members(self, team: str) -> list[dict[str, Any]]:
        """The members of a team by name, service accounts with them."""
        return [
            {
                "name": row["account"],
                **columns(row, "kind", "role", "by_groups"),
                "is_disabled": row["disabled_at"] is not None,
            }
            for row in db.members(self._database, team)
        ]

    def set_member(self, team: str, name: str, role: str, caller: Caller | None = None) -> None:
        """Give a role in a team. Managers change roles of members; who is not one yet they invite.

        Raises:
            UsageError: no such role, or a service account of another team.
            NotFoundError: no such team or user.
            ForbiddenError: the caller has less than the role, or it is his own.
        """
        _check_role(role, caller)
        if caller is not None and name == caller.account and not caller.sees_all:
            # What people give stays when the groups of single sign-on say something else.
            raise ForbiddenError(f"{name} may not change his own role", "Ask another manager, or an admin.")
        self._need_team(team, caller)
        row, roles = db.account_roles(self._database, name)
        if row is None or (caller is not None and not caller.sees_all and team not in roles):
            raise _nobody(name, ": invite who is to come in", team=team) if caller else _nobody(name)
        if row["kind"] == "service" and row["team"] != team:
            raise UsageError(f"{name} is a service account of team {row['team']}", "Make one for this team.")
        db.set_member(self._database, team, name, role)

    def remove_member(self, team: str, name: str, caller: Caller | None = None) -> None:
        """Take somebody out of a team: his tokens and open pages see nothing of it from then on.

        Raises:
            NotFoundError: he is not in there.
            ForbiddenError: he is its last manager, and takes himself out.
        """

        def check(there: Sequence[RowMapping]) -> None:
            others = [each for each in there if each["account"] != name]
            if any(each["role"] == "manager" and each["disabled_at"] is None for each in others):
                return
            if caller is not None and caller.account is not None and not caller.sees_all:
                raise ForbiddenError(
                    f"{name} is the last manager of team {team}", "Make another member manager first."
                )

        if not db.remove_member(self._database, team, name, check):
            raise _nobody(name, team=team)

    # --- service accounts ---------------------------------------------------------------------------

    def create_service_account(
        self, team: str, name: str, role: str, caller: Caller | None = None
    ) -> dict[str, Any]:
        """Make an account for programs of a team: it has tokens, and cannot log in by browser.

        Raises:
            UsageError: the name is wrong or taken, or there is no such role.
            ForbiddenError: the caller has less than the role.
        """
        _check_role(role, caller)
        self._need_team(team, caller)
        return self._create({**new_account(name), "kind": "service", "team": team}, role)

    def service_accounts(self, team: str | None) -> list[dict[str, Any]]:
        """Those of a team, or of all (None), by name."""
        return [self.user(row["name"]) for row in db.accounts(self._database, "service", team)]

    def disable_service_account(self, name: str, caller: Caller) -> None:
        """End it: its tokens allow nothing any more.

        Raises:
            NotFoundError: the caller's team has none of that name.
        """
        self.need_own(name, caller)
        db.change_account(self._database, name, disabled_at=self._database.clock_s())

    def need_own(self, name: str, caller: Caller) -> None:
        """Refuse whom this caller does not manage: all but itself and its team's service accounts.

        Raises:
            NotFoundError: the caller manages no account of that name.
        """
        if name == caller.account:
            return
        row = db.account(self._database, name)
        if row is None or row["kind"] != "service" or not caller.sees(row["team"]):
            raise _nobody(name, "that is yours")
        caller.need("manage")

    def make_token(
        self,
        caller: Caller,
        name: str,
        scopes: Collection[str],
        lasts_s: float = TOKEN_S,
        *,
        team: str | None = None,
        account: str | None = None,
        at_most_usd: float | None = None,
    ) -> dict[str, Any]:
        """A token for oneself or a service account of one's team, which may at most what one may oneself.

        An admin of the server makes one for anybody, as who has its machine does.

        Raises:
            NotFoundError: no such team or account, or not the caller's.
            ForbiddenError: the caller may less.
        """
        team = caller.team if team is None else team
        if not caller.sees(team):
            raise no_team(str(team), caller.choice)
        account = caller.account if account is None else account
        if account is None:
            caller.need("manage")
        elif not caller.sees_all:
            self.need_own(account, caller)
        caller.need_to_give(scopes)
        return Access(self._database).create_token(
            name, scopes, team, lasts_s, account=account, maker=caller, at_most_usd=at_most_usd
        )

    # --- invites ------------------------------------------------------------------------------------

    def invite(
        self, team: str, role: str, caller: Caller | None = None, lasts_s: float = INVITE_S
    ) -> dict[str, Any]:
        """Make a link that lets one person in; the answer's ``code`` is shown this once.

        Raises:
            UsageError: no such role, or it would be good for no time.
            ForbiddenError: the caller has less than the role.
        """
        _check_role(role, caller)
        check_lasts(lasts_s, INVITE_DAYS)
        self._need_team(team, caller)
        code, now = secrets.token_urlsafe(32), self._database.clock_s()
        row = {
            "digest": digest_of(code),
            "team": team,
            "role": role,
            "invited_by": caller.account if caller else None,
            "made_with": caller.token if caller else None,
            "created_at": now,
            "expires_at": min(now + lasts_s, caller.expires_at if caller and caller.token else math.inf),
            "used_by": None,
        }
        db.add_invite(self._database, row)
        return {**_shown(row), "code": code, "path": f"/join?code={code}"}

    def invites(self, team: str) -> list[dict[str, Any]]:
        """The invites of a team, the newest first, without what their links say."""
        return [_shown(row) for row in db.invites(self._database, team)]

    def remove_invite(self, team: str, identity: str) -> None:
        """Take an invite back.

        Raises:
            NotFoundError: the team has none of that id.
        """
        found = [row for row in db.invites(self._database, team) if row["digest"][:_INVITE_ID] == identity]
        if not found:
            raise NotFoundError(f"there is no invite {identity!r}", "Was it taken back already?")
        db.remove_invite(self._database, found[0]["digest"])

    def open_invite(self, code: str) -> dict[str, Any]:
        """What an invite says, if it is good: its team, and the role there.

        Raises:
            UsageError: it is not known, was used, is over, or who made it may not give that role any more.
        """
        row = db.invite(self._database, digest_of(code))
        if row is None or row["used_by"] is not None or row["expires_at"] <= self._database.clock_s():
            what = "is not known" if row is None else "was used" if row["used_by"] else "has expired"
            raise UsageError(f"this invite {what}", "Ask for a new one.")
        self._check_inviter(row)
        return _shown(row)

    def join(self, code: str, name: str, who: Caller | None = None) -> Caller:
        """Take an invite: somebody new becomes a user, who is logged in becomes a member.

        Args:
            code: of the invite.
            name: of the new user.
            who: is logged in; ``name`` is not asked then.

        Raises:
            UsageError: the invite is not good, or the name is wrong or taken.
        """
        invited = self.open_invite(code)
        is_known = who is not None and who.account is not None
        name = str(who.account) if who is not None and is_known else name
        new = None if is_known else new_account(name)
        became = db.accept_invite(self._database, digest_of(code), new, name)
        if became == "taken":
            raise UsageError(f"there is a user {name!r} already", "Take another name, or log in first.")
        if became == "used":
            raise UsageError("this invite was used", "Ask for a new one.")
        team = invited["team"]
        return Caller(name, team, ROLES[invited["role"]], account=name, roles={team: invited["role"]})

    # --- parts --------------------------------------------------------------------------------------

    def _need_team(self, team: str, caller: Caller | None) -> None:
        if not access.has_team(self._database, team):
            raise no_team(team, None if caller is None else caller.choice)

    def _create(self, row: dict[str, Any], role: str | None = None) -> dict[str, Any]:
        if not db.add_account(self._database, row, role):
            raise UsageError(f"there is a user {row['name']!r} already", "Names are not used again.")
        return self.user(row["name"])

    def _check_inviter(self, row: RowMapping) -> None:
        """Refuse an invite whose maker may not give that role any more, or whose token is not good.

        Raises:
            UsageError: saying why.
        """
        token = row["made_with"]
        maker = Creator(row["invited_by"] or token or "owner", row["invited_by"], token, row["team"])
        with fails_as("who made this invite may not invite any more", "Ask for a new one.", on=AccessError):
            _check_role(row["role"], Access(self._database).still(maker))


def new_account(name: str, admin_by: str | None = None) -> dict[str, Any]:
    """The row of a new user.

    Raises:
        UsageError: the name is wrong.
    """
    check_name(name, "user")
    return {"name": name, "kind": "user", "admin_by": admin_by, "created_at": time.time()}


def _check_role(role: str, caller: Caller | None) -> None:
    if role not in ROLES:
        raise UsageError(f"{role!r} is no role", f"There are {', '.join(ROLES)}.")
    if caller is not None:
        caller.need("manage")
        if not ROLES[role] <= caller.scopes:
            lacks = ", ".join(sorted(ROLES[role] - caller.scopes))
            raise ForbiddenError(
                f"{caller.name} may not make a {role}: that may {lacks}, too", caller.has_instead
            )


def _nobody(name: str, where: str = "", *, team: str = "") -> NotFoundError:
    hint = f"`trainmaster team members {team}` shows them." if team else "`trainmaster user list` shows them."
    if team:
        where = f"in team {team}{where}"
    return NotFoundError(f"there is no user {name!r} {where}".rstrip(), hint)


def _shown(row: RowMapping | dict[str, Any]) -> dict[str, Any]:
    shown = ("team", "role", "invited_by", "created_at", "expires_at", "used_by")
    return {"id": row["digest"][:_INVITE_ID], **{key: row[key] for key in shown}}
