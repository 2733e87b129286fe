"""`OpenHome`: one home and its database, as a team sees it: what all of `service` works on."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trainmaster.control.layout import Home
from trainmaster.control.preflight import (
    check_directories,
    check_machine,
    check_names,
    check_notify,
    check_parts,
    check_urls,
    check_volumes,
    data_notes,
)
from trainmaster.db import Database, Patience
from trainmaster.executors import LocalExecutor, detect_capacity
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.summary import is_driven
from trainmaster.service.teams.team_secrets import secrets_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.service.driving.replicas import Replicas


class OpenHome:
    """One home and its database.

    Args:
        home: where things lie.
        database: of it, if it is open already.

    Raises:
        StoreError: (every method) the database cannot be used.
    """

    def __init__(self, home: Home, database: Database | None = None) -> None:
        self.home = home
        # The supervisor starts while the database is opened: both take a moment.
        self._executor: LocalExecutor | None = None
        self._database = database
        #: None for the owner of the home.
        self.team: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, makes: bool = True) -> Self:
        """That of the home that the variables name; see `Home.from_environment`."""
        return cls(Home.from_environment(environ, makes=makes))

    @property
    def database(self) -> Database:
        """The database, opened at its first use."""
        if self._database is None:
            self._database = Database(self.home.database_url, Patience(self.home.patience_s))
        return self._database

    def of_team(self, team: str | None) -> Self:
        """The same home, with the secrets and measurements of a team; None for the owner's."""
        if team == self.team:
            return self
        _ = self.database  # open in both
        found = copy(self)
        found.team = team
        return found

    def warm_up(self) -> None:
        """Start what a run will need in the background; quick, and harmless if no run follows."""
        if self._executor is None:
            self._executor = LocalExecutor(self.home.root)
            self._executor.start()

    def close(self) -> None:
        """Give back connections."""
        if self._executor is not None:
            self._executor.close()
        if self._database is not None:
            self._database.close()

    def check(self, recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
        """Refuse what cannot run here, before anything starts; notes for the user.

        Raises:
            UsageError: naming each key at fault.
        """
        check_parts(recipe)
        check_directories(recipe)
        check_urls(recipe)
        check_volumes(recipe, self.home.store_url)
        check_notify(recipe, environ)
        notes = check_machine(recipe, detect_capacity()) if capabilities_of(recipe.provider).is_here else []
        self.secrets_of(recipe, environ)
        return notes + data_notes(recipe)

    def check_inputs(
        self, recipe: Recipe, environ: Mapping[str, str], *, measures: bool = False
    ) -> list[str]:
        """Refuse a recipe whose code, data, images, secrets or object store are not there; starts nothing.

        Args:
            recipe: of any provider.
            environ: the caller's.
            measures: tasks run here, and nothing is kept: a store that takes nothing is only a note.

        Returns:
            Notes for the user.

        Raises:
            UsageError: naming each key at fault.
        """
        from trainmaster.control.inputs import check_inputs

        check_names(recipe)
        check_notify(recipe, environ)
        values, is_ours = self.secrets_of(recipe, environ), self.team is None
        return check_inputs(recipe, self.home, environ, values, measures=measures, asks_urls=is_ours)

    def secrets_of(
        self, recipe: Recipe, environ: Mapping[str, str], kept: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Values of the experiments' secrets; see `trainmaster.service.teams.team_secrets.secrets_of`."""
        return secrets_of(self.home, self._database, recipe, environ, self.team, kept)

    def home_of(self, run: str) -> Home:
        """The home that a run's processes, working copy and logs are in; several may share a database.

        Of a run that can move, and that another server has, it is a replica of the files as they are now.

        The driver of the run must ask the supervisor of that home: another one knows nothing of
        what it had started, and would start it once more.

        Raises:
            NotFoundError: there is no such run.
            UsageError: that home is not on this machine, or is not ours to read.
        """
        row = self.database.run_row(run)
        if row["can_move"] and not self.replicas.began_here(row):
            return self.replicas.home(row)
        # What was published must be found again, whatever TRAINMASTER_STORE says today.
        here = replace(self.home, store_url=row["store_url"])
        home = here.at(Path(row["home"]), row["home_id"]) if row["home_id"] else here
        if home is None:
            from trainmaster.service.driving.replicas import why_bound_of

            why = why_bound_of(row, is_shared=self.database.is_shared)
            raise UsageError(
                f"{run} was started in another home, {row['home']}, which cannot be read from here"
                + (f": {why}" if why else ""),
                "Do this on the machine and as the user that started it: its processes and logs are there.",
            )
        return home

    def home_to_look(self, run: str) -> Home | None:
        """The home of a run; None if it cannot be read from here."""
        try:
            return self.home_of(run)
        except UsageError:
            return None

    @property
    def replicas(self) -> Replicas:
        """Runs that any server can show and go on with."""
        from trainmaster.service.driving.replicas import Replicas

        return Replicas(self.database, self.home)

    def executor_of(self, home: Home) -> LocalExecutor:
        """The executor of this machine, for the supervisor of a home."""
        if home.root == self.home.root:
            self.warm_up()
        elif self._executor is not None:
            self._executor.close()
            self._executor = None
        if self._executor is None:
            self._executor = LocalExecutor(home.root)
        return self._executor

    def is_driven(self, run: str) -> bool:
        """True if a living process drives the run."""
        return is_driven(self.database.run_row(run), self.database.clock_s())
