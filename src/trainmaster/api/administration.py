"""`AdministrationProtocol`: who may use a server, what may be spent; `HomeAdministration` is the home's."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from trainmaster.providers.sent_settings import SentSettings
    from trainmaster.service import Service
    from trainmaster.service.teams.team_logins import TeamLogins
    from trainmaster.service.teams.team_secrets import TeamSecrets
    from trainmaster.service.users.access import Access
    from trainmaster.service.users.accounts import Accounts
    from trainmaster.spec import Recipe

#: What a team may spend, by name; `math.inf` is no limit, and what is not named stays.
Limits = Mapping[str, float | None]


class AdministrationProtocol(Protocol):
    """What managers and admins do. Answers are JSON: objects of the command line's ``--json``.

    Raises:
        NotFoundError: (every method) there is no such team, user, token or secret, or not for the caller.
        AccessError: (every method, of a server) the caller may not.
        UsageError: (every method) a wrong name, role or amount.
    """

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        team: str | None,
        account: str | None,
        days: float,
        at_most_usd: float | None = None,
    ) -> dict[str, Any]:
        """Make a token, of this account; its ``token`` is shown this once. With an amount it has a wallet."""

    def revoke_token(self, name: str) -> list[str]:
        """End it, and the sessions that were opened with it; which workflows are paused because of that."""

    def tokens(self) -> list[dict[str, Any]]:
        """The tokens that there are, or that the caller sees."""

    def make_team(self, name: str, limits: Limits) -> dict[str, Any]:
        """Make a team, or change its limits."""

    def teams(self) -> list[dict[str, Any]]:
        """The teams, with what they have spent this month."""

    def budget(self, team: str | None) -> dict[str, Any]:
        """That of a team, or of all together (``*``); None for the caller's own."""

    def set_budget(self, team: str | None, limits: Limits) -> dict[str, Any]:
        """Change it."""

    def queue(self) -> list[dict[str, Any]]:
        """Runs that wait for their turn."""

    def create_user(self, name: str, *, is_admin: bool) -> dict[str, Any]:
        """Make a user."""

    def users(self) -> list[dict[str, Any]]:
        """All users, then all service accounts."""

    def disable_user(self, name: str, *, is_disabled: bool) -> None:
        """Shut a user or service account out, or let it in again."""

    def add_member(self, team: str, user: str, role: str) -> None:
        """Give a user, who is made if there is none, a role in a team."""

    def remove_member(self, team: str, user: str) -> None:
        """Take him out of it."""

    def members(self, team: str) -> list[dict[str, Any]]:
        """Who is in it."""

    def invite(self, team: str, role: str, days: float) -> dict[str, Any]:
        """Make a link that lets one person in; ``path`` is shown this once."""

    def examine_places(self, places: Sequence[str], recipe: Recipe | None = None) -> list[dict[str, Any]]:
        """What `trainmaster doctor` finds where machines are: objects of its ``--json``.

        Args:
            places: names of providers; without any, those of the recipe.
            recipe: that is to run there.
        """

    def put_secret(self, team: str, name: str, value: str) -> None:
        """Keep a value for the tasks of a team."""

    def secrets(self, team: str) -> list[dict[str, Any]]:
        """The names of those."""

    def remove_secret(self, team: str, name: str) -> None:
        """Forget one."""

    def put_team_login(
        self, team: str, provider: str, login: SentSettings, *, is_same_account: bool = False
    ) -> None:
        """Have the runs of a team use an account of its own at a place; see `TeamLogins.put`."""

    def team_logins(self, team: str) -> list[dict[str, Any]]:
        """The places at which it has one."""

    def remove_team_login(self, team: str, provider: str) -> None:
        """Forget one."""


class HomeAdministration:
    """Of a home on this machine, as its owner.

    Args:
        service: of the home.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._database = service.database

    @cached_property
    def _access(self) -> Access:
        from trainmaster.service.users.access import Access

        return Access(self._database)

    @cached_property
    def _accounts(self) -> Accounts:
        from trainmaster.service.users.accounts import Accounts

        return Accounts(self._database)

    @property
    def _secrets(self) -> TeamSecrets:
        from trainmaster.service.teams.team_secrets import TeamSecrets

        return TeamSecrets(self._database, self._service.home.root, os.environ)

    def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        team: str | None,
        account: str | None,
        days: float,
        at_most_usd: float | None = None,
    ) -> dict[str, Any]:
        return self._access.create_token(
            name, scopes, team, days * 86400, account=account, at_most_usd=at_most_usd
        )

    def revoke_token(self, name: str) -> list[str]:
        return self._access.revoke_token(name)

    def tokens(self) -> list[dict[str, Any]]:
        return self._access.tokens()

    def make_team(self, name: str, limits: Limits) -> dict[str, Any]:
        return self._access.make_team(name, **limits)

    def teams(self) -> list[dict[str, Any]]:
        return self._access.teams()

    def budget(self, team: str | None) -> dict[str, Any]:
        from trainmaster.service.teams.team_budget import OWNER, Budgets

        return Budgets(self._database.read, time.time())[team or OWNER].as_dict()

    def set_budget(self, team: str | None, limits: Limits) -> dict[str, Any]:
        from trainmaster.service.teams.team_budget import set_budget

        return set_budget(self._database, team, limits, time.time()).as_dict()

    def queue(self) -> list[dict[str, Any]]:
        from trainmaster.service.teams.admission import queue_of

        return queue_of(self._database, None)

    def create_user(self, name: str, *, is_admin: bool) -> dict[str, Any]:
        return self._accounts.create_user(name, is_admin=is_admin)

    def users(self) -> list[dict[str, Any]]:
        return [*self._accounts.users(), *self._accounts.service_accounts(None)]

    def disable_user(self, name: str, *, is_disabled: bool) -> None:
        self._accounts.change_user(name, is_disabled=is_disabled)

    def add_member(self, team: str, user: str, role: str) -> None:
        if not any(each["name"] == user for each in self.users()):
            self._accounts.create_user(user)
        self._accounts.set_member(team, user, role)

    def remove_member(self, team: str, user: str) -> None:
        self._accounts.remove_member(team, user)

    def members(self, team: str) -> list[dict[str, Any]]:
        return self._accounts.members(team)

    def invite(self, team: str, role: str, days: float) -> dict[str, Any]:
        return self._accounts.invite(team, role, lasts_s=days * 86400)

    def examine_places(self, places: Sequence[str], recipe: Recipe | None = None) -> list[dict[str, Any]]:
        from dataclasses import asdict

        from trainmaster.service.doctor import places_checkup

        return [asdict(each) for each in places_checkup(self._service, places, recipe, os.environ)]

    def put_secret(self, team: str, name: str, value: str) -> None:
        self._secrets.put(team, name, value, "owner")

    def secrets(self, team: str) -> list[dict[str, Any]]:
        return self._secrets.names(team)

    def remove_secret(self, team: str, name: str) -> None:
        self._secrets.remove(team, name)

    @property
    def _logins(self) -> TeamLogins:
        from trainmaster.service.teams.team_logins import TeamLogins

        return TeamLogins(self._database, self._service.home.root, os.environ)

    def put_team_login(
        self, team: str, provider: str, login: SentSettings, *, is_same_account: bool = False
    ) -> None:
        self._logins.put(team, provider, login.files, login.environ, "owner", is_same_account=is_same_account)

    def team_logins(self, team: str) -> list[dict[str, Any]]:
        return self._logins.names(team)

    def remove_team_login(self, team: str, provider: str) -> None:
        self._logins.remove(team, provider)


def as_written(limits: Limits) -> dict[str, float | None]:
    """Limits as REST takes them: what is not named stays, null is none.

    >>> as_written({"monthly_usd": math.inf, "runs_at_once": None, "usd_per_hour": 3.0})
    {'monthly_usd': None, 'usd_per_hour': 3.0}
    """
    given = {key: value for key, value in limits.items() if value is not None}
    return {key: None if value == math.inf else value for key, value in given.items()}
