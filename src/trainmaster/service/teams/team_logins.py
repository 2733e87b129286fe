"""`TeamLogins`: accounts that teams have at places, sealed in the database; they are used, never shown.

A run uses the login that its team has when its driver, or whoever looks at it, first asks the place. So that
machines are always found and ended with the account that has rented them, a login is put there, replaced by
one of another account or removed only while the team has neither runs nor machines at that place: in the
transaction that looks for them, which runs that begin wait for.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.db import sealed as rows
from trainmaster.db.ledger import lock_admission
from trainmaster.db.queries import at_place
from trainmaster.providers.base import ProviderPlace
from trainmaster.providers.team_login import collected, has_logins, login_kind, team_place
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.service.teams.team_secrets import LOGIN, sealing_place
from trainmaster.spec.errors import NotFoundError, UsageError
from trainmaster.spec.private_files import make_private
from trainmaster.spec.recipe_parts import named_places

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import Connection, RowMapping

    from trainmaster.db import Database
    from trainmaster.providers.sent_settings import SentSettings

#: So many runs and clusters are named.
_NAMED: Final = 5
_lock: Final = threading.Lock()


class _Variables(dict[str, str]):
    """Those of a login that this process uses; its files are emptied when the last place with it is gone."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The newest login. version: of what is sealed."""

    version: bytes
    variables: _Variables


#: Of each team and place the newest login that this process has seen.
_opened: Final[dict[tuple[str, str, str], _Opened]] = {}
#: Files that earlier logins of the same team and place had, empty. They are not closed: what still has the
#: path of one must never find another team's there.
_empty: Final[dict[tuple[str, str, str, str], list[int]]] = {}


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
        name, tried = f"{LOGIN}{provider}", list[int]()

        def made(variable: str) -> int:
            tried.append(os.memfd_create(variable))
            return tried[-1]

        def admit(connection: Connection) -> None:
            is_there = rows.has(connection, team, name)
            used = _used(connection, team, provider)
            if not used or (is_there and is_same_account):
                return
            more = (
                "Or say --same-account, if it is another key of the same account."
                if is_there
                else "They use the server's own login, and could not be ended with another one."
            )
            raise UsageError(
                f"team {team} has {used} at {provider}",
                f"Nothing was changed. Wait until they are over, or end them. {more}",
            )

        try:
            team_place(provider, self._own, team, files, variables, made)
        finally:
            for file in tried:
                os.close(file)
        text = json.dumps({"files": dict(files), "variables": dict(variables)})
        value = SealingKey.of(self._root, self._environ).seal(text.encode(), sealing_place(team, name))
        if not rows.put_secret(self._database, team, name, value, by, time.time(), admit):
            raise NotFoundError(f"there is no team {team!r}", "`trainmaster team list` shows the teams.")
        self.forget_earlier([(team, provider)])

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
        name = f"{LOGIN}{provider}"

        def admit(connection: Connection) -> None:
            if not rows.has(connection, team, name):
                raise _has_none(team, provider)
            if used := _used(connection, team, provider):
                raise UsageError(
                    f"team {team} has {used} at {provider}, which this login has rented",
                    "Nothing was changed. Wait until they are over, or end them with `trainmaster cancel` "
                    "and `trainmaster clusters end`.",
                )

        rows.remove(self._database, team, name, admit)
        self.forget_earlier([(team, provider)])

    def place(self, team: str, provider: str, place: ProviderPlace) -> ProviderPlace:
        """A place as the team sees it: with its login there, if it has one.

        Raises:
            SealedError: it was sealed with another key.
            UsageError: it cannot be used here any more.
        """
        key = (os.fspath(self._root), team, provider)
        row = self._row(team, provider)
        if row is None:
            _opened.pop(key, None)
            return replace(place, asker=team if has_logins(provider) else "")
        with _lock:
            found = _opened.get(key)
            if found is None or found.version != _version(row):
                sealing = SealingKey.of(self._root, self._environ)
                text = sealing.open(row["sealed"], sealing_place(team, row["name"]))
                found = _opened[key] = _Opened(_version(row), _variables(key, place, json.loads(text)))
        found_place = place.with_login_of(team, found.variables)
        make_private(found_place.root)
        return found_place

    def forget_earlier(self, wanted: Sequence[tuple[str, str]] | None = None) -> None:
        """Empty what this process has of logins that are not kept any more, where no run here uses it.

        Args:
            wanted: teams and places; None for all of this home.
        """
        root = os.fspath(self._root)
        for key in [*_opened]:
            if key[0] == root and (wanted is None or key[1:] in wanted):
                row = self._row(*key[1:])
                with _lock:
                    found = _opened.get(key)
                    if found is not None and (row is None or found.version != _version(row)):
                        del _opened[key]

    @property
    def _own(self) -> ProviderPlace:
        return ProviderPlace(self._root, "", self._environ)

    def _row(self, team: str, provider: str) -> RowMapping | None:
        name = f"{LOGIN}{provider}"
        return next((row for row in rows.of_team(self._database, team) if row["name"] == name), None)


def _version(row: Mapping[Any, Any]) -> bytes:
    return hashlib.sha256(row["sealed"]).digest()


def _variables(key: tuple[str, str, str], place: ProviderPlace, told: Mapping[str, Any]) -> _Variables:
    """A login that was kept, in files of this process until nothing here has a place with it."""
    _, team, provider = key
    files = dict[str, int]()

    def made(variable: str) -> int:
        free = _empty.setdefault((*key, variable), [])
        files[variable] = free.pop() if free else os.memfd_create(variable)
        return files[variable]

    def empty() -> None:
        for variable, file in files.items():
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            _empty[*key, variable].append(file)

    try:
        found = _Variables(team_place(provider, place, team, told["files"], told["variables"], made).environ)
    except BaseException:
        empty()
        raise
    weakref.finalize(found, empty).atexit = False
    return found


def _used(connection: Connection, team: str, provider: str) -> str:
    """Runs and machines of the team at a place, in words; empty if there are none.

    None begins, goes on or moves there until the transaction ends.
    """
    from trainmaster.service.runs.stored_recipe import stored_recipe

    login_kind(provider)
    lock_admission(connection)
    going, clusters = at_place(connection, team, provider, time.time())
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
