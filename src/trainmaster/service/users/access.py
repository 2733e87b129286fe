"""Who may use a server: teams, tokens, sessions."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import zlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sqlalchemy.engine import RowMapping

from trainmaster.db import Database, access, accounts
from trainmaster.db.row_values import columns
from trainmaster.service.teams.team_budget import LIMITS, budgets, checked_limits
from trainmaster.service.teams.wallet import checked_at_most
from trainmaster.service.users.caller import (
    SCOPES,
    Caller,
    Creator,
    Credential,
    ForbiddenError,
    TooOftenError,
    UnknownCallerError,
    caller_now,
    no_team,
)
from trainmaster.spec.errors import AccessError, NotFoundError, StoreError, UsageError

#: 90 days.
TOKEN_S: Final = 90 * 86400.0
#: A token is good for at most so many days.
TOKEN_DAYS: Final = 3650
SESSION_S: Final = 12 * 3600.0
#: So many wrong attempts to log in are taken from one address in so many seconds.
ATTEMPTS: Final = 10
ATTEMPTS_S: Final = 300.0
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_TOKEN: Final = re.compile(r"tm_([0-9A-Za-z]{43})([0-9A-Za-z]{6})")
#: So much of a token is kept to tell it from others.
_BEGINNING: Final = 9
#: So much of the digest of a session is its id.
_SESSION_ID: Final = 12


def digest_of(secret: str) -> str:
    """SHA-256 of a token or cookie: they are random, so nothing slower is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """A token: ``tm_``, 256 random bits and a check sum (CRC-32), by which scanners find leaked ones."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(43))
    return f"tm_{body}{_check_sum(body)}"


def check_lasts(lasts_s: float, most_days: float) -> None:
    """Refuse what would be over at once, or end when no calendar goes.

    Raises:
        UsageError: saying what may be given.
    """
    if not 0 < lasts_s <= most_days * 86400:
        raise UsageError(
            f"days: {lasts_s / 86400:g} is no time that it could be good for",
            f"Give more than 0 and at most {most_days:g}.",
        )


def is_token(text: str) -> bool:
    """Whether it looks like one of ours: mistyped ones are refused without asking the database.

    >>> is_token(new_secret()), is_token("tm_" + "a" * 49)
    (True, False)
    """
    found = _TOKEN.fullmatch(text)
    return found is not None and _check_sum(found[1]) == found[2]


def _check_sum(body: str) -> str:
    number, digits = zlib.crc32(body.encode()), ""
    for _ in range(6):
        number, digit = divmod(number, len(_ALPHABET))
        digits += _ALPHABET[digit]
    return digits


class Access:
    """The teams, tokens and sessions of a home.

    Args:
        database: of the home.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- who asks ----------------------------------------------------------------------------------

    def callers(self, credentials: Collection[Credential]) -> dict[Credential, Caller]:
        """What each allows at this moment; those that allow nothing any more are not there.

        A handful of queries, however many are asked for.
        """
        sessions = access.sessions_by_digest(self._database, [c.digest for c in credentials if c.is_session])
        tokens = access.tokens_by_digest(self._database, [c.digest for c in credentials if not c.is_session])
        opened_with = access.tokens_by_name(
            self._database, {row["token"] for row in sessions.values() if row["token"] is not None}
        )
        rows = [*sessions.values(), *tokens.values()]
        names = {row["account"] for row in rows if row["account"] is not None}
        roles_of_accounts = accounts.roles_of_accounts(self._database, names)
        found, now = {}, self._database.clock_s()
        for each in credentials:
            with suppress(UnknownCallerError, NotFoundError):
                if each.is_session:
                    row = _session(sessions.get(each.digest), now)
                    token = _opened_with(row, opened_with, now)
                else:
                    row = token = _token(tokens.get(each.digest), now)
                account_roles = roles_of_accounts.get(row["account"], accounts.NO_ACCOUNT)
                found[each] = caller_now(row, token, account_roles, each.team, self._has_team)
        return found

    def left_by(self, makers: Collection[Creator]) -> dict[Creator, Caller | AccessError]:
        """What may be done now for those who have made something that goes on without them; else why not.

        Account and token must both be good, and both bind it. A handful of queries for all.
        """
        used = {maker.token for maker in makers if maker.token is not None}
        tokens = access.tokens_by_name(self._database, used)
        names = {maker.account for maker in makers if maker.account is not None}
        roles_of_accounts, now = accounts.roles_of_accounts(self._database, names), self._database.clock_s()
        found: dict[Creator, Caller | AccessError] = {}
        for maker in makers:
            row: Mapping[Any, Any] = {
                "name": maker.name,
                "account": maker.account,
                "team": maker.team,
                "scopes": " ".join(SCOPES),
                "expires_at": math.inf,
            }
            token = None
            try:
                if maker.token is not None:
                    row = token = _token(tokens.get(maker.token), now, f"the token {maker.token}")
                account_roles = roles_of_accounts.get(maker.account or "", accounts.NO_ACCOUNT)
                found[maker] = caller_now(row, token, account_roles, maker.team, self._has_team)
            except UnknownCallerError as error:
                found[maker] = error
            except NotFoundError:
                found[maker] = ForbiddenError(
                    f"{maker.name} is not in team {maker.team} any more", "Ask a manager of the team."
                )
        return found

    def still(self, maker: Creator) -> Caller:
        """What may be done now for who has made something.

        Raises:
            AccessError: nothing: the account or the token is not good any more.
        """
        found = self.left_by([maker])[maker]
        if isinstance(found, AccessError):
            raise found
        return found

    def _sessions_of(self, who: Caller) -> Sequence[RowMapping]:
        whose = None if who.sees_all else who.account
        return access.sessions(self._database, whose, self._database.clock_s())

    def _has_team(self, name: str) -> bool:
        return access.has_team(self._database, name)

    # --- teams --------------------------------------------------------------------------------------

    def make_team(
        self,
        name: str,
        monthly_usd: float | None = None,
        runs_at_once: float | None = None,
        usd_per_hour: float | None = None,
        cpus_at_once: float | None = None,
    ) -> dict[str, Any]:
        """Make a team, or change its limits: None stays as it is, infinity is no limit.

        Args:
            name: of the team.
            monthly_usd: what it may spend in a calendar month.
            runs_at_once: how many of its runs may go on at the same time.
            usd_per_hour: what these may cost per hour.
            cpus_at_once: how many cores of a server's own machine its tasks may take at the same time.

        Raises:
            UsageError: a wrong name or amount.
        """
        check_name(name, "team")
        limits = dict(zip(LIMITS, (monthly_usd, runs_at_once, usd_per_hour, cpus_at_once), strict=True))
        access.add_team(self._database, name, checked_limits(limits), self._database.clock_s())
        return self.team(name)

    def teams(self) -> list[dict[str, Any]]:
        """All teams, with what they have spent, reserved and left this month (UTC)."""
        return [budget.as_dict() for budget in budgets(self._database, self._database.clock_s())]

    def team(self, name: str) -> dict[str, Any]:
        """One of them.

        Raises:
            NotFoundError: there is none of that name.
        """
        found = [team for team in self.teams() if team["team"] == name]
        if not found:
            raise no_team(name)
        return found[0]

    # --- tokens -------------------------------------------------------------------------------------

    def create_token(
        self,
        name: str,
        scopes: Collection[str],
        team: str | None = None,
        lasts_s: float = TOKEN_S,
        *,
        account: str | None = None,
        maker: Caller | None = None,
        at_most_usd: float | None = None,
    ) -> dict[str, Any]:
        """Make a token; the answer's ``token`` is shown this once and is kept nowhere.

        Args:
            name: of the token; each is used once for ever, so that the audit means one.
            scopes: of `SCOPES`.
            team: for whose work it is; None for the owner of the home, or for all teams of the account.
            lasts_s: seconds, at most those of `TOKEN_DAYS`.
            account: whose it is: it never allows more than its role; None if it has no account.
            maker: who asks for it, unless that is who has the machine; what a token makes ends with it, and
                draws on its wallet.
            at_most_usd: gives it a wallet: what all runs may cost that are started with it; None for none.

        Raises:
            UsageError: the name is taken or wrong, a scope is not one, or it would be good for no time.
            NotFoundError: there is no such team or account.
        """
        check_name(name, "token")
        check_lasts(lasts_s, TOKEN_DAYS)
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UsageError(
                f"scopes: {', '.join(unknown) or 'none'}; not a scope", f"There are {', '.join(SCOPES)}."
            )
        if team is not None and not access.has_team(self._database, team):
            raise no_team(team)
        if account is not None:
            found, roles = accounts.account_roles(self._database, account)
            if found is None or found["disabled_at"] is not None:
                raise NotFoundError(f"there is no user {account!r}", "`trainmaster user list` shows them.")
            if team is not None and team not in roles and found["admin_by"] is None:
                raise NotFoundError(f"{account} is not in team {team}", "`trainmaster team add-member` adds.")
        made_with = maker.token if maker is not None else None
        wallet, at_most_usd = self._wallet(name, scopes, made_with, at_most_usd)
        now, secret = self._database.clock_s(), new_secret()
        row = {
            "name": name,
            "digest": digest_of(secret),
            "beginning": secret[:_BEGINNING],
            "team": team,
            "scopes": " ".join(sorted(set(scopes))),
            "created_at": now,
            "expires_at": min(now + lasts_s, self._end_of(made_with)),
            "account": account,
            "made_with": made_with,
            "wallet": wallet,
            "at_most_usd": at_most_usd,
        }
        why_not = access.add_token(self._database, row)
        if why_not == "revoked":
            raise UnknownCallerError(f"the token {made_with} was revoked meanwhile", "Ask for a new one.")
        if why_not:
            raise UsageError(
                f"there is a token {name!r} already",
                "Take another name: names of revoked tokens are not used again.",
            )
        return {**_shown(row), "token": secret}

    def _end_of(self, token: str | None) -> float:
        """When a token ends, and with it what it made: a session that was opened with it ends earlier."""
        row = access.tokens_by_name(self._database, [token] if token else []).get(token or "")
        return math.inf if row is None else float(row["expires_at"])

    def _wallet(
        self, name: str, scopes: Collection[str], made_with: str | None, at_most_usd: float | None
    ) -> tuple[str | None, float | None]:
        """Name and amount of the wallet of a new token."""
        row = access.tokens_by_name(self._database, [made_with] if made_with else []).get(made_with or "")
        if row is not None and row["wallet"] is not None:
            if at_most_usd is not None:
                raise UsageError(f"{name} draws on the wallet of {row['wallet']}", "Leave out the amount.")
            return row["wallet"], row["at_most_usd"]
        if at_most_usd is None:
            return None, None
        if beyond := {"manage", "admin"} & set(scopes):
            raise UsageError(
                f"scopes: {', '.join(sorted(beyond))}; with them a token could pass its wallet",
                "A token with a wallet has read, run or infer.",
            )
        return f"token {name}", checked_at_most(at_most_usd)

    def tokens(self, who: Caller | None = None) -> list[dict[str, Any]]:
        """All tokens, or those that a caller sees: its own, and a manager those of the team.

        Raises:
            ForbiddenError: it has no account, and may not manage.
        """
        if who is not None and who.account is None:
            who.need("manage")
        rows = [row for row in access.tokens(self._database) if who is None or _is_seen(row, who)]
        roles_of_accounts = accounts.roles_of_accounts(
            self._database, {row["account"] for row in rows if row["account"]}
        )
        return [{**_shown(row), "useless": _useless(row, roles_of_accounts)} for row in rows]

    def revoke_token(self, name: str, who: Caller | None = None) -> list[str]:
        """End a token, what was made with it, and the sessions that were opened with them.

        Returns:
            Names of the workflows that were registered with them, which are paused.

        Raises:
            NotFoundError: there is none of that name, or not one that the caller sees.
        """
        seen = any(token["name"] == name for token in self.tokens(who))
        now = self._database.clock_s()
        paused = access.revoke_token(self._database, name, now) if seen else None
        if paused is None:
            raise NotFoundError(f"there is no token {name!r}", "`trainmaster token list` shows them.")
        return paused

    def by_token(self, secret: str, team: str | None = None) -> Caller:
        """Whose token this is, and what it allows now.

        Args:
            secret: the token.
            team: for which of the teams; that of the token without.

        Raises:
            UnknownCallerError: unknown, over or revoked.
            NotFoundError: the team is not one of them.
        """
        found = access.tokens_by_digest(self._database, [digest_of(secret)] if is_token(secret) else [])
        row = _token(next(iter(found.values()), None), self._database.clock_s())
        with suppress(StoreError):  # who asks has an answer, also while the database takes no writes
            access.note_use(self._database, row, self._database.clock_s())
        return self._caller(row, row, team)

    # --- logging in ---------------------------------------------------------------------------------

    def admit_attempt(self, address: str) -> None:
        """Refuse to look at what somebody logs in with after too many that were wrong, at any server.

        Raises:
            TooOftenError: from this address there were.
        """
        now = self._database.clock_s()
        wrong = accounts.attempts(self._database, address, now - ATTEMPTS_S)
        if len(wrong) >= ATTEMPTS:
            raise TooOftenError(f"{len(wrong)} wrong attempts to log in", wrong[-ATTEMPTS] + ATTEMPTS_S - now)

    def note_wrong_attempt(self, address: str) -> None:
        """Count one that was wrong."""
        now = self._database.clock_s()
        accounts.note_attempt(self._database, address, now, now - ATTEMPTS_S)

    # --- sessions -----------------------------------------------------------------------------------

    def open_session(self, who: Caller, address: str = "") -> str:
        """Begin a session of a browser; what its cookie says.

        Raises:
            ForbiddenError: service accounts are for programs.
        """
        found = accounts.account(self._database, who.account) if who.account is not None else None
        if found is not None and found["kind"] == "service":
            raise ForbiddenError(f"{who.name} is a service account: it has no pages", "Log in as yourself.")
        secret, now = secrets.token_urlsafe(32), self._database.clock_s()
        row = {
            "digest": digest_of(secret),
            "name": who.name,
            "team": who.team or None,
            "scopes": " ".join(sorted(who.scopes if who.account is None else SCOPES)),
            "token": who.token,
            "expires_at": min(now + SESSION_S, who.expires_at),
            "account": who.account,
            "created_at": now,
            "address": address,
        }
        access.add_session(self._database, row, now)
        return secret

    def by_session(self, secret: str, team: str | None = None) -> Caller:
        """Whose session this is, and what it allows now; as `by_token`.

        Raises:
            UnknownCallerError: unknown or over.
            NotFoundError: the team is not one of them.
        """
        found = access.sessions_by_digest(self._database, [digest_of(secret)])
        now = self._database.clock_s()
        row = _session(next(iter(found.values()), None), now)
        tokens = access.tokens_by_name(self._database, [row["token"]] if row["token"] is not None else [])
        return self._caller(row, _opened_with(row, tokens, now), team)

    def _caller(self, row: RowMapping, token: RowMapping | None, team: str | None) -> Caller:
        account = row["account"]
        account_roles = (
            accounts.NO_ACCOUNT if account is None else accounts.account_roles(self._database, account)
        )
        return caller_now(row, token, account_roles, team, self._has_team)

    def choose_team(self, secret: str, team: str) -> None:
        """Have a session be for another of the teams.

        Raises:
            NotFoundError: the team is not one of them.
        """
        self.by_session(secret, team)
        access.choose_team(self._database, digest_of(secret), team)

    def sessions(self, who: Caller) -> list[dict[str, Any]]:
        """The sessions that are not over: one's own, an admin's all."""
        if who.account is None and not who.sees_all:
            return []
        rows = self._sessions_of(who)
        shown = ("name", "team", "token", "address", "created_at", "expires_at")
        return [{"id": row["digest"][:_SESSION_ID], **{key: row[key] for key in shown}} for row in rows]

    def end_session(self, secret: str) -> None:
        """End a session; no effect if there is none."""
        access.end_session(self._database, digest_of(secret))

    def end_session_of(self, who: Caller, identity: str) -> None:
        """End one of `sessions`.

        Raises:
            NotFoundError: there is none of that id that the caller sees.
        """
        rows = self._sessions_of(who)
        seen = who.sees_all or who.account is not None
        found = [row["digest"] for row in rows if seen and row["digest"][:_SESSION_ID] == identity]
        if not found:
            raise NotFoundError(f"there is no session {identity!r}", "It may be over.")
        access.end_session(self._database, found[0])


def check_name(name: str, what: str) -> None:
    """Refuse what is no name of a team, a token or an account.

    Raises:
        UsageError: saying what is one.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a {what}", "Use up to 63 letters, digits, '.', '_', '@' and '-'."
        )


def _token(row: RowMapping | None, now: float, name: str = "the token") -> RowMapping:
    if row is None or row["revoked_at"] is not None or row["expires_at"] <= now:
        what = "is not known" if row is None else "was revoked" if row["revoked_at"] else "has expired"
        raise UnknownCallerError(
            f"{name} {what}", "Ask for a new one: `trainmaster token create NAME --scopes read,run`."
        )
    return row


def _session(row: RowMapping | None, now: float) -> RowMapping:
    if row is None or row["expires_at"] <= now:
        raise UnknownCallerError("the session is over", "Log in again.")
    return row


def _opened_with(session: RowMapping, tokens: Mapping[str, RowMapping], now: float) -> RowMapping | None:
    """The token that a session was opened with, which may have been revoked just before it was."""
    name = session["token"]
    return None if name is None else _token(tokens.get(name), now, f"the token {name}")


def _is_seen(row: RowMapping, who: Caller) -> bool:
    is_own = who.account is not None and row["account"] == who.account
    return who.sees_all or is_own or ("manage" in who.scopes and row["team"] == who.team)


def _useless(row: RowMapping, roles_of_accounts: Mapping[str, accounts.AccountRoles]) -> str | None:
    """Why a token that has not ended allows nothing: its owner is disabled, or not in its team."""
    name, team = row["account"], row["team"]
    if name is None:
        return None
    found, roles = roles_of_accounts.get(name, accounts.NO_ACCOUNT)
    if found is None or found["disabled_at"] is not None:
        return f"{name} is disabled"
    is_out = team is not None and team not in roles and found["admin_by"] is None
    return f"{name} is not in team {team}" if is_out else None


def _shown(row: RowMapping | dict[str, Any]) -> dict[str, Any]:
    return {
        **columns(row, "name", "account", "beginning", "team"),
        "scopes": row["scopes"].split(),
        **columns(row, "created_at", "expires_at"),
        "used_at": row.get("used_at"),
        "revoked_at": row.get("revoked_at"),
        "at_most_usd": row["at_most_usd"],
        "made_with": row.get("made_with"),
    }
