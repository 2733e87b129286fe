"""Who may do what on a server: callers, scopes, tokens, sessions, teams."""

from __future__ import annotations

import hashlib
import math
import re
import secrets
import time
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import access
from trainmaster.service.team_budget import budgets
from trainmaster.spec.errors import NotFoundError, StoreError, TrainmasterError, UsageError

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database

#: What a token may be allowed, and what that is.
SCOPES: Final = {
    "read": "see runs, models and logs",
    "run": "send runs, and end them",
    "infer": "ask models that are served",
    "manage": "manage the team: its members, tokens and budget",
    "admin": "everything, of every team",
}
#: What else a scope allows.
_IMPLIED: Final = {"admin": ("read", "run", "infer", "manage"), "manage": ("read",)}
#: 90 days.
TOKEN_S: Final = 90 * 86400.0
SESSION_S: Final = 12 * 3600.0
_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
_TOKEN: Final = re.compile(r"tm_([0-9A-Za-z]{43})([0-9A-Za-z]{6})")
#: So much of a token is kept to tell it from others.
_BEGINNING: Final = 9


class UnknownCallerError(TrainmasterError):
    """Nobody knows who asks: there is no token, or it is wrong, over or revoked (HTTP 401)."""


class ForbiddenError(TrainmasterError):
    """Who asks may not do this (HTTP 403)."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: of the token or user.
        team: what belongs to it is all that is seen; None for the owner of the home.
        scopes: of `SCOPES`, with those that they imply.
        token: name of the token, None of a session without one.
        expires_at: Unix seconds: when the token ends.
    """

    name: str
    team: str | None
    scopes: frozenset[str]
    token: str | None = None
    expires_at: float = math.inf

    @property
    def sees_all(self) -> bool:
        """Whether what every team has is seen."""
        return "admin" in self.scopes

    def sees(self, team: str | None) -> bool:
        """Whether what belongs to a team (None: to the owner of the home) is seen."""
        return self.sees_all or self.team == team

    def need(self, scope: str) -> None:
        """Refuse who may not.

        Raises:
            ForbiddenError: the scope is missing.
        """
        if scope not in self.scopes:
            raise ForbiddenError(
                f"{self.name} may not {SCOPES[scope]}",
                f"That needs a token with the scope {scope!r}; it has {', '.join(sorted(self.scopes))}.",
            )


def caller(name: str, team: str | None, scopes: Collection[str], token: str | None = None) -> Caller:
    """A caller with what its scopes imply.

    >>> sorted(caller("ann", None, ["manage"]).scopes)
    ['manage', 'read']
    """
    implied = {more for scope in scopes for more in _IMPLIED.get(scope, ())}
    return Caller(name, team, frozenset(scopes) | implied, token)


def digest_of(secret: str) -> str:
    """SHA-256 of a token or cookie: they are random, so nothing slower is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """A token: ``tm_``, 256 random bits and a check sum (CRC-32), by which scanners find leaked ones."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(43))
    return f"tm_{body}{_check_sum(body)}"


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

    # --- teams --------------------------------------------------------------------------------------

    def make_team(self, name: str, monthly_usd: float | None) -> dict[str, Any]:
        """Make a team, or change what it may spend in a calendar month.

        Raises:
            UsageError: a wrong name or amount.
        """
        _check_name(name, "team")
        if monthly_usd is not None and not 0 < monthly_usd < math.inf:
            raise UsageError(f"{monthly_usd:g} is no amount to spend in a month", "Give US dollars above 0.")
        access.add_team(self._database, name, monthly_usd, time.time())
        return self.team(name)

    def teams(self) -> list[dict[str, Any]]:
        """All teams, with what they have spent, reserved and left this month (UTC)."""
        return [budget.as_dict() for budget in budgets(self._database, time.time())]

    def team(self, name: str) -> dict[str, Any]:
        """One of them.

        Raises:
            NotFoundError: there is none of that name.
        """
        found = [team for team in self.teams() if team["team"] == name]
        if not found:
            raise NotFoundError(f"there is no team {name!r}", "`trainmaster team list` shows the teams.")
        return found[0]

    # --- tokens -------------------------------------------------------------------------------------

    def create_token(
        self, name: str, scopes: Collection[str], team: str | None = None, lasts_s: float = TOKEN_S
    ) -> dict[str, Any]:
        """Make a token; the answer's ``token`` is shown this once and is kept nowhere.

        Args:
            name: of the token; each is used once for ever, so that the audit means one.
            scopes: of `SCOPES`.
            team: whose it is; None for the owner of the home.
            lasts_s: seconds.

        Raises:
            UsageError: the name is taken or wrong, or a scope is not one.
            NotFoundError: there is no such team.
        """
        _check_name(name, "token")
        unknown = [scope for scope in scopes if scope not in SCOPES]
        if unknown or not scopes:
            raise UsageError(
                f"scopes: {', '.join(unknown) or 'none'}; not a scope", f"There are {', '.join(SCOPES)}."
            )
        if team is not None:
            self.team(team)
        now, secret = time.time(), new_secret()
        row = {
            "name": name,
            "digest": digest_of(secret),
            "beginning": secret[:_BEGINNING],
            "team": team,
            "scopes": " ".join(sorted(set(scopes))),
            "created_at": now,
            "expires_at": now + lasts_s,
        }
        if not access.add_token(self._database, row):
            raise UsageError(
                f"there is a token {name!r} already",
                "Take another name: names of revoked tokens are not used again.",
            )
        return {**_shown(row), "token": secret}

    def tokens(self, team: str | None = None) -> list[dict[str, Any]]:
        """All tokens, or those of a team, without what they are."""
        return [_shown(row) for row in access.tokens(self._database) if team in (None, row["team"])]

    def revoke_token(self, name: str) -> None:
        """End a token, and the sessions that were opened with it.

        Raises:
            NotFoundError: there is none of that name.
        """
        if not access.revoke_token(self._database, name, time.time()):
            raise NotFoundError(f"there is no token {name!r}", "`trainmaster token list` shows them.")

    def by_token(self, secret: str) -> Caller:
        """Whose token this is.

        Raises:
            UnknownCallerError: nobody's, or it is over or revoked.
        """
        row = access.token_by_digest(self._database, digest_of(secret)) if is_token(secret) else None
        now = time.time()
        if row is None or row["revoked_at"] is not None or row["expires_at"] <= now:
            what = "is not known" if row is None else "was revoked" if row["revoked_at"] else "has expired"
            raise UnknownCallerError(
                f"the token {what}", "Ask for a new one: `trainmaster token create NAME --scopes read,run`."
            )
        with suppress(StoreError):  # who asks has an answer, also while the database takes no writes
            access.note_use(self._database, row, now)
        found = caller(row["name"], row["team"], row["scopes"].split(), row["name"])
        return replace(found, expires_at=row["expires_at"])

    # --- sessions -----------------------------------------------------------------------------------

    def open_session(self, who: Caller) -> str:
        """Begin a session of a browser; what its cookie says."""
        secret, now = secrets.token_urlsafe(32), time.time()
        row = {
            "digest": digest_of(secret),
            "name": who.name,
            "team": who.team,
            "scopes": " ".join(sorted(who.scopes)),
            "token": who.token,
            "expires_at": min(now + SESSION_S, who.expires_at),
        }
        access.add_session(self._database, row, now)
        return secret

    def by_session(self, secret: str) -> Caller:
        """Whose session this is.

        Raises:
            UnknownCallerError: nobody's, or it is over.
        """
        row = access.session_by_digest(self._database, digest_of(secret))
        if row is None or row["expires_at"] <= time.time():
            raise UnknownCallerError("the session is over", "Log in again.")
        return caller(row["name"], row["team"], row["scopes"].split(), row["token"])

    def end_session(self, secret: str) -> None:
        """End a session; no effect if there is none."""
        access.end_session(self._database, digest_of(secret))


def _check_name(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is no name of a {what}", "Use up to 63 letters, digits, '.', '_', '@' and '-'."
        )


def _shown(row: RowMapping | dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row["name"],
        "beginning": row["beginning"],
        "team": row["team"],
        "scopes": row["scopes"].split(),
        "created_at": row["created_at"],
        "expires_at": row["expires_at"],
        "used_at": row.get("used_at"),
        "revoked_at": row.get("revoked_at"),
    }
