"""`TeamLogins`: accounts that teams have at places, sealed in the database; they are used, never shown.

A run uses the login that its team has when its driver, or whoever looks at it, first asks the place. So that
machines are always found and ended with the account that has rented them, a login is put there, replaced by
one of another account or removed only while the team has neither runs nor machines at that place.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import sealed as rows
from trainmaster.db.queries import at_place
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.team_login import collected, login_kind, team_place
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.teams.team_secrets import LOGIN, sealing_place
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.parts import named_places
from trainmaster.spec.private_files import make_private

if TYPE_CHECKING:
    from pathlib import Path

    from trainmaster.db import Database
    from trainmaster.providers.sent_settings import SentSettings

#: So many runs and clusters are named.
_NAMED: Final = 5
_lock: Final = threading.Lock()
#: Variables of logins that this process has used, by what they were made of. Their files stay open until it
#: ends: what still uses one must not find another's there.
_opened: Final[dict[bytes, Mapping[str, str]]] = {}


class TeamLogins:
    """The logins of teams.

    Args:
        database: of the home.
        root: of the home.
        environ: the variables, which may name the key.
    """

    def __init__(self, database: Database, root: Path, environ: Mapping[str, str]) -> None:
        self._database, self._root, self._environ = database, root, environ

    def put(
        self,
        team: str,
        provider: str,
        files: Mapping[str, str],
        variables: Mapping[str, str],
        by: str,
        *,
        is_same_account: bool = False,
    ) -> None:
        """Keep a login; an earlier one is gone.

        Args:
            team: whose it is.
            provider: name of the place.
            files: as in `SentSettings`.
            variables: its other variables.
            by: who says so.
            is_same_account: it is another key of the account that the team uses there already, so that runs
                and machines there go on with it.

        Raises:
            UsageError: a login that cannot be used here, or runs or machines of the team are there.
            NotFoundError: there is no such team.
        """
        is_there = any(row["provider"] == provider for row in self.names(team))
        self._opened(team, provider, ProviderPlace(self._root, "", self._environ), files, variables)
        if not (is_there and is_same_account) and (used := self._used(team, provider)):
            more = (
                "Or say --same-account, if it is another key of the same account."
                if is_there
                else "They use the server's own login, and could not be ended with another one."
            )
            raise UsageError(
                f"team {team} has {used} at {provider}",
                f"Nothing was changed. Wait until they are over, or end them. {more}",
            )
        text = json.dumps({"files": dict(files), "variables": dict(variables)})
        name = f"{LOGIN}{provider}"
        value = SealingKey.of(self._root, self._environ).seal(text.encode(), sealing_place(team, name))
        if not rows.put_secret(self._database, team, name, value, by, time.time()):
            raise NotFoundError(f"there is no team {team!r}", "`trainmaster team list` shows the teams.")

    def names(self, team: str) -> list[dict[str, Any]]:
        """At which places the team has one: since when, and by whom; no values."""
        return [
            {
                "provider": row["name"].removeprefix(LOGIN),
                "changed_at": row["changed_at"],
                "changed_by": row["changed_by"],
            }
            for row in rows.of_team(self._database, team)
            if row["name"].startswith(LOGIN)
        ]

    def remove(self, team: str, provider: str) -> None:
        """Forget a login: the team uses what the server has there.

        Raises:
            NotFoundError: the team has none there.
            UsageError: runs or machines of the team are there, which need it.
        """
        if all(row["provider"] != provider for row in self.names(team)):
            raise _has_none(team, provider)
        if used := self._used(team, provider):
            raise UsageError(
                f"team {team} has {used} at {provider}, which this login has rented",
                "Nothing was changed. Wait until they are over, or end them with `trainmaster cancel` and "
                "`trainmaster clusters end`.",
            )
        if not rows.remove(self._database, team, f"{LOGIN}{provider}"):
            raise _has_none(team, provider)

    def place(self, team: str, provider: str, place: ProviderPlace) -> ProviderPlace:
        """A place as the team sees it: with its login there, if it has one.

        Raises:
            SealedError: it was sealed with another key.
            UsageError: it cannot be used here any more.
        """
        name = f"{LOGIN}{provider}"
        row = next((row for row in rows.of_team(self._database, team) if row["name"] == name), None)
        if row is None:
            return place
        key = SealingKey.of(self._root, self._environ)
        told = json.loads(key.open(row["sealed"], sealing_place(team, name)))
        found = self._opened(team, provider, place, told["files"], told["variables"])
        make_private(found.root)
        return found

    def _opened(
        self,
        team: str,
        provider: str,
        place: ProviderPlace,
        files: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> ProviderPlace:
        """Each login has its files once, however often it is asked for."""
        about = json.dumps([team, provider, dict(files), dict(variables)], sort_keys=True)
        digest = hashlib.sha256(about.encode()).digest()
        with _lock:
            if digest not in _opened:
                found = team_place(provider, place, team, files, variables)
                _opened[digest] = found.environ
                return found
            return place.with_login_of(team, _opened[digest])

    def _used(self, team: str, provider: str) -> str:
        """Runs and machines of the team at a place, in words; empty if there are none."""
        from trainmaster.service.runs.stored_recipe import stored_recipe

        login_kind(provider)
        going, clusters = at_place(self._database, team, provider, time.time())
        names = [row["id"] for row in going if provider in named_places(stored_recipe(row))]
        names += [row["id"] for row in clusters if row["run_id"] not in names]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"{', '.join(names[:_NAMED])}{more}"


def own_login(provider: str, environ: Mapping[str, str]) -> SentSettings:
    """What this machine uses a place with, for a team to use it so, too.

    Raises:
        UsageError: a team can have no login there, or what is missing here.
    """
    from trainmaster.control.task.layout import Home

    return collected(provider, ProviderPlace(Home.from_environment(environ).root, "", environ))


def _has_none(team: str, provider: str) -> NotFoundError:
    return NotFoundError(
        f"team {team} has no login of its own at {provider}", "`trainmaster team logins TEAM` lists them."
    )
