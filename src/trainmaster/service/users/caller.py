"""`Caller`: who asks, and what that allows; the scopes of tokens and the roles of members."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainmaster.spec.errors import AccessError, TrainmasterError

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
#: What members of a team may do, by their role, from the least to the greatest.
ROLES: Final[Mapping[str, frozenset[str]]] = {
    "viewer": frozenset({"read"}),
    "member": frozenset({"read", "run", "infer"}),
    "manager": frozenset({"read", "run", "infer", "manage"}),
}
#: Who is in no team: no team has this name.
NO_TEAM: Final = ""


class UnknownCallerError(AccessError):
    """Nobody knows who asks: there is no token, or it is wrong, over or revoked (HTTP 401)."""


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
class Caller:
    """Who asks, as the database says at that moment.

    Attributes:
        name: of the user or service account; of the token or session if it is nobody's account.
        team: what belongs to it is all that is seen; None for the owner of the home.
        scopes: of `SCOPES`, with those that they imply: what the token allows and the role does, too.
        token: name of the token, None of a session without one.
        expires_at: Unix seconds: when the token or session ends.
        account: of whom it is; None of what was made on the server's machine for nobody.
        roles: of the account by team: those that it may choose from.
    """

    name: str
    team: str | None
    scopes: frozenset[str]
    token: str | None = None
    expires_at: float = math.inf
    account: str | None = None
    roles: Mapping[str, str] = field(default_factory=dict)

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
        if scope in self.scopes:
            return
        if self.team == NO_TEAM and self.roles:
            teams = ", ".join(self.roles)
            raise ForbiddenError(f"{self.name} is in the teams {teams}", "Say for which: add ?team=NAME.")
        if self.team == NO_TEAM:
            raise ForbiddenError(f"{self.name} is in no team", "Ask a manager of a team for an invite.")
        if self.account is not None and self.token is None:
            has = f"{self.name} is {self.roles.get(self.team or '', 'nothing')} in team {self.team}"
        else:
            has = f"it has {', '.join(sorted(self.scopes)) or 'none'}"
        raise ForbiddenError(
            f"{self.name} may not {SCOPES[scope]}", f"That needs the scope {scope!r}; {has}."
        )

    def need_to_give(self, scopes: Collection[str]) -> None:
        """Refuse who would give more than he has.

        Raises:
            ForbiddenError: what is beyond.
        """
        beyond = set(scopes) & set(SCOPES) - self.scopes
        if beyond:
            raise ForbiddenError(
                f"{self.name} may not give {', '.join(sorted(beyond))}", "Give what you have yourself."
            )


def with_implied(scopes: Collection[str]) -> frozenset[str]:
    """Scopes with those that they imply.

    >>> sorted(with_implied(["manage"]))
    ['manage', 'read']
    """
    return frozenset(scopes) | {more for scope in scopes for more in _IMPLIED.get(scope, ())}


def caller(name: str, team: str | None, scopes: Collection[str], token: str | None = None) -> Caller:
    """A caller that is nobody's account."""
    return Caller(name, team, with_implied(scopes), token)
