"""`Caller`: who asks, and what that allows; the scopes of tokens and the roles of members."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.errors import AccessError, NotFoundError, TrainmasterError

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database


#: What a token may be allowed, and what that is.
SCOPES: Final = {
    "read": "see runs, models and logs",
    "run": "send, approve or end runs",
    "infer": "ask models that are served",
    "manage": "manage the team: its members, tokens, secrets, notifications and audit",
    "admin": "do what admins do: everything, in every team",
}
#: What else a scope allows.
_IMPLIED: Final = {"admin": ("read", "run", "infer", "manage"), "manage": ("read",)}
#: What members of a team may do, by their role, from the least to the greatest.
ROLES: Final[Mapping[str, frozenset[str]]] = {
    "viewer": frozenset({"read"}),
    "member": frozenset({"read", "run", "infer"}),
    "manager": frozenset({"read", "run", "infer", "manage"}),
}
#: Who is in no team: no team has this name.
NO_TEAM: Final = ""


class UnknownCallerError(AccessError):
    """The caller is unknown: there is no token, or it is wrong, over or revoked (HTTP 401)."""


class ForbiddenError(AccessError):
    """Who asks may not do this (HTTP 403)."""


class TooOftenError(TrainmasterError):
    """Who asks has done so too often (HTTP 429).

    Attributes:
        retry_after_s: later it may help.
    """

    def __init__(self, message: str, retry_after_s: float, hint: str = "") -> None:
        super().__init__(message, hint or f"Try again in {math.ceil(retry_after_s)} s.")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Creator:
    """Who made something that goes on without a connection (a workflow, say), and with which token.

    Attributes:
        name: of the user or service account; of the token if it has none.
        account: of whom it is; None if it has none.
        token: name of the token; None without one.
        team: for which.
    """

    name: str
    account: str | None
    token: str | None
    team: str | None


@dataclass(frozen=True, slots=True)
class Wallet:
    """Money that no start may pass.

    Attributes:
        name: of the wallet: runs that name it draw on it.
        at_most_usd: what they may cost together, whenever that is.
    """

    name: str
    at_most_usd: float


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as the database says at that moment.

    Attributes:
        name: of the user or service account; of the token or session if it has no account.
        team: what belongs to it is all that is seen; None for the owner of the home.
        scopes: of `SCOPES`, with those that they imply: what the token allows and the role does, too.
        token: name of the token, None of a session without one.
        expires_at: Unix seconds: when the token or session ends.
        account: of whom it is; None of what was made on the server's machine without an account.
        roles: of the account by team: those that it may choose from.
        wallet: that all it starts is paid from; None if it may spend what its team may.
        left: the one team that its token is for, if the account is not in it any more.
    """

    name: str
    team: str | None
    scopes: frozenset[str]
    token: str | None = None
    expires_at: float = math.inf
    account: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)
    wallet: Wallet | None = None
    left: str | None = None

    @property
    def sees_all(self) -> bool:
        """Whether what every team has is seen."""
        return "admin" in self.scopes

    @property
    def sees_places(self) -> bool:
        """Whether paths of the server's disk are told: not to members of teams."""
        return self.sees_all or self.team is None

    @property
    def choice(self) -> Collection[str] | None:
        """The teams that it may name; None for all."""
        return None if self.sees_all else self.roles or [self.team or NO_TEAM]

    @property
    def maker(self) -> Creator:
        """As it is written down with what goes on without him."""
        return Creator(self.name, self.account, self.token, self.team)

    @property
    def own(self) -> tuple[str | None, ...]:
        """Who has sent what are its own runs. Without team and account it is the owner of the home."""
        return (self.name, None) if self.team is None and self.account is None else (self.name,)

    def sees(self, team: str | None) -> bool:
        """Whether what belongs to a team (None: to the owner of the home) is seen."""
        return self.sees_all or self.team == team

    def need(self, scope: str) -> None:
        """Refuse who may not.

        Raises:
            ForbiddenError: the scope is missing.
        """
        if scope in self.scopes:
            return
        if self.team == NO_TEAM and self.roles:
            teams = ", ".join(self.roles)
            raise ForbiddenError(
                f"{self.name} is in the teams {teams}",
                "Say for which: add ?team=NAME; for the command line, `token create --team`.",
            )
        if self.left is not None:
            raise ForbiddenError(
                f"this token of {self.name} is for team {self.left}, and {self.name} is not in it",
                "Use a token for a team that you are in, or ask a manager of that team for an invite.",
            )
        if self.team == NO_TEAM:
            raise ForbiddenError(f"{self.name} is in no team", "Ask a manager of a team for an invite.")
        if self.account is not None and self.token is None:
            has = f"{self.name} is {self.roles.get(self.team or '', 'nothing')} in team {self.team}"
        else:
            has = f"it has {', '.join(sorted(self.scopes)) or 'none'}"
        raise ForbiddenError(
            f"{self.name} may not {SCOPES[scope]}", f"That needs the scope {scope!r}; {has}."
        )

    def need_no_wallet(self, what: str) -> None:
        """Refuse what would cost, and is not known to come from the caller's wallet.

        Raises:
            ForbiddenError: it has one.
        """
        if self.wallet is not None:
            raise ForbiddenError(
                f"{self.name} has a wallet, and {what} could cost more than is in it",
                "Use a token without one.",
            )

    def need_to_give(self, scopes: Collection[str]) -> None:
        """Refuse who would give more than he has.

        Raises:
            ForbiddenError: what is beyond.
        """
        beyond = set(scopes) & set(SCOPES) - self.scopes
        if beyond:
            raise ForbiddenError(f"{self.name} may not give {', '.join(sorted(beyond))}", self.has_instead)

    @property
    def has_instead(self) -> str:
        """What to do for who would give more than he has."""
        return f"Give what you have yourself: {', '.join(sorted(self.scopes)) or 'nothing'}."


def with_implied(scopes: Collection[str]) -> frozenset[str]:
    """Scopes with those that they imply.

    >>> sorted(with_implied(["manage"]))
    ['manage', 'read']
    """
    return frozenset(scopes) | {more for scope in scopes for more in _IMPLIED.get(scope, ())}


def caller(name: str, team: str | None, scopes: Collection[str], token: str | None = None) -> Caller:
    """A caller without an account."""
    return Caller(name, team, with_implied(scopes), token)


def home_owner(name: str = "owner") -> Caller:
    """Who has the home of this machine: may do everything in it."""
    return caller(name, None, SCOPES)


@dataclass(frozen=True, slots=True)
class Credential:
    """What somebody asks with.

    Attributes:
        digest: SHA-256 of the token, or of the session's cookie.
        is_session: which of the two.
        team: for which of the teams; None for that of the token or session.
    """

    digest: str
    is_session: bool
    team: str | None


def caller_now(
    row: Mapping[Any, Any],
    token: RowMapping | None,
    account_roles: tuple[RowMapping | None, Mapping[str, str]],
    wanted: str | None,
    has_team: Callable[[str], bool],
) -> Caller:
    """What a token, or a session (with a token or without), allows at this moment, for one team.

    Args:
        row: of the token or session.
        token: its row; the same one of a token.
        account_roles: of its account: that row, and the roles by team.
        wanted: the team that was asked for.
        has_team: whether there is a team of a name.

    Raises:
        UnknownCallerError: the account may not use the server any more.
        NotFoundError: the team is not one of them.
    """
    name, account, team = row["name"], row["account"], row["team"]
    left = None
    granted = with_implied((token or row)["scopes"].split())
    roles: Mapping[str, str] = {}
    is_admin = "admin" in granted
    if account is not None:
        found, roles = account_roles
        if found is None or found["disabled_at"] is not None:
            raise UnknownCallerError(f"{account} may not use this server any more", "Ask its admin.")
        name, is_admin = account, found["admin_by"] is not None
        if token is not None and token["team"] is not None:
            roles = {of: role for of, role in roles.items() if of == token["team"]}
            left = None if roles or is_admin else token["team"]
    is_bound = account is None or is_admin
    if wanted is not None and wanted != (team if is_bound else None):
        can_choose = is_admin and "admin" in granted and has_team(wanted)
        if wanted not in roles and not can_choose:
            raise no_team(wanted, None if is_bound else roles)
        team = wanted
    elif not is_bound and team not in roles:
        # A token of somebody in several teams must say which; a browser begins with one of them.
        is_clear = len(roles) == 1 or (roles and row is not token)
        team = next(iter(roles)) if is_clear else NO_TEAM
    if not is_bound:
        granted &= ROLES.get(roles.get(team or "", ""), frozenset())
    used = token["name"] if token is not None else None
    wallet = None
    if token is not None and token["wallet"] is not None:
        wallet = Wallet(token["wallet"], token["at_most_usd"])
    return Caller(name, team, granted, used, row["expires_at"], account, roles, wallet, left)


def no_team(name: str, among: Collection[str] | None = None) -> NotFoundError:
    """What is said of a team that is not there, or not the caller's.

    Args:
        name: that was asked for.
        among: teams that the caller may name; None for who may list all.
    """
    hint = "`trainmaster team list` shows the teams."
    if among is not None:
        hint = (
            f"Yours: {', '.join(sorted(among))}."
            if among
            else "You are in none: ask a manager for an invite."
        )
    return NotFoundError(f"there is no team {name!r}", hint)


#: So long what another server or a command has ended may go on to read here, in seconds.
KEPT_S: Final = 2.0
_MOST: Final = 10_000


@dataclass
class KnownCallers:
    """Callers by what they showed. What this process changes of any rights, it forgets all of them at once.

    Args:
        database: of the home.
        clock: monotonic seconds.
    """

    database: Database
    clock: Callable[[], float] = time.monotonic
    _known: dict[Credential, tuple[Caller, float, object]] = field(default_factory=dict, init=False)

    def of(self, credential: Credential, ask: Callable[[], Caller]) -> Caller:
        """What a credential allows.

        Args:
            credential: a token or session.
            ask: looks it up.

        Raises:
            UnknownCallerError, NotFoundError: as `ask` does; that is not kept.
        """
        # Both are from before the look: what changes meanwhile makes it too old.
        now, rights = self.clock(), self.database.rights
        caller, at, then = self._known.get(credential, (None, 0.0, None))
        is_new = then is rights and now - at < KEPT_S
        if caller is not None and is_new and caller.expires_at > self.database.clock_s():
            return caller
        caller = ask()
        if len(self._known) >= _MOST:
            self._known = {}
        self._known[credential] = (caller, now, rights)
        return caller
