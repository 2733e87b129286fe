"""`TeamRuns`: the runs that a caller sees, and their machines. Those of other teams are kept from it here."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.advisor.papers.measured_table import PUBLISHED
from trainmaster.db import queries
from trainmaster.db.queries import RunFilter
from trainmaster.service.clusters import USED
from trainmaster.service.models.model_names import find_model
from trainmaster.service.quotes.recommending import recommended
from trainmaster.service.runs.log_search import LINES, search_logs
from trainmaster.service.runs.run_names import no_run, resolve_run
from trainmaster.service.runs.run_stream import RunStream, StreamCursor
from trainmaster.service.runs.stored_recipe import recipe_text
from trainmaster.spec.errors import NotFoundError, PublishError, UsageError, fails_as
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.units import parse_duration

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import RowMapping

    from trainmaster.advisor.papers.recommend import RecommendQuery
    from trainmaster.artifacts import Manifest
    from trainmaster.service.models.unpublished_models import SavedModel
    from trainmaster.service.runs.highlights import Highlights
    from trainmaster.service.runs.log_lines import LogLines
    from trainmaster.service.runs.run_details import RunDetails
    from trainmaster.service.runs.run_picture import RunPicture
    from trainmaster.service.runs.run_table import RunTable, TableQuery
    from trainmaster.service.service import Service
    from trainmaster.service.users.caller import Caller


MAX_PAGE: Final = 1000
#: Points of one curve, at most, by default.
POINTS: Final = 500


class TeamRuns:
    """What a caller sees of the runs of a home; to it, what belongs to others is not there.

    Args:
        service: of the home.
        caller: who asks; it may `read`.
    """

    def __init__(self, service: Service, caller: Caller) -> None:
        caller.need("read")
        self._service = service
        self._caller = caller

    @property
    def _which(self) -> RunFilter:
        return RunFilter(None if self._caller.sees_all else (self._caller.team,))

    def row(self, run: str) -> RowMapping:
        """The row of a run.

        Raises:
            NotFoundError: there is no such run, or it is not the caller's to see.
        """
        with suppress(NotFoundError):
            row = self._service.database.run_row(run)
            if self._caller.sees(row["team"]):
                return row
        raise no_run(self._service.database, run, self._which)

    def code(self, run: str) -> Path | None:
        """The snapshot of a run's code, brought here if another server has it; None if it cannot be had."""
        try:
            found = self._service.replicas.code(self.row(run))
        except PublishError:
            return None
        return found if found.is_dir() else None

    def page(
        self,
        limit: int = 50,
        after: str | None = None,
        state: str | None = None,
        name: str | None = None,
        *,
        owner: str | None = None,
        team: str | None = None,
        since: str | None = None,
        where: str | None = None,
        sort: str = "",
    ) -> dict[str, Any]:
        """``runs``, newest first, and ``next``: where the page after it begins, or None.

        Args:
            limit: at most so many, up to `MAX_PAGE`.
            after: ``next`` of the page before.
            state: only those in this state, or that ended for this reason.
            name: only those whose id has this in it.
            owner: only those that were sent by somebody whose name has this in it.
            team: only those of this one, if the caller sees it.
            since: only those that were begun within this time, such as ``24h``.
            where: only those with which this condition holds; see `trainmaster.spec.where`.
            sort: in another order; see `trainmaster.service.runs.run_table.listed_runs`.

        Raises:
            UsageError: the limit, the time, the condition or the order is none.
        """
        if not 1 <= limit <= MAX_PAGE:
            raise UsageError(f"limit: {limit}", f"Ask for 1 to {MAX_PAGE} runs.")
        if after is not None and not sort:
            self.row(after)
        which = self._chosen(state, name, owner, team, since, where)
        from trainmaster.service.runs.run_table import listed_runs

        found = listed_runs(self._service.database, limit, after, which, sort)
        runs, older = found["runs"], found["older"]
        last = str(int(after or 0) + len(runs)) if sort else runs and runs[-1]["run"]
        return {"runs": runs, "next": last if older else None, "older": older}

    def table(self, wish: TableQuery, **chosen: str | None) -> RunTable:
        """One page of them in any order, with columns that are chosen.

        Args:
            wish: which page, order and columns.
            chosen: which runs, as of `page`.

        Raises:
            UsageError: the time or the condition is none.
        """
        from trainmaster.service.runs.run_table import run_table

        names = ("state", "name", "owner", "team", "since", "where")
        which = self._chosen(*(chosen.get(each) for each in names))
        return run_table(self._service.database, which, wish)

    def overview(self) -> dict[str, Any]:
        """What is going on; see `trainmaster.service.runs.overview`."""
        from trainmaster.service.runs.overview import overview

        return overview(self._service, self._caller, self._which)

    def _chosen(
        self, state: str | None, name: str | None, owner: str | None, team: str | None,
        since: str | None, where: str | None,
    ) -> RunFilter:  # fmt: skip
        from trainmaster.spec.where import known_state

        with fails_as("state", on=ValueError):
            state = known_state(state) if state else None
        with fails_as("since", on=ValueError):
            begin = None if since is None else time.time() - parse_duration(since)
        seen: tuple[str | None, ...] | None = None if self._caller.sees_all else (self._caller.team,)
        if team is not None:
            seen = (team,) if self._caller.sees(team) else ()
        return RunFilter(seen, state, name, owner, begin).narrowed(where or "", self._service.database)

    def resolve(self, text: str) -> str:
        """The id of the run that is meant: by its id, its name, a beginning of its id, or ``latest``."""
        found = resolve_run(self._service.database, text, self._which, self._caller.own)
        self.row(found)
        return found

    def brief(self, run: str) -> dict[str, Any]:
        """The line of a run in the list of runs."""
        self.row(run)
        return self._service.brief(run)

    def describe(
        self, run: str, labels: Mapping[str, str | None], note: str | None, environ: Mapping[str, str]
    ) -> dict[str, Any]:
        """Change its labels and note; see `Service.describe`."""
        self._caller.need("run")
        self.row(run)
        return self._service.describe(run, labels, note, environ)

    def status(self, run: str) -> dict[str, Any]:
        """A run, as ``status --json`` has it; to members without the path of the home."""
        self.row(run)
        found = self._service.status(run)
        if not self._caller.sees_places:
            found.get("bound_to", {}).pop("home", None)
        return found

    def details(self, run: str) -> RunDetails:
        """What is looked up about it beyond its status."""
        from trainmaster.service.runs.run_details import RunDetails

        self.row(run)
        return RunDetails(self._service, run)

    def highlights(self, run: str) -> Highlights:
        """What people are shown beside its status."""
        self.row(run)
        return self._service.highlights(run)

    def recipe(self, run: str) -> str:
        """The recipe's text: what it was started with."""
        return recipe_text(self.row(run))

    def events(self, run: str, after: int = 0) -> list[dict[str, Any]]:
        """What happened to it: at most a thousand events after one."""
        self.row(run)
        return self._service.events(run, after)

    def metrics(
        self,
        run: str,
        keys: Sequence[str] = (),
        points: int = POINTS,
        digits: int | None = None,
        axis: str = "",
    ) -> list[dict[str, Any]]:
        """Its curves, thinned.

        Args:
            run: its id.
            keys: names of metrics; all without.
            points: of one curve, at most.
            digits: to which points are rounded; what is last, least and greatest never is.
            axis: ``time`` or ``epoch``: what the curves run over where that is known.

        Returns:
            A dictionary per experiment, task and metric: ``experiment``, ``task``, ``parameters``, ``key``,
            ``axis`` (what ``steps`` counts), ``steps`` and ``values`` of the same length, ``last``, ``best``
            and ``goal``: ``min`` or ``max``; ``has_goal`` says whether that means anything, ``least`` and
            ``greatest`` are there in any case. ``not_finite_since``: the step from which on it is NaN.
        """
        from trainmaster.service.runs.curves import goal_of, has_goal
        from trainmaster.service.runs.task_reports import thinned

        stored = json.loads(self.row(run)["recipe"])["experiments"]
        found = []
        for experiment in self._service.curves(run, keys, max(points, 50), has_axes=bool(axis)):
            for task in experiment.tasks:
                for key, curve in task.metrics.items():
                    kept = thinned(curve.steps, curve.values, points)
                    steps = [curve.steps[index] for index in kept]
                    along = task.along(axis, steps) if axis else None
                    goal = goal_of(key, stored[experiment.name])
                    # Thinning keeps what is least, greatest and last, and where it began to be no number.
                    finite = [value for value in curve.values if _finite(value) is not None]
                    least, greatest = min(finite, default=None), max(finite, default=None)
                    since = len(curve)
                    while since and not math.isfinite(curve.values[since - 1]):
                        since -= 1
                    found.append(
                        {
                            "experiment": experiment.name,
                            "task": task.number,
                            "parameters": task.parameters,
                            "key": key,
                            "axis": experiment.axis if along is None else axis,
                            "steps": steps if along is None else along,
                            "values": [_finite(curve.values[index], digits) for index in kept],
                            "last": _finite(curve.values[-1]),
                            "best": least if goal == "min" else greatest,
                            "goal": goal,
                            "has_goal": has_goal(key, stored[experiment.name]),
                            "least": least,
                            "greatest": greatest,
                            "not_finite_since": curve.steps[since] if since < len(curve) else None,
                        }
                    )
        return found

    def present(self, runs: Collection[str]) -> set[str]:
        """Those of some runs that were not removed."""
        return queries.present(self._service.database, runs)

    def not_finite(self, runs: Collection[str]) -> dict[str, dict[str, int]]:
        """Metrics that were NaN at the end, by run of those that the caller sees: in how many tasks each."""
        seen = [run for run in runs if self.row(run)]
        return {run: dict(found) for run, found in queries.not_finite(self._service.database, seen).items()}

    def points(
        self, run: str, experiment: str | None = None, task: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """What its tasks have reported, a dictionary per report, in order: nothing is thinned."""
        self.row(run)
        return self._service.metrics(run, experiment, task)

    def targets(self, run: str) -> list[dict[str, Any]]:
        """When its tasks come to their targets."""
        self.row(run)
        return self._service.targets(run)

    def picture(self, run: str) -> RunPicture:
        """What a picture of it shows."""
        from trainmaster.service.runs.run_picture import RunPicture

        self.row(run)
        return RunPicture.of(self._service, run)

    def stream(
        self, run: str, cursor: str = "", tail_bytes: int | None = None, since: str | None = None
    ) -> RunStream:
        """What happens to it, from a place on; see `RunStream`. ``since`` says how long ago, such as ``5m``.

        Raises:
            UsageError: the time or the place is none.
        """
        from trainmaster.service.runs.log_streams import LineChoice

        self.row(run)
        found = LineChoice.of(None, None, since, time.time())
        at = None if found is None else found.since
        return RunStream(self._service, run, StreamCursor.decode(cursor), tail_bytes, at)

    def logs(
        self,
        run: str,
        experiment: str | None = None,
        task: int | None = None,
        member: str | None = None,
        *,
        attempt: int | None = None,
        tail: int | None = None,
        text: str | None = None,
        since: str | None = None,
        system: bool = False,
    ) -> Iterator[bytes]:
        """What its tasks wrote until now.

        Args:
            run: its id.
            experiment: only this one.
            task: only this number.
            member: only this name.
            attempt: only this number.
            tail: of each log only so many of the last lines.
            text: only lines with this in them.
            since: only what was written since so long ago, such as ``5m``.
            system: instead what operating systems of its machines said, `member` being one of them.
        """
        from trainmaster.service.runs.log_streams import LineChoice, LogStreams

        self.row(run)
        pattern = None if text is None else re.compile(re.escape(text.encode()), re.IGNORECASE)
        found = LineChoice.of(tail, None, since, time.time())
        choice = found if pattern is None else replace(found or LineChoice(), pattern=pattern)
        streams = LogStreams(self._service, run, experiment, task, member, choice, attempt, system=system)
        return streams.read(follow=False)

    def log_lines(
        self,
        run: str,
        experiment: str | None = None,
        task: int | None = None,
        attempt: int | None = None,
        member: str | None = None,
    ) -> Iterator[LogLines]:
        """Logs of its members as numbered lines, those that are written first; see `logs_of`."""
        from trainmaster.service.runs.log_lines import logs_of

        self.row(run)
        return logs_of(self._service, run, experiment, task, attempt, member)

    def search_logs(
        self, text: str, limit: int = LINES, after: str | None = None, since: str | None = None
    ) -> dict[str, Any]:
        """Lines with a text in the logs of all runs that the caller sees; see `search_logs`."""
        if after is not None:
            self.row(after)
        return search_logs(self._service, self._which, text, limit, after, since)

    def models(self, run: str | None = None, limit: int = 100, after: str | None = None) -> dict[str, Any]:
        """``models``, those of the newest runs first, and ``next``; of one run, or of all that are seen."""
        database = self._service.database
        if run is not None:
            self.row(run)
        place = None
        if after is not None:
            try:
                of, experiment, task = after.rsplit("/", 2)
                place = (of, experiment, int(task))
                if place[2] >= 1 << 63:  # no database keeps it
                    raise ValueError
            except ValueError:
                raise UsageError(f"{after!r} is no place in a list of models", "Leave it out.") from None
            self.row(of)
        rows = queries.models(database, run, limit=min(limit, MAX_PAGE), after=place, which=self._which)
        found = [_model(row) for row in rows]
        return {"models": found, "next": found[-1]["model"] if len(found) == limit else None}

    def model(self, run: str, experiment: str, task: int) -> dict[str, Any]:
        """One of them.

        Raises:
            NotFoundError: it is not there, or not the caller's to see.
        """
        self.row(run)
        rows = queries.models(self._service.database, run, experiment)
        for row in rows:
            if row["task"] == task:
                return _model(row)
        raise NotFoundError(f"{run} has no model of {experiment}/{task}", "`trainmaster models` lists them.")

    def find_model(self, name: str) -> dict[str, Any]:
        """The one model that ``RUN``, ``RUN/EXPERIMENT`` or ``RUN/EXPERIMENT/TASK`` means.

        Raises:
            NotFoundError: there is no such run or model, or it is not the caller's to see.
            UsageError: there are several.
        """
        run = self.resolve(name.strip("/").partition("/")[0])
        uri = find_model(self._service.database, name, run)
        rows = queries.models(self._service.database, run)
        return next(_model(row) for row in rows if row["uri"] == uri)

    def save_models(self, run: str) -> list[SavedModel]:
        """Publish the models that it could not save; see `Service.save_kept`."""
        self._caller.need("run")
        self.row(run)
        return self._service.save_kept(run)

    def manifest(self, run: str, experiment: str, task: int) -> tuple[str, Manifest]:
        """Where a model is, and what it consists of.

        Raises:
            NotFoundError: it is not there (any more), or not the caller's to see.
        """
        from trainmaster.artifacts import read_manifest

        uri = self.model(run, experiment, task)["uri"]
        manifest = read_manifest(uri)
        if manifest is None:
            raise NotFoundError(f"the model at {uri} is gone", "Was it deleted from the object store?")
        return uri, manifest

    def check_models(self, run: str, *, is_deep: bool = False) -> dict[str, Any]:
        """Whether the models and checkpoints of a run are there, with all files; see `check_models`."""
        from trainmaster.service.models.model_check import check_models

        self.row(run)
        return check_models(self._service, [run], is_deep=is_deep)

    def recommend(self, wish: RecommendQuery, profile: str = PUBLISHED) -> dict[str, Any]:
        """How many machines for a batch and a latency; of runs, by what was measured in those it sees."""
        if profile != PUBLISHED:
            self.row(profile.partition("/")[0])
        return recommended(self._service.database, wish, profile, self._which)

    def cost(self, by: str, since: str, where: str) -> dict[str, Any]:
        """What they have cost, as ``cost --json`` has it; see `cost_report`."""
        from trainmaster.service.teams.spending import cost_report

        database = self._service.database
        return cost_report(database, self._which.narrowed(where, database), by, since)

    def score(self) -> dict[str, Any]:
        """How often quotes of its runs were kept, as ``score --json`` has it."""
        from trainmaster.service.quotes.score import outcomes, report

        service = self._service
        return report(outcomes(service.database, service.home.identity(), self._caller.sees))

    def score_line(self, provider: str) -> str:
        """The same of estimates for a provider, in a line; empty if too little is known."""
        from trainmaster.service.quotes.score import score_line

        service = self._service
        home_id = service.home.identity()
        return score_line(service.database, home_id, "estimate", provider, self._caller.sees)

    def cancel(self, run: str, environ: Mapping[str, str]) -> None:
        """Ask for its end; end it here if it is undriven."""
        self._caller.need("run")
        row = self.row(run)
        if row["submitted_by"] is None:
            self._service.cancel(run, environ)
        elif row["state"] != State.DONE:  # whichever driver has it, or comes to it, ends it
            self._service.database.want_stop(run, EndReason.CANCELLED)

    def cancel_tasks(
        self, run: str, tasks: Sequence[str], environ: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Ask for the end of single tasks; see `Service.cancel_tasks`."""
        self._caller.need("run")
        self.row(run)
        return self._service.cancel_tasks(run, tasks, environ, by=self._caller.name)

    def answer(
        self, run: str, experiment: str, environ: Mapping[str, str], *, is_given: bool, why: str = ""
    ) -> None:
        """Approve or deny that an experiment begins which waits for that; see `Service.answer`."""
        self._caller.need("run")
        self.row(run)
        self._service.answer(run, experiment, environ, is_given=is_given, by=self._caller.name, why=why)

    def resume(self, run: str, environ: Mapping[str, str], max_usd: float | None = None) -> list[str]:
        """Have it driven again, unless it is, with another ``budget.total``; notes for people."""
        from trainmaster.service.driving.background import drive_in_background

        self._caller.need("run")
        row, wallet = self.row(run), self._caller.wallet
        if wallet is not None and row["wallet"] != wallet.name:
            self._caller.need_no_wallet(f"{run}, which was not started from it,")
        session = self._service.resume(run, environ, wallet, max_usd)
        if session is None:
            return []
        if row["submitted_by"] is None:
            drive_in_background(self._service, session, environ)
        else:  # a driver takes it
            self._service.database.release(session.lease, patient=True)
        return list(session.notes)

    def clusters(self) -> list[dict[str, Any]]:
        """Those of its runs that have machines, as ``clusters --json`` prints them."""
        return [
            each
            for each in self._service.clusters()
            if self._caller.sees(self._service.database.run_row(each["run"])["team"])
        ]

    def end_clusters(
        self, ids: Sequence[str] | None, environ: Mapping[str, str], tell: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Give back clusters that no run uses, or all of those (None); what they were.

        Raises:
            NotFoundError: there is no such cluster, or it is not the caller's.
            UsageError: a run uses it, or its provider cannot be used.
            ProviderError: the provider cannot be reached.
        """
        self._caller.need("run")
        seen = {each["id"]: each["state"] for each in self.clusters()}
        wanted = [name for name, how in seen.items() if how != USED] if ids is None else ids
        for name in wanted:
            if name not in seen:
                raise NotFoundError(f"no cluster {name!r} has machines", "`trainmaster clusters` lists them.")
        return self._service.end_clusters(wanted, environ, tell) if wanted else []


def _finite(value: float, digits: int | None = None) -> float | None:
    """JSON has no other numbers."""
    if value - value != 0:
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


def _model(row: RowMapping) -> dict[str, Any]:
    return {
        "model": f"{row['run']}/{row['experiment']}/{row['task']}",
        **row,
        "metrics": json.loads(row["metrics"]),
        "parameters": json.loads(row["parameters"]),
    }
