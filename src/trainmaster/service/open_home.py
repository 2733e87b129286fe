"""`OpenHome`: one home and its database, as a team sees it: what all of `service` works on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from trainmaster.control.task.layout import Home, RunFiles
from trainmaster.db import Database, RetryPolicy
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.runs.summary import is_driven
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.executors.local.executor import LocalExecutor
    from trainmaster.providers.base import ProviderPlace
    from trainmaster.service.driving.replicas import RunReplicas
    from trainmaster.spec import Recipe


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
            self._database = Database(self.home.database_url, RetryPolicy(self.home.patience_s))
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
            from trainmaster.executors.local.executor import LocalExecutor

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
        from trainmaster.control.checks import preflight
        from trainmaster.executors.capacity import detect_capacity

        is_here, notes = capabilities_of(recipe.provider).is_here, list[str]()
        preflight.check_all(
            lambda: preflight.check_parts(recipe),
            lambda: preflight.check_data_parts(recipe),
            lambda: preflight.check_directories(recipe),
            lambda: preflight.check_urls(recipe),
            lambda: preflight.check_volumes(recipe, self.home.store_url),
            lambda: preflight.check_notify(recipe, environ),
            lambda: notes.extend(preflight.check_machine(recipe, detect_capacity()) if is_here else ()),
            lambda: self.secrets_of(recipe, environ),
        )
        return notes + preflight.recipe_notes(recipe)

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
        from trainmaster.control.checks.inputs import check_inputs
        from trainmaster.control.checks.preflight import check_all, check_names, check_notify

        notes: list[str] = []
        values: dict[str, dict[str, str]] = {}

        def look() -> None:
            # Without a secret no URL is asked: it would refuse us for that.
            is_ours = self.team is None and len(values) == len(recipe.experiments)
            notes.extend(
                check_inputs(recipe, self.home, environ, values, measures=measures, asks_urls=is_ours)
            )

        check_all(
            lambda: check_names(recipe),
            lambda: check_notify(recipe, environ),
            lambda: values.update(self.secrets_of(recipe, environ)),
            look,
        )
        return notes

    def secrets_of(
        self, recipe: Recipe, environ: Mapping[str, str], kept: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Values of the experiments' secrets; see `trainmaster.service.teams.team_secrets.secrets_of`."""
        if self.team is None and not any(each.secrets for each in recipe.experiments.values()):
            return {name: {} for name in recipe.experiments}
        from trainmaster.service.teams.team_secrets import secrets_of

        return secrets_of(self.home, self._database, recipe, environ, self.team, kept)

    def home_of(self, run: str) -> Home:
        """The home that a run's processes, code, keys and output are in; several may share a database.

        The driver of the run must ask the supervisor of that home: another one knows nothing of
        what it had started, and would start it once more. To look at files there is `files_of`, to reach
        machines `access_to`: they answer of runs that are driven elsewhere, too.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the run is driven elsewhere, or that home is not ours to read.
        """
        row = self.database.run_row(run)
        if self.replicas.is_elsewhere(row):
            raise UsageError(
                f"{run} is driven elsewhere: its processes and what is not published yet are there, not here",
                "Do this where it is driven. `status`, `logs`, `metrics`, `export`, `exec`, `cp` and `ssh` "
                "work from here, too.",
            )
        if self.replicas.is_here(row):
            return self.replicas.taken(row)
        here = self.own_home_for(row)
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

    def files_of(self, run: str) -> RunFiles:
        """Logs, points and samples of a run, to look at: of one that is driven elsewhere as they are now.

        Raises:
            NotFoundError: there is no such run.
            UsageError: it stays in a home that cannot be read from here.
        """
        row = self.database.run_row(run)
        return self.replicas.files(row) if self.replicas.is_elsewhere(row) else self.home_of(run)

    def place(self, provider: str, environ: Mapping[str, str], home: Home | None = None) -> ProviderPlace:
        """What leads to a provider: with the team's own login, if it has one there, else with the home's.

        Whoever asks a provider for something does so with this.

        Args:
            provider: its name.
            environ: of the caller: settings and credentials.
            home: of the run, where that is another one.

        Raises:
            SealedError: the team's login was sealed with another server's key.
            UsageError: it cannot be used here.
        """
        from trainmaster.providers.base import ProviderPlace

        home = home or self.home
        return self.with_login(provider, ProviderPlace(home.root, home.identity(), dict(environ)))

    def with_login(self, provider: str, place: ProviderPlace) -> ProviderPlace:
        """The same; see `place`."""
        if self.team is None or place.team or capabilities_of(provider).is_here:
            return place
        from trainmaster.service.teams.team_logins import TeamLogins

        return TeamLogins(self.database, self.home.root, place.environ).place(self.team, provider, place)

    def access_to(self, run: str, environ: Mapping[str, str], provider: str = "") -> ProviderPlace:
        """What leads to the machines of a run: its home, or what its record has of a home that is elsewhere.

        Args:
            run: its id.
            provider: that has rented them, where the run is in several places.
            environ: of the caller: credentials, and the key with which the record is sealed.

        Raises:
            NotFoundError: there is no such run, or no key of its machines is kept.
            SealedError: it was sealed with another server's key.
            UsageError: it stays in a home that cannot be read from here.
        """
        row = self.database.run_row(run)
        team, provider = self.of_team(row["team"]), provider or row["provider"]
        if self.replicas.is_elsewhere(row):
            return team.with_login(provider, self.replicas.access(row, environ))
        return team.place(provider, environ, self.home_of(run))

    def home_if_here(self, run: str) -> Home | None:
        """The home of a run; None if that is not here."""
        with suppress(UsageError):
            return self.home_of(run)
        return None

    def files_if_here(self, run: str) -> RunFiles | None:
        """Files of a run; None if they cannot be read from here."""
        with suppress(UsageError):
            return self.files_of(run)
        return None

    def own_home_for(self, row: Mapping[Any, Any]) -> Home:
        """Our own home; what a run published is found from it, whatever TRAINMASTER_STORE says today."""
        return replace(self.home, store_url=row["store_url"])

    @property
    def replicas(self) -> RunReplicas:
        """Runs that any server can show and go on with."""
        from trainmaster.service.driving.replicas import RunReplicas

        return RunReplicas(self.database, self.home)

    def executor_of(self, home: Home) -> LocalExecutor:
        """The executor of this machine, for the supervisor of a home."""
        from trainmaster.executors.local.executor import LocalExecutor

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
