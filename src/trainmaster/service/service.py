"""`Service`: everything a user can do, for the command line now, for REST and the web on top of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainmaster.artifacts import materialise, take_snapshot
from trainmaster.artifacts.owner import give_up_claim
from trainmaster.control.controller import USUAL_PACE, Controller, Pace, Watcher
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
from trainmaster.db import Database, Lease, NewRun, Patience, Submission, is_alive, queries
from trainmaster.executors import LocalExecutor, detect_capacity
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.models import model_names
from trainmaster.service.notifications.delivery import deliver_left
from trainmaster.service.quotes.history import History, histories
from trainmaster.service.quotes.quote_record import most_usd, quote_summary
from trainmaster.service.runs.run_names import claim_name
from trainmaster.service.runs.search_results import SearchResults, search_results
from trainmaster.service.runs.summary import (
    Highlights,
    highlights,
    is_driven,
    resolve_run,
    run_brief,
    run_summary,
    runs_summary,
)
from trainmaster.service.teams.admission import Application, entrance, waits_for_turn
from trainmaster.service.teams.team_budget import OWNER, OverBudgetError
from trainmaster.service.teams.team_secrets import secrets_of
from trainmaster.spec import Recipe
from trainmaster.spec.errors import PublishError, StoreError, UsageError
from trainmaster.spec.redaction import redacted
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.cluster.renting.plan import ClusterPlan
    from trainmaster.service.driving.replicas import Replicas
    from trainmaster.service.models.unpublished_models import SavedModel
    from trainmaster.service.runs.curves import ExperimentCurves

#: Who has driven a run to its end on this machine lets go of it within a moment; rented machines take longer.
_CLOSED_WITHIN_S, _CLOSED_POLL_S = 3.0, 0.02

#: Called with the controller before it starts, so that signals can reach it.
OnStart = Callable[[Controller], None]


@dataclass(slots=True)
class Session:
    """A run that this process holds the lease of and is about to drive.

    Attributes:
        secrets: per experiment, names and values; never written anywhere.
        notes: what the user may want to know.
    """

    run: str
    lease: Lease
    recipe: Recipe
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class AgreedClusters(Protocol):
    """What a run may rent; see `trainmaster.service.renting.RentalOffer`."""

    @property
    def most_usd(self) -> float | None:
        """What the whole run may cost; None if nobody can say."""

    @property
    def plans(self) -> tuple[ClusterPlan, ...]:
        """Of its clusters."""

    def note_down(self, database: Database, run: str, now: float) -> None:
        """Keep what was estimated."""


class Service:
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
        self._team: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, *, makes: bool = True) -> Service:
        """That of the home that the variables name; see `Home.from_environment`."""
        return cls(Home.from_environment(environ, makes=makes))

    @property
    def database(self) -> Database:
        """The database, opened at its first use."""
        if self._database is None:
            self._database = Database(self.home.database_url, Patience(self.home.patience_s))
        return self._database

    def of_team(self, team: str | None) -> Service:
        """The same home, with the secrets and measurements of a team; None for the owner's."""
        if team == self._team:
            return self
        _ = self.database  # open in both
        found = copy(self)
        found._team = team
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

    # --- running -----------------------------------------------------------------------------

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
        values, is_ours = self.secrets_of(recipe, environ), self._team is None
        return check_inputs(recipe, self.home, environ, values, measures=measures, asks_urls=is_ours)

    def start(
        self,
        recipe: Recipe,
        recipe_path: Path,
        environ: Mapping[str, str],
        offer: AgreedClusters | None = None,
        keep_s: float = 0.0,
        submission: Submission | None = None,
        application: Application | None = None,
    ) -> Session:
        """Accept a recipe: snapshot its code, write the run down. Nothing of it runs yet.

        Args:
            recipe: what to run.
            recipe_path: where it was read.
            environ: of the caller.
            offer: the clusters that it is to have, off this machine, and what was estimated.
            keep_s: how long they are to stay warm afterwards.
            submission: of a run that was sent to a server: it waits for one of its drivers.
            application: of such a run: what it asks for until its turn comes.

        Raises:
            UsageError: it cannot run here; nothing was written.
            OverBudgetError: what it may cost does not fit in the month's budget; likewise.
        """
        notes = self.check(recipe, environ)
        now = time.time()
        owner = claim_name(self.home, self.database, recipe.name, now)
        run, home_id = owner.run, owner.home
        excluded = (self.home.root, self.home.cache)
        private = None
        try:
            snapshot = take_snapshot(recipe.code, recipe.directory, self.home.snapshots, exclude=excluded)
            notes += snapshot.notes
            materialise(snapshot.path, self.home.code_directory(run))
            if submission is not None:
                values = self.secrets_of(recipe, environ)
                private = self.replicas.prepare(run, recipe, snapshot.path, values, environ)
        except BaseException:
            with suppress(PublishError):
                give_up_claim(self.home.store_url, owner)
            raise
        clusters = []
        if offer is not None:
            from trainmaster.cluster.record import new_record

            clusters = [new_record(run, plan, home_id, keep_s).as_row() for plan in offer.plans]
        new = NewRun(
            id=run,
            name=recipe.name,
            # Its code was copied: whatever opened the repository is needed no more.
            recipe=recipe.model_copy(update={"code": redacted(recipe.code)}).model_dump_json(),
            recipe_path=str(recipe_path.absolute()),
            provider=recipe.provider,
            code_path=str(snapshot.path),
            store_url=self.home.store_url,
            experiments=[(e.name, len(e.tasks(recipe.seed))) for e in recipe.experiments.values()],
            home=str(self.home.root),
            home_id=home_id,
            clusters=clusters,
            notify=[subscription.events for subscription in recipe.notify],
            submission=submission,
            can_move=private is not None,
            private=private or {},
        )
        may_cost, team = 0.0 if offer is None else offer.most_usd, (submission and submission.team) or OWNER
        try:
            admit = entrance(run, team, may_cost, application, now)
            lease = self.database.create_run(new, now, admit, waits=submission is not None)
        except (StoreError, OverBudgetError, UsageError):
            with suppress(StoreError, PublishError):
                if not self.database.has_run(run):  # as where another server has accepted the same request
                    give_up_claim(self.home.store_url, owner)
                    shutil.rmtree(self.home.run_directory(run), ignore_errors=True)
            raise
        if offer is not None:
            offer.note_down(self.database, run, now)
        return Session(run, lease, recipe, self.secrets_of(recipe, environ), notes)

    def resume(self, run: str, environ: Mapping[str, str]) -> Session | None:
        """Take over a run that nobody drives; all that did not succeed waits again.

        Returns:
            None if there is nothing to drive: a living process does already, or it has SUCCEEDED.

        Raises:
            NotFoundError: there is no such run.
            OverBudgetError: what it may still cost does not fit in the month's budget.
        """
        row = self.database.run_row(run)
        if row["team"] != self._team:
            return self.of_team(row["team"]).resume(run, environ)
        if row["reason"] == EndReason.SUCCEEDED:
            return None
        home = self.home_of(run)
        if not is_driven(row, self.database.clock_s()) and self.save_kept(run):  # not to be trained once more
            row = self.database.run_row(run)
            if row["reason"] == EndReason.SUCCEEDED:
                return None
        recipe = self.replicas.recipe(row)
        environ = self.replicas.with_secrets(row, environ)
        notes = self.check(recipe, environ)
        if not capabilities_of(recipe.provider).is_here and not is_driven(row, self.database.clock_s()):
            from trainmaster.service.driving.run_clusters import check_provider

            check_provider(home, recipe.provider, environ)
        if waits_for_turn(self.database, run):
            raise UsageError(f"{run} waits for its turn", "`trainmaster queue` shows its place.")
        lease = self._acquire(run, environ)
        if lease is not None and row["state"] == State.STOPPING:
            # Its driver was killed while it stopped: what is left of it ends first, then all begins again.
            self.database.want_stop(run, EndReason.CANCELLED)
            self.drive(Session(run, lease, recipe, self.secrets_of(recipe, environ), []), environ)
            lease = self._acquire(run, environ)
        if lease is None:
            return None
        with self._released_on_error(lease):
            self._requeue(lease, row["team"] or OWNER, recipe)
            materialise(self.replicas.code(row), self.home_of(run).code_directory(run))
            return Session(run, lease, recipe, self.secrets_of(recipe, environ), notes)

    def _requeue(self, lease: Lease, team: str, recipe: Recipe) -> None:
        quote, now = quote_summary(self.database, lease.run), time.time()
        most = most_usd(None if quote is None else quote["cost_usd"]["p95"], recipe)
        most = most if capabilities_of(recipe.provider).costs else 0.0
        self.database.requeue(lease, now, entrance(lease.run, team, most, None, now))

    def deliver_left(self, run: str, environ: Mapping[str, str]) -> str:
        """Send what is still to be told of a run that is over; what to tell the user of what is left."""
        return deliver_left(self.database, run, environ)

    def drive(
        self,
        session: Session,
        environ: Mapping[str, str],
        watcher: Watcher | None = None,
        on_start: OnStart | None = None,
        pace: Pace = USUAL_PACE,
    ) -> None:
        """Drive a run to its end.

        Raises:
            InterruptedByUser: its members were stopped; it can be resumed.
            LeaseLostError: another process drives it now.
            ExecutorError: the node cannot be reached.
        """
        from trainmaster.service.driving.driving import drive

        drive(self, session, environ, watcher, on_start, pace)

    def cancel(self, run: str, environ: Mapping[str, str]) -> None:
        """Ask for the end of a run; of one that nobody drives, what is left is stopped here.

        Raises:
            NotFoundError: there is no such run.
        """
        if self.database.run_row(run)["state"] == State.DONE:
            return
        self.database.want_stop(run, EndReason.CANCELLED)
        if self.is_driven(run):
            return
        lease = self._acquire(run, environ)
        if lease is not None:
            recipe = self.replicas.recipe(self.database.run_row(run))
            self.drive(Session(run, lease, recipe), environ)  # nothing starts any more, so no secrets

    def take(self, run: str, environ: Mapping[str, str]) -> Session | None:
        """Take over a run that was just accepted, as it is; None if somebody was quicker."""
        if self.database.run_row(run)["state"] == State.DONE or waits_for_turn(self.database, run):
            return None  # it was cancelled before we came to it, or its turn has not come
        lease = self._acquire(run, environ)
        if lease is None:
            return None
        with self._released_on_error(lease):
            row = self.database.run_row(run)
            recipe, before = self.replicas.recipe(row), self.replicas.kept_secrets(row, environ)
            values = self.of_team(row["team"]).secrets_of(recipe, {**before, **environ}, before)
            return Session(run, lease, recipe, values)

    def _acquire(self, run: str, environ: Mapping[str, str]) -> Lease | None:
        """Take the lease of a run, and bring the run here if it can move; None if somebody else drives it.

        Raises:
            UsageError: it stays in a home that cannot be read from here.
        """
        if not self.database.run_row(run)["can_move"]:
            self.home_of(run)
        lease = self.database.acquire(run, time.time())
        if lease is not None:
            with self._released_on_error(lease):
                self.replicas.take_over(lease, environ)
        return lease

    @contextmanager
    def _released_on_error(self, lease: Lease) -> Iterator[None]:
        """What cannot be driven is not held: this process may live on, and its leases with it."""
        try:
            yield
        except BaseException:
            with suppress(StoreError):
                self.database.release(lease, time.time())
            raise

    def home_of(self, run: str) -> Home:
        """The home that a run's processes, working copy and logs are in; several may share a database.

        Of a run that can move, and that another server has, it is a replica of the files as they are now.

        Whoever drives the run must ask the supervisor of that home: another one knows nothing of
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

    @property
    def replicas(self) -> Replicas:
        """Runs that any server can show and go on with."""
        from trainmaster.service.driving.replicas import Replicas

        return Replicas(self.database, self.home)

    def _home_to_look(self, run: str) -> Home | None:
        """The home of a run; None if it cannot be read from here."""
        try:
            return self.home_of(run)
        except UsageError:
            return None

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

    def save_kept(self, run: str) -> list[SavedModel]:
        """Publish the models of a run that are kept here; see `service.models.unpublished_models`.

        Raises:
            NotFoundError: there is no such run.
            UsageError: somebody drives it.
            PublishError: the store cannot be written; what was not published is still kept.
        """
        from trainmaster.service.models.unpublished_models import save_kept

        return save_kept(self.database, self.home_of, run)

    # --- looking -----------------------------------------------------------------------------

    def resolve(self, text: str) -> str:
        """The id of the run that the user means.

        Raises:
            NotFoundError: none, or several.
        """
        return resolve_run(self.database, text)

    def status(self, run: str) -> dict[str, Any]:
        """One run, as ``--json`` prints it."""
        return run_summary(self.database, run, self._home_to_look(run))

    def highlights(self, run: str) -> Highlights:
        """What people are shown of a run beside its `status`."""
        return highlights(self.database, run)

    def runs(self, limit: int | None = None, after: str | None = None) -> dict[str, Any]:
        """Runs, newest first: all, or a page; see `runs_summary`."""
        return runs_summary(self.database, limit, after)

    def brief(self, run: str) -> dict[str, Any]:
        """The line of one run in `runs`: quicker than `status`.

        Raises:
            NotFoundError: there is no such run.
        """
        return run_brief(self.database, run)

    def models(
        self, run: str | None = None, limit: int | None = None, after: tuple[str, str, int] | None = None
    ) -> list[dict[str, Any]]:
        """The models of a run, or of all, as ``models --json`` prints them; newest run first.

        Args:
            run: its id.
            limit: at most so many.
            after: run, experiment and task of a model: only those that come after it.
        """
        return [
            {**row, "metrics": json.loads(row["metrics"]), "parameters": json.loads(row["parameters"])}
            for row in queries.models(self.database, run, limit=limit, after=after)
        ]

    def events(self, run: str, after: int = 0) -> list[dict[str, Any]]:
        """What happened to a run, in order: at most a thousand events with an id above ``after``."""
        return [dict(row) for row in queries.events(self.database, run, after)]

    def search_results(self, run: str) -> list[SearchResults]:
        """What the searches of a run have found, with all curves."""
        return search_results(self.database, self._home_to_look(run) or self.home, run)

    def curves(self, run: str) -> list[ExperimentCurves]:
        """What the tasks of a run have reported, by experiment; see `run_curves`."""
        from trainmaster.service.runs.curves import run_curves

        return run_curves(self.database, self._home_to_look(run) or self.home, run)

    def metrics(self, run: str, experiment: str | None, task: int | None) -> Iterator[dict[str, Any]]:
        """What the tasks of a run have reported, a dictionary per line; see `reported`."""
        from trainmaster.service.runs.curves import reported

        return reported(self.database, self.home_of(run), run, experiment, task)

    def provider_of(self, run: str) -> str:
        """Who gives the machines of a run."""
        return str(self.database.run_row(run)["provider"])

    def clusters(self) -> list[dict[str, Any]]:
        """What this home has rented now, as ``clusters --json`` prints it."""
        from trainmaster.service.clusters import clusters_of_home

        return clusters_of_home(self.database, self.home, time.time())

    def end_clusters(
        self, ids: Sequence[str] | None, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Give back clusters that no run uses, or all of those; see `trainmaster.service.clusters`."""
        from trainmaster.service.clusters import end_clusters

        return end_clusters(self.database, self.home, environ, ids, tell)

    def score(self) -> dict[str, Any]:
        """How often quotes of this home were kept, as ``score --json`` prints it."""
        from trainmaster.service.quotes.score import outcomes, report

        return report(outcomes(self.database, self.home.identity()))

    def score_line(self, kind: str, provider: str) -> str:
        """The same of one kind of quotes for a provider, in a line; empty if too little is known."""
        from trainmaster.service.quotes.score import score_line

        return score_line(self.database, self.home.identity(), kind, provider)

    def last_event(self, run: str) -> int:
        """Id of the newest event of a run."""
        return queries.last_event(self.database, run)

    def is_driven(self, run: str) -> bool:
        """True if a living process drives the run."""
        return is_driven(self.database.run_row(run), self.database.clock_s())

    def await_close(self, run: str) -> None:
        """Wait a moment until the driver of a run that is over lets go of it: until then its time grows."""
        until = time.monotonic() + _CLOSED_WITHIN_S
        while time.monotonic() < until:
            row = self.database.run_row(run)
            if not is_alive(row["lease_owner"], row["lease_expires_at"], self.database.clock_s()):
                return
            time.sleep(_CLOSED_POLL_S)

    def is_taken(self, run: str) -> bool:
        """True if the run is driven, or over already."""
        row = self.database.run_row(run)
        return row["state"] == State.DONE or is_driven(row, self.database.clock_s())

    def find_models(self, run: str, experiment: str, best: str | None) -> list[tuple[int, str]]:
        """(task, uri) of an experiment's models; see `model_names.find_models`."""
        return model_names.find_models(self.database, run, experiment, best)

    def find_model(self, name: str) -> str:
        """The URI of the one model that a name means; see `model_names.find_model`."""
        return model_names.find_model(self.database, name)

    def measurements(self, recipe: Recipe) -> dict[str, History]:
        """What was measured before of each experiment of a recipe, and of similar ones; newest first.

        Raises:
            UsageError: its code cannot be read.
        """
        return histories(self.database, self.home, recipe, team=self._team)

    def secrets_of(
        self, recipe: Recipe, environ: Mapping[str, str], kept: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Values of the experiments' secrets; see `trainmaster.service.teams.team_secrets.secrets_of`."""
        return secrets_of(self.home, self._database, recipe, environ, self._team, kept)
