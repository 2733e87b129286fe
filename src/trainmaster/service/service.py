"""`Service`: everything that a user can do; the command line, REST and the pages stand on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.db import Submission, is_alive, queries
from trainmaster.service.open_home import OpenHome
from trainmaster.service.runs.run_names import resolve_run
from trainmaster.service.runs.summary import highlights, is_driven, run_brief, run_summary, runs_summary
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.advisor.papers.recommend import RecommendQuery
    from trainmaster.service.driving.execution_backend import Session
    from trainmaster.service.models.unpublished_models import SavedModel
    from trainmaster.service.quotes.history import History
    from trainmaster.service.quotes.home_load import HomeLoad
    from trainmaster.service.renting.offer import RentalOffer
    from trainmaster.service.runs.curves import ExperimentCurves
    from trainmaster.service.runs.highlights import Highlights
    from trainmaster.service.runs.search_results import SearchResults
    from trainmaster.service.teams.admission import Application
    from trainmaster.service.users.caller import Wallet
    from trainmaster.spec import Recipe

#: The driver of a run that ended on this machine lets go of it within a moment; rented machines take longer.
_CLOSED_WITHIN_S, _CLOSED_POLL_S = 3.0, 0.02
#: So long one of another machine may be silent before it is lost, and some time to bring its record.
_BACK_WITHIN_S = 90.0


class Service(OpenHome):
    """What users can do with a home, whichever way they speak to it."""

    # --- running -----------------------------------------------------------------------------

    def start(
        self,
        recipe: Recipe,
        recipe_path: Path,
        environ: Mapping[str, str],
        offer: RentalOffer | None = None,
        keep_s: float = 0.0,
        submission: Submission | None = None,
        application: Application | None = None,
        *,
        moves: bool = False,
        wallet: Wallet | None = None,
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
            moves: a machine of its own is to drive it.
            wallet: that pays for it: all of its cap must fit in.

        Raises:
            UsageError: it cannot run here; nothing was written.
            OverBudgetError: what it may cost does not fit in the month's budget, or the wallet; nothing
                was written.
        """
        from trainmaster.service.driving.sessions import accept

        given = (recipe, recipe_path, environ, offer, keep_s, submission, application)
        return accept(self, *given, moves=moves, wallet=wallet)

    def resume(
        self,
        run: str,
        environ: Mapping[str, str],
        wallet: Wallet | None = None,
        total_usd: float | None = None,
    ) -> Session | None:
        """Resume a run without a driver; requeue every task that did not succeed.

        Args:
            run: its id.
            environ: of the caller.
            wallet: that pays for it.
            total_usd: its ``budget.total`` from now on, of all that it costs and has cost; None: as before.

        Returns:
            None if there is nothing to drive: a living process does already, or it has SUCCEEDED.

        Raises:
            NotFoundError: there is no such run.
            OverBudgetError: what it may still cost does not fit in the month's budget.
            UsageError: its ``budget.total`` is used up, or cannot be another one now.
        """
        from trainmaster.service.driving.sessions import resume

        return resume(self, run, environ, wallet, total_usd)

    def deliver_left(self, run: str, environ: Mapping[str, str]) -> str:
        """Deliver pending notifications of a finished run; return a message about those that failed."""
        from trainmaster.db.sinks import open_sinks
        from trainmaster.service.notifications.delivery import deliver_left

        left = [deliver_left(self.database, run, environ)]
        if not self.is_driven(run) and open_sinks(self.database, run):
            from trainmaster.service.sinks.feeding import SinkFeeder
            from trainmaster.service.sinks.sink_thread import SinkThread

            thread = SinkThread(SinkFeeder(self, environ), run)
            thread.start()
            left.append(thread.finish())
        return "\n".join(line for line in left if line)

    def cancel(self, run: str, environ: Mapping[str, str]) -> None:
        """Ask for the end of a run; of an undriven one, what is left is stopped here.

        Raises:
            NotFoundError: there is no such run.
        """
        from trainmaster.service.driving.sessions import cancel

        cancel(self, run, environ)

    def cancel_tasks(
        self, run: str, tasks: Sequence[str], environ: Mapping[str, str], *, by: str
    ) -> list[dict[str, Any]]:
        """Ask for the end of single tasks: all else of the run goes on.

        Args:
            run: its id.
            tasks: such as ``sweep/3``; a number alone, where the run has one experiment.
            environ: the caller's environment.
            by: who asks for it.

        Returns:
            ``experiment``, ``task``, ``state``, ``reason`` and ``message`` of each at present.

        Raises:
            NotFoundError: there is no such run.
            UsageError: there is no such task.
            PublishError: a machine of the run drives it, and the store cannot be written.
        """
        from trainmaster.service.driving.sessions import cancel_tasks

        return cancel_tasks(self, run, tasks, by, environ)

    def answer(
        self, run: str, experiment: str, environ: Mapping[str, str], *, is_given: bool, by: str, why: str = ""
    ) -> None:
        """What a person says of an experiment that waits for that: it begins, or ends as DENIED.

        Raises:
            NotFoundError: there is no such run.
            UsageError: the experiment waits for no answer (any more).
            PublishError: a machine of the run drives it, and the store cannot be written.
        """
        from trainmaster.service.driving.sessions import answer

        said = Approval(is_given, by, self.database.clock_s(), why.strip())
        answer(self, run, experiment, said, environ)

    def take(self, run: str, environ: Mapping[str, str]) -> Session | None:
        """Take over a run that was just accepted, as it is; None if somebody was quicker."""
        from trainmaster.service.driving.sessions import take

        return take(self, run, environ)

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
        return run_summary(self.database, run, self.files_if_here(run))

    def highlights(self, run: str) -> Highlights:
        """What people are shown of a run beside its `status`."""
        return highlights(self.database, run, self.files_if_here(run))

    def runs(
        self, limit: int | None = None, after: str | None = None, where: str = "", sort: str = ""
    ) -> dict[str, Any]:
        """Runs, newest first: all, or a page, of those with which a condition holds; see `runs_summary`.

        With a condition they have ``values`` of the metrics and parameters that it names; with ``sort`` they
        are in another order: see `trainmaster.service.runs.run_table.listed_runs`.
        """
        which = queries.ALL_RUNS.narrowed(where, self.database)
        if not where and not sort:
            return runs_summary(self.database, limit, after, which)
        from trainmaster.service.runs.run_table import listed_runs  # few lists are searched

        return listed_runs(self.database, limit, after, which, sort)

    def describe(
        self, run: str, labels: Mapping[str, str | None], note: str | None, environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Change labels and note of a run; the line of it. See `trainmaster.service.runs.describing`."""
        from trainmaster.service.runs.describing import describe_run

        describe_run(self, run, labels, note, environ)
        return self.brief(run)

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
        from trainmaster.service.runs.search_results import search_results

        return search_results(self.database, self.files_if_here(run) or self.home, run)

    def curves(
        self, run: str, keys: Sequence[str] = (), most: int = 2000, *, has_axes: bool = False
    ) -> list[ExperimentCurves]:
        """What the tasks of a run have reported, by experiment; see `run_curves`."""
        from trainmaster.service.runs.curves import run_curves

        files = self.files_if_here(run) or self.home
        return run_curves(self.database, files, run, keys, most, has_axes=has_axes)

    def targets(self, run: str) -> list[dict[str, Any]]:
        """When its tasks come to their targets; see `TargetForecast`."""
        from trainmaster.service.runs.targets import target_forecasts

        found = target_forecasts(self.database, self.files_if_here(run) or self.home, run)
        return [each.as_json() for each in found]

    def metrics(self, run: str, experiment: str | None, task: int | None) -> Iterator[dict[str, Any]]:
        """What the tasks of a run have reported, a dictionary per line; see `reported`."""
        from trainmaster.service.runs.curves import reported

        return reported(self.database, self.files_of(run), run, experiment, task)

    def provider_of(self, run: str) -> str:
        """The provider of a run's machines."""
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

        reach = partial(self.access_to, environ=environ)
        return end_clusters(self.database, self.home, environ, ids, tell, reach)

    def recommend(self, wish: RecommendQuery, profile: str) -> dict[str, Any]:
        """How many machines a job should have, as ``recommend --json`` prints it."""
        from trainmaster.service.quotes.recommending import recommended

        return recommended(self.database, wish, profile)

    def cost(self, by: str = "month", since: str = "", where: str = "") -> dict[str, Any]:
        """What runs have cost, as ``cost --json`` prints it; see `cost_report`."""
        from trainmaster.service.teams.spending import cost_report

        return cost_report(self.database, queries.ALL_RUNS.narrowed(where, self.database), by, since)

    def score(self) -> dict[str, Any]:
        """How often quotes of this home were kept, as ``score --json`` prints it."""
        from trainmaster.service.quotes.score import outcomes, report

        return report(outcomes(self.database, self.home.identity()))

    def score_line(self, kind: str, provider: str) -> str:
        """The same of one kind of quotes for a provider, in a line; empty if too little is known."""
        from trainmaster.service.quotes.score import score_line

        return score_line(self.database, self.home.identity(), kind, provider)

    def has_runs_away(self) -> bool:
        """Whether machines of their own drive runs of this home."""
        return queries.has_runs_away(self.database)

    def last_event(self, run: str) -> int:
        """Id of the newest event of a run."""
        return queries.last_event(self.database, run)

    def await_close(self, run: str) -> None:
        """Wait a moment until the driver of a run that is over lets go of it: until then its time grows.

        A machine that drove it gives back all others first; its last bill is written after that.
        """
        is_away = self.database.run_row(run)["away"] is not None
        until = time.monotonic() + (_BACK_WITHIN_S if is_away else _CLOSED_WITHIN_S)
        while time.monotonic() < until:
            row = self.database.run_row(run)
            now = self.database.clock_s()
            if row["away"] is None and not is_alive(row["lease_owner"], row["lease_expires_at"], now):
                return
            time.sleep(_CLOSED_POLL_S)

    def is_taken(self, run: str) -> bool:
        """True if the run is driven, or over already."""
        row = self.database.run_row(run)
        return row["state"] == State.DONE or is_driven(row, self.database.clock_s())

    def find_models(self, run: str, experiment: str, best: str | None) -> list[tuple[int, str]]:
        """(task, uri) of an experiment's models; see `model_names.find_models`."""
        from trainmaster.service.models.model_names import find_models

        return find_models(self.database, run, experiment, best)

    def find_model(self, name: str) -> str:
        """The URI of the one model that a name means; see `model_names.find_model`."""
        from trainmaster.service.models.model_names import find_model

        return find_model(self.database, name, is_own=True)

    def measurements(self, recipe: Recipe, load: HomeLoad | None = None) -> dict[str, History]:
        """What was measured before of each experiment of a recipe, and of similar ones; newest first.

        Raises:
            UsageError: its code cannot be read.
        """
        from trainmaster.service.quotes.history import histories

        return histories(self.database, self.home, recipe, team=self.team, load=load)
