"""`TeamSecrets`: values that tasks of a team get, sealed in the database; they are written, never shown."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from trainmaster.control.task.environment import read_secrets
from trainmaster.db import sealed as rows
from trainmaster.service.driving.encryption import SealingKey
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.control.task.layout import Home
    from trainmaster.db import Database
    from trainmaster.spec import Recipe

#: Of one value; an environment has no room for much more.
MAX_VALUE_BYTES: Final = 64 << 10
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
#: Begins the names of what `TeamLogins` keeps in the same table: no variable is called so.
LOGIN: Final = "login/"


class TeamSecrets:
    """The secrets of teams.

    Args:
        database: of the home.
        root: of the home.
        environ: the variables, which may name the key.
    """

    def __init__(self, database: Database, root: Path, environ: Mapping[str, str]) -> None:
        self._database, self._root, self._environ = database, root, environ

    def put(self, team: str, name: str, value: str, by: str) -> None:
        """Keep a value; an earlier one of that name is gone.

        Raises:
            UsageError: no name of a variable, or a value that none can have.
            NotFoundError: there is no such team.
        """
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name[:80]!r} is no name of a variable", "Use letters, digits and '_'.")
        size = len(value.encode())
        if not value or "\0" in value or size > MAX_VALUE_BYTES:
            raise UsageError(
                f"the value of {name} has {size} bytes", f"Send 1 to {MAX_VALUE_BYTES}, no zeros."
            )
        sealed = SealingKey.of(self._root, self._environ).seal(value.encode(), sealing_place(team, name))
        if not rows.put_secret(self._database, team, name, sealed, by, time.time()):
            raise NotFoundError(f"there is no team {team!r}", "`trainmaster team list` shows the teams.")

    def names(self, team: str) -> list[dict[str, Any]]:
        """What there is by name: since when, and by whom; no values."""
        shown = ("name", "changed_at", "changed_by")
        return [{key: row[key] for key in shown} for row in self._rows(team)]

    def remove(self, team: str, name: str) -> None:
        """Forget a value.

        Raises:
            NotFoundError: the team has none of that name.
        """
        if not _NAME.fullmatch(name) or not rows.remove(self._database, team, name):
            raise NotFoundError(
                f"team {team} has no secret {name!r}", "`trainmaster secret list TEAM` lists them."
            )

    def values(self, team: str, names: Collection[str]) -> dict[str, str]:
        """Those that there are of some names.

        Raises:
            SealedError: they were sealed with another key.
        """
        found = [row for row in self._rows(team) if row["name"] in names] if names else []
        key = SealingKey.of(self._root, self._environ) if found else None
        return {
            row["name"]: key.open(row["sealed"], sealing_place(team, row["name"])).decode()
            for row in found
            if key
        }

    def _rows(self, team: str) -> list[RowMapping]:
        return [row for row in rows.of_team(self._database, team) if not row["name"].startswith(LOGIN)]


def secrets_of(
    home: Home,
    database: Database | None,
    recipe: Recipe,
    environ: Mapping[str, str],
    team: str | None,
    kept: Mapping[str, str] | None = None,
) -> dict[str, dict[str, str]]:
    """Values of the experiments' secrets: a team's own, and nothing else, or those of the home's owner.

    Args:
        home: whose secret file the owner has.
        database: of the home; None if it is not open, as for the owner.
        recipe: names them.
        environ: of the caller, who has the home; with the secret file of the home where its secrets are.
        team: whose run it is; None for the owner's.
        kept: of a team's run that goes on: what it was started with counts where a secret is gone since.

    Returns:
        Names and values by experiment.

    Raises:
        UsageError: one is nowhere.
    """
    values: dict[str, dict[str, str]] = {}
    missing: list[str] = []
    mistakes: list[tuple[tuple[str, ...], TrainmasterError]] = []
    where = home.secrets_hint
    for name, experiment in recipe.experiments.items():
        if team is None:
            values[name], absent = read_secrets(
                experiment.secrets, environ, home.secrets_file, recipe.env_files
            )
            if absent:
                wrong = UsageError(f"no value for {', '.join(absent)}", where)
                mistakes.append((("experiments", name, "secrets"), wrong))
        else:
            assert database is not None, "who works for a team has opened it"
            own = TeamSecrets(database, home.root, environ).values(team, experiment.secrets)
            before = {key: value for key, value in (kept or {}).items() if key in experiment.secrets}
            values[name] = {**before, **own}
            absent = [] if kept is not None else [key for key in experiment.secrets if key not in own]
            missing += [secret for secret in absent if secret not in missing]
    if missing:
        raise UsageError(
            f"secrets: team {team} has no {', '.join(missing)}",
            f"A manager puts it there: `trainmaster secret set {team} {missing[0]}`, or the page Team.",
        )
    if mistakes:
        raise recipe.refused(mistakes)
    return values


def sealing_place(team: str, name: str) -> str:
    """What a value is sealed for."""
    return f"secret/{team}/{name}"
