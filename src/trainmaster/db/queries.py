"""What people ask of the database: reading only, never more than a page of rows at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.quote_rows import is_of_job
from trainmaster.db.task_rows import tasks_of
from trainmaster.spec.states import FINISHED, WHOLE, State

if TYPE_CHECKING:
    from trainmaster.spec.where import Where

#: Of what is kept, or waits to be saved, a summary names the first ones.
_MOST = 1000

#: Begins the cause of the run that was started as its workflow was registered.
AT_ONCE: Final = "now-"

#: More points teach a model nothing new.
_MEASUREMENTS = 400
#: Whatever lists many runs needs no more; their recipes are long.
_LISTED = [column for column in t.run.c if column is not t.run.c.recipe]


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are listed.

    Attributes:
        teams: only those of these teams (None: of the owner of the home); None for all.
        state: in this state, or ended for this reason; what waits for other runs is WAITING, too.
        name: only those whose id has this in it.
        owner: only those that were sent by a name that has this in it.
        since: only those that were begun then or later, Unix seconds.
        senders: only those that exactly these have sent (None: that were begun at home), and no workflow has
            started but as it was registered (`run --now`); None for all.
        where: only those of which this condition is true.
        now: Unix seconds of `Database.clock_s`, for the age of runs in that.
        removed: those that were removed, too, as bills have them.
        is_over: only those that have ended, or that have not; None for both.
    """

    teams: tuple[str | None, ...] | None = None
    state: str | None = None
    name: str | None = None
    owner: str | None = None
    since: float | None = None
    senders: tuple[str | None, ...] | None = None
    where: Where | None = None
    now: float = 0.0
    removed: bool = False
    is_over: bool | None = None

    def narrowed(self, where: str, database: Database) -> RunFilter:
        """Only those of these with which a condition holds, too; an empty one is none.

        Raises:
            UsageError: it is no condition.
        """
        if not where.strip():
            return self
        from trainmaster.spec.where import parse_where

        return replace(self, where=parse_where(where), now=database.clock_s())

    def condition(self) -> sa.ColumnElement[bool]:
        """For a query."""
        found: list[sa.ColumnElement[bool]] = [sa.true() if self.removed else t.run.c.removed_at.is_(None)]
        if self.teams is not None:
            found.append(
                sa.or_(sa.false(), *(t.run.c.team.is_not_distinct_from(team) for team in self.teams))
            )
        if self.state is not None:
            # What waits for its turn is called waiting, and not running, whatever it is called inside.
            waits = t.run.c.queued_at.is_not(None) & (t.run.c.state != State.DONE)
            of_state = (t.run.c.state == self.state) | (t.run.c.reason == self.state)
            if self.state == State.WAITING:
                of_state |= waits
            found.append(of_state & ~waits if self.state == State.RUNNING else of_state)
        if self.is_over is not None:
            is_done = t.run.c.state == State.DONE
            found.append(is_done if self.is_over else ~is_done)
        if self.name is not None:
            found.append(t.run.c.id.contains(self.name, autoescape=True))
        if self.owner is not None:
            found.append(t.run.c.submitted_by.contains(self.owner, autoescape=True))
        if self.senders is not None:
            sent = (t.run.c.submitted_by.is_not_distinct_from(each) for each in self.senders)
            firing = t.workflow_firing.c
            started = sa.exists().where(firing.run_id == t.run.c.id, ~firing.cause.startswith(AT_ONCE))
            found += [sa.or_(sa.false(), *sent), ~started]
        if self.since is not None:
            found.append(t.run.c.created_at >= self.since)
        if self.where is not None:
            from trainmaster.db.run_search import where_condition  # few lists are searched

            found.append(where_condition(self.where, self.now))
        return sa.and_(*found)


ALL_RUNS = RunFilter()


def run_states(database: Database, which: RunFilter = ALL_RUNS) -> Sequence[RowMapping]:
    """How many runs (``count``) are in each state."""
    count = sa.func.count().label("count")
    return database.read(sa.select(t.run.c.state, count).where(which.condition()).group_by(t.run.c.state))


def run_reasons(database: Database, which: RunFilter = ALL_RUNS) -> Sequence[RowMapping]:
    """How many runs (``count``) have ended for each reason."""
    count = sa.func.count().label("count")
    over = which.condition() & t.run.c.reason.is_not(None)
    return database.read(sa.select(t.run.c.reason, count).where(over).group_by(t.run.c.reason))


def leases(database: Database, which: RunFilter = ALL_RUNS) -> Sequence[RowMapping]:
    """The leases of runs that are not over."""
    going_on = which.condition() & (t.run.c.state != "DONE")
    return database.read(sa.select(t.run.c.lease_owner, t.run.c.lease_expires_at).where(going_on))


def runs(
    database: Database,
    limit: int | None = None,
    after: str | None = None,
    which: RunFilter = ALL_RUNS,
    order: Sequence[sa.ColumnElement[Any]] = (),
    skipped: int = 0,
) -> Sequence[RowMapping]:
    """Runs without their recipes, newest first: all, or a page.

    Args:
        database: the database.
        limit: at most so many.
        after: only those that come after this run.
        which: only these.
        order: of more weight than how new they are.
        skipped: how many there are before the first one.
    """
    query = sa.select(*_LISTED).order_by(*order, t.run.c.created_at.desc(), t.run.c.id)
    query = query.limit(limit).offset(skipped or None)
    return database.read(query.where(_runs_after(after), which.condition()))


def count_runs(database: Database, after: str | None = None, which: RunFilter = ALL_RUNS) -> int:
    """How many runs there are, or come after one in the order of `runs`."""
    query = sa.select(sa.func.count().label("runs")).select_from(t.run)
    return int(database.read(query.where(_runs_after(after), which.condition()))[0]["runs"])


def _runs_after(run: str | None) -> sa.ColumnElement[bool]:
    if run is None:
        return sa.true()
    other = t.run.alias()
    created_at = sa.select(other.c.created_at).where(other.c.id == run).scalar_subquery()
    # The first condition is in the second: it lets the index begin where the page does.
    return (t.run.c.created_at <= created_at) & ((t.run.c.created_at < created_at) | (t.run.c.id > run))


def profile(database: Database, run: str, experiment: str | None, which: RunFilter) -> Sequence[RowMapping]:
    """What was measured of the jobs of a run, also in other runs, the newest first.

    Its columns: ``run_id``, ``experiment``, ``data``.

    Args:
        database: the database.
        run: its id.
        experiment: only this one.
        which: only what was measured in these runs.
    """
    measured = t.measurement
    of_run = sa.select(measured.c.similar).where(measured.c.run_id == run)
    if experiment is not None:
        of_run = of_run.where(measured.c.experiment == experiment)
    query = (
        sa.select(measured.c.run_id, measured.c.experiment, measured.c.data)
        .join(t.run, t.run.c.id == measured.c.run_id)
        .where(measured.c.similar.in_(of_run), is_of_job(), which.condition())
        .order_by(measured.c.measured_at.desc(), measured.c.id)
        .limit(_MEASUREMENTS)
    )
    return database.read(query)


def models(
    database: Database,
    run: str | None,
    experiment: str | None = None,
    limit: int | None = None,
    after: tuple[str, str, int] | None = None,
    which: RunFilter = ALL_RUNS,
) -> Sequence[RowMapping]:
    """Models in the order of runs (newest first), experiments and tasks.

    Columns: ``run``, ``experiment``, ``task``, ``uri``, ``metrics`` (JSON), ``parameters`` (JSON).

    Args:
        database: the database.
        run: only of this one.
        experiment: only of those with this name.
        limit: at most so many.
        after: run, experiment and task of a model: only those that come after it.
        which: only those of these runs.
    """
    query = (
        sa.select(
            t.run.c.id.label("run"),
            t.experiment.c.name.label("experiment"),
            t.task.c.number.label("task"),
            t.task.c.model_uri.label("uri"),
            t.task.c.metrics,
            t.task.c.parameters,
        )
        .select_from(t.task.join(t.experiment).join(t.run))
        .where(t.task.c.model_uri.is_not(None), which.condition())
        .order_by(t.run.c.created_at.desc(), t.run.c.id, t.experiment.c.ordinal, t.task.c.number)
        .limit(limit)
    )
    if after is not None:
        run_after, experiment_after, task_after = after
        other = t.experiment.alias()
        ordinal = (
            sa.select(other.c.ordinal)
            .where(other.c.run_id == run_after, other.c.name == experiment_after)
            .scalar_subquery()
        )
        in_run = (t.experiment.c.ordinal > ordinal) | (
            (t.experiment.c.ordinal == ordinal) & (t.task.c.number > task_after)
        )
        query = query.where(_runs_after(run_after) | ((t.run.c.id == run_after) & in_run))
    if run is not None:
        query = query.where(t.run.c.id == run)
    if experiment is not None:
        query = query.where(t.experiment.c.name == experiment)
    return database.read(query)


def without_model(database: Database, run: str) -> Sequence[RowMapping]:
    """Experiments of a run of which tasks succeeded and left no model, in order.

    Columns: ``experiment``, ``tasks`` (how many), ``silent`` (how many of them without any metrics),
    ``metrics`` (of one of them, JSON).
    """
    task = t.task.c
    query = (
        sa.select(
            t.experiment.c.name.label("experiment"),
            sa.func.count().label("tasks"),
            sa.func.sum(sa.case((task.metrics == "{}", 1), else_=0)).label("silent"),
            sa.func.max(task.metrics).label("metrics"),
        )
        .select_from(t.task.join(t.experiment))
        .where(t.experiment.c.run_id == run, task.reason.in_(WHOLE), task.model_uri.is_(None))
        .group_by(t.experiment.c.name, t.experiment.c.ordinal)
        .order_by(t.experiment.c.ordinal)
    )
    return database.read(query)


def tasks(
    database: Database, run: str, *, state: str | None = None, bad_only: bool = False, limit: int = 100
) -> Sequence[RowMapping]:
    """Tasks of a run with their experiment's name as ``experiment``, in order.

    Args:
        database: the database.
        run: its id.
        state: only tasks in this state.
        bad_only: only tasks that are DONE and did not succeed.
        limit: at most so many.
    """
    query = tasks_of(run).limit(limit)
    if state is not None:
        query = query.where(t.task.c.state == state)
    if bad_only:
        query = query.where(t.task.c.state == "DONE", t.task.c.reason.not_in(FINISHED))
    return database.read(query)


def present(database: Database, runs: Collection[str]) -> set[str]:
    """Those of some runs that were not removed."""
    query = sa.select(t.run.c.id).where(t.run.c.id.in_(runs), t.run.c.removed_at.is_(None))
    return {row["id"] for row in database.read(query)}


def not_finite(database: Database, runs: Collection[str] | sa.Select[Any]) -> dict[str, Counter[str]]:
    """Metrics of which tasks have reported NaN or an infinity last, by run: in how many tasks each.

    Args:
        database: the database.
        runs: ids, or a query of them.
    """
    found: dict[str, Counter[str]] = {}
    query = sa.select(t.experiment.c.run_id, t.task.c.metrics).join_from(t.experiment, t.task)
    query = query.where(t.experiment.c.run_id.in_(runs), t.task.c.metrics.like("%null%"))
    for row in database.read(query):
        names = [name for name, value in json.loads(row["metrics"]).items() if value is None]
        if names:
            found.setdefault(row["run_id"], Counter()).update(names)
    return found


def results(database: Database, run: str, experiment: str) -> Sequence[RowMapping]:
    """All tasks of one experiment that have a row, in order, with its name as ``experiment``."""
    return database.read(tasks_of(run).where(t.experiment.c.name == experiment))


def kept_models(database: Database, run: str) -> Sequence[RowMapping]:
    """Tasks of a run that are over and whose model is kept; their experiment's name is ``experiment``."""
    return [row for row in database.read(kept_models_query(run)) if row["state"] == State.DONE]


def kept_models_query(run: str) -> sa.Select[Any]:
    """Tasks of a run whose model is kept; without their state, by which SQLite would go through all tasks."""
    return tasks_of(run).where(t.task.c.kept_model.is_not(None)).limit(_MOST)


def waiting_saves(database: Database, run: str) -> Sequence[RowMapping]:
    """Tasks of a run of which something cannot be saved yet; their experiment's name is ``experiment``."""
    states = (State.SAVING, State.RECOVERING)
    return database.read(tasks_of(run).where(t.task.c.state.in_(states), t.task.c.tries > 0).limit(_MOST))


def run_ids(
    database: Database, beginning: str = "", limit: int | None = None, which: RunFilter = ALL_RUNS
) -> list[str]:
    """Ids of runs, newest first.

    Args:
        database: the database.
        beginning: only those that begin so.
        limit: at most so many.
        which: only these.
    """
    query = sa.select(t.run.c.id).order_by(t.run.c.created_at.desc(), t.run.c.id).limit(limit)
    query = query.where(which.condition())
    if beginning:
        query = query.where(sa.func.substr(t.run.c.id, 1, len(beginning)) == beginning)
    return [row["id"] for row in database.read(query)]


def is_among(database: Database, run: str, which: RunFilter) -> bool:
    """Whether a run is one of these, or was before it was removed."""
    them = replace(which, removed=True).condition()
    return bool(database.read(sa.select(t.run.c.id).where(t.run.c.id == run, them)))


def attempts(
    database: Database, run: str, experiment: str | None = None, task: int | None = None, after: int = 0
) -> Sequence[RowMapping]:
    """Attempts of a run in order of experiment, task and number, those with an id above ``after``.

    Columns: ``id``, ``experiment`` (name), ``task``, ``number``, ``ended_at``.
    """
    query = (
        sa.select(
            t.attempt.c.id,
            t.experiment.c.name.label("experiment"),
            t.attempt.c.task,
            t.attempt.c.number,
            t.attempt.c.ended_at,
        )
        .join(t.experiment, t.attempt.c.experiment_id == t.experiment.c.id)
        .where(t.experiment.c.run_id == run, t.attempt.c.id > after)
        .order_by(t.experiment.c.ordinal, t.attempt.c.task, t.attempt.c.number)
    )
    if experiment is not None:
        query = query.where(t.experiment.c.name == experiment)
    if task is not None:
        query = query.where(t.attempt.c.task == task)
    return database.read(query)


_OF_TASK: Final = ("started_at", "restored")


def attempt_details(database: Database, run: str, limit: int) -> Sequence[RowMapping]:
    """The newest attempts of a run, the newest first: all columns, with the experiment's name.

    When the present attempt of a task has begun, and from which checkpoint, is in the row of the task.
    """
    goes_on = sa.and_(
        t.task.c.experiment_id == t.attempt.c.experiment_id,
        t.task.c.number == t.attempt.c.task,
        t.task.c.attempt == t.attempt.c.number,
        t.attempt.c.ended_at.is_(None),
    )
    known = [sa.func.coalesce(t.attempt.c[key], t.task.c[key]).label(key) for key in _OF_TASK]
    columns = [column for column in t.attempt.c if column.name not in _OF_TASK]
    query = (
        sa.select(*columns, *known, t.experiment.c.name.label("experiment"))
        .join(t.experiment, t.attempt.c.experiment_id == t.experiment.c.id)
        .join(t.task, goes_on, isouter=True)
        .where(t.experiment.c.run_id == run)
        .order_by(t.attempt.c.id.desc())
        .limit(limit)
    )
    return database.read(query)


def ended_attempts(database: Database, ids: Sequence[int]) -> set[int]:
    """Which of these attempts have ended."""
    ended: set[int] = set()
    for start in range(0, len(ids), 500):  # databases limit the number of values
        some = ids[start : start + 500]
        query = sa.select(t.attempt.c.id).where(t.attempt.c.id.in_(some), t.attempt.c.ended_at.is_not(None))
        ended.update(row["id"] for row in database.read(query))
    return ended


def last_event(database: Database, run: str) -> int:
    """Id of the newest event of a run, 0 if it has none."""
    query = sa.select(sa.func.max(t.event.c.id).label("last")).where(t.event.c.run_id == run)
    return database.read(query)[0]["last"] or 0


def last_notes(database: Database, run: str, limit: int) -> Sequence[RowMapping]:
    """The newest notes of a run, the oldest of them first."""
    query = (
        sa.select(t.event)
        .where(t.event.c.run_id == run, t.event.c.kind == "note")
        .order_by(t.event.c.id.desc())
        .limit(limit)
    )
    return list(reversed(database.read(query)))


def opened_at(database: Database, run: str) -> dict[tuple[str, int, int], float]:
    """When attempts of a run that are not over were opened, Unix seconds: by experiment, task and number."""
    attempt = t.attempt.c
    columns = (t.experiment.c.name, attempt.task, attempt.number, attempt.opened_at)
    query = sa.select(*columns).join(t.experiment, t.experiment.c.id == attempt.experiment_id)
    rows = database.read(query.where(t.experiment.c.run_id == run, attempt.reason.is_(None)))
    return {(row["name"], row["task"], row["number"]): row["opened_at"] for row in rows}


def noted_at(database: Database, run: str, topic: str) -> float:
    """When a run's newest note of a topic was written, Unix seconds; 0.0 if there is none."""
    query = sa.select(sa.func.max(t.event.c.at).label("at"))
    row = database.read(query.where(t.event.c.run_id == run, t.event.c.topic == topic))[0]
    return float(row["at"] or 0.0)


def notes_about(database: Database, run: str, topics: Collection[str]) -> Sequence[RowMapping]:
    """Notes of a run that are about any of these topics, the oldest first."""
    query = sa.select(t.event).where(t.event.c.run_id == run, t.event.c.topic.in_(topics))
    return database.read(query.order_by(t.event.c.id))


def events(database: Database, run: str, after: int = 0, limit: int = 1000) -> Sequence[RowMapping]:
    """Events of a run in order, those with an id larger than ``after``."""
    query = (
        sa.select(t.event)
        .where(t.event.c.run_id == run, t.event.c.id > after)
        .order_by(t.event.c.id)
        .limit(limit)
    )
    return database.read(query)


def has_runs_away(database: Database) -> bool:
    """Whether any run is driven by a machine of its own."""
    return bool(database.read(sa.select(t.run.c.id).where(t.run.c.away.is_not(None)).limit(1)))


def at_place(
    connection: Connection, team: str, provider: str, now: float
) -> tuple[Sequence[RowMapping], Sequence[RowMapping]]:
    """Runs of a team that are not over, wherever they are; its clusters that may have machines at a place.

    Machines that were kept warm have ended themselves when that is over.

    Args:
        connection: in a transaction that has `ledger.lock_admission`: no run begins or goes on until it ends.
        team: whose.
        provider: name of the place.
        now: Unix seconds.
    """
    going = sa.select(t.run).where(t.run.c.team == team, t.run.c.state != State.DONE)
    c = t.cluster.c
    is_warm = sa.or_(c.kept_until.is_(None), c.kept_until > now)
    living = (
        sa.select(c.id, c.run_id).join(t.run).where(t.run.c.team == team, c.provider == provider, is_warm)
    )
    clusters = living.where(c.state.not_in(("PLANNED", "ENDED"))).order_by(c.id)
    return connection.execute(going).mappings().all(), connection.execute(clusters).mappings().all()
