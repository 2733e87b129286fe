"""Rows of measurements and quotes: what was measured, what was promised, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.events import storable
from trainmaster.spec.states import FINISHED, EndReason, State

#: Older measurements of the same thing are of little interest.
MEASUREMENTS = 100
#: Of so many of the newest, each job has as many as any other, as far as there are.
_LOOKED_AT: Final = 5000
_PHASES = "phase:"
#: Kind of the row that has how far a run is: no promise, and nothing is judged by it.
FORECAST: Final = "forecast"
#: Why a run ended that a person has ended.
_BY_HAND: Final = (EndReason.CANCELLED, EndReason.DENIED)
#: Runs that quotes are judged by: older ones were quoted by an older model.
JUDGED_RUNS = 1000


@dataclass(frozen=True, slots=True)
class NewMeasurement:
    """One attempt, measured.

    Attributes:
        id: what was measured: the attempt's id, or the profile's. A second one with it replaces the first.
        fingerprint: of what it rests on.
        similar: of what it has in common with others that only differ in code or parameters.
        experiment: name.
        run_id: the run; None for a profiling attempt.
        data: JSON.
        measured_at: Unix seconds.
    """

    id: str
    fingerprint: str
    similar: str
    experiment: str
    run_id: str | None
    data: str
    measured_at: float


@dataclass(frozen=True, slots=True)
class NewQuoteRow:
    """What was promised; run, experiment, kind and time name it.

    Attributes:
        run_id: the run.
        experiment: name; None for the whole run.
        kind: ``estimate`` or ``binding``.
        made_at: Unix seconds.
        data: JSON.
    """

    run_id: str
    experiment: str | None
    kind: str
    made_at: float
    data: str


@dataclass(frozen=True, slots=True)
class ActualOutcome:
    """What a run has taken that had a quote.

    Attributes:
        time_s: seconds that it took.
        cost_usd: dollars that it cost.
        kept: whether the run succeeded, and neither was more than promised; None if it was ended by hand.
    """

    time_s: float
    cost_usd: float
    kept: bool | None


def put_measurements(connection: Connection, found: Sequence[NewMeasurement]) -> None:
    """Write measurements; those with a known id replace what was there. Safe to repeat."""
    rows = {new.id: {**asdict(new), "data": storable(new.data)} for new in found}
    if not rows:
        return
    connection.execute(
        t.measurement.delete().where(t.measurement.c.id == sa.bindparam("known")),
        [{"known": name} for name in rows],
    )
    connection.execute(t.measurement.insert(), list(rows.values()))


def phase_of(phase: str, content: str = "") -> str:
    """What phases that come once are called where jobs have a fingerprint.

    >>> phase_of("setup", "4711"), phase_of("setup")
    ('phase:setup:4711', 'phase:setup:')
    """
    return f"{_PHASES}{phase}:{content}"


def phases_query(phase: str, content: str) -> sa.Select[Any]:
    """What was measured of a phase, whoever ran it: of this content first, then the newest first."""
    column, kind = t.measurement.c, t.measurement.c.similar == phase_of(phase)
    own = column.fingerprint == phase_of(phase, content)
    others = _newest_of_each(kind, ~own).subquery()
    newest = sa.select(column.id).where(kind, own).order_by(column.measured_at.desc(), column.id)
    return (
        sa.select(t.measurement)
        .where(
            column.id.in_(
                sa.union_all(sa.select(newest.limit(MEASUREMENTS).subquery().c.id), sa.select(others.c.id))
            )
        )
        .order_by(sa.case((own, 0), else_=1), column.measured_at.desc(), column.id)
        .limit(MEASUREMENTS)
    )


def is_of_job() -> sa.ColumnElement[bool]:
    """True of measurements of jobs."""
    return ~t.measurement.c.similar.startswith(_PHASES, autoescape=True)


def put_quote(connection: Connection, new: NewQuoteRow) -> int:
    """Write a quote, or what it says now; its id. Safe to repeat."""
    known = connection.execute(
        sa.select(t.quote.c.id).where(
            t.quote.c.run_id == new.run_id,
            t.quote.c.experiment.is_not_distinct_from(new.experiment),
            t.quote.c.kind == new.kind,
            t.quote.c.made_at == new.made_at,
        )
    ).scalar()
    if known is not None:
        connection.execute(t.quote.update().where(t.quote.c.id == known).values(data=storable(new.data)))
        return int(known)
    inserted = connection.execute(t.quote.insert().values({**asdict(new), "data": storable(new.data)}))
    assert inserted.inserted_primary_key is not None
    return int(inserted.inserted_primary_key[0])


def put_outcome(connection: Connection, quote: int, outcome: ActualOutcome) -> None:
    """Write what a quote came to. Safe to repeat: the last word counts, as a run may be resumed."""
    connection.execute(t.quote.update().where(t.quote.c.id == quote).values(asdict(outcome)))


def measurements_query(team: str | None, *which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """`MEASUREMENTS` of a team for which all of that is true, the newest of each job, newest first.

    Args:
        team: whose runs were measured; None for the owner's, and for what was measured outside of runs.
        *which: what else is to be true.
    """
    whose = sa.select(t.run.c.team).where(t.run.c.id == t.measurement.c.run_id).scalar_subquery()
    return _newest_of_each(sa.func.coalesce(whose, "") == (team or ""), *which)


def _newest_of_each(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """The newest of each fingerprint, then the second ones, and so on: what is frequent hides nothing."""
    column = t.measurement.c
    newest = (
        sa.select(column.id, column.fingerprint, column.measured_at)
        .where(*which)
        .order_by(column.measured_at.desc(), column.id)
        .limit(_LOOKED_AT)
        .subquery()
    )
    order = newest.c.measured_at.desc(), newest.c.id
    place = sa.func.row_number().over(partition_by=newest.c.fingerprint, order_by=order)
    placed = sa.select(*newest.c, place.label("place")).subquery()
    chosen = (
        sa.select(placed.c.id)
        .order_by(placed.c.place, placed.c.measured_at.desc(), placed.c.id)
        .limit(MEASUREMENTS)
        .subquery()
    )
    return (
        sa.select(t.measurement)
        .where(column.id.in_(sa.select(chosen.c.id)))
        .order_by(column.measured_at.desc(), column.id)
    )


def put_forecast(connection: Connection, run: str, data: str) -> None:
    """Write how far a run is, and when it will end: the last word counts. Safe to repeat."""
    mine = (t.quote.c.run_id == run, t.quote.c.kind == FORECAST)
    if connection.execute(t.quote.update().where(*mine).values(data=storable(data))).rowcount == 0:
        new = NewQuoteRow(run, None, FORECAST, 0.0, storable(data))
        connection.execute(t.quote.insert().values(asdict(new)))


def forecast_query(run: str) -> sa.Select[Any]:
    """What was written last of how far a run is."""
    return sa.select(t.quote.c.data).where(t.quote.c.run_id == run, t.quote.c.kind == FORECAST)


def forecasts_query(runs: Sequence[str]) -> sa.Select[Any]:
    """What was written last of how far some runs are."""
    columns = (t.quote.c.run_id, t.quote.c.data)
    return sa.select(*columns).where(t.quote.c.run_id.in_(runs), t.quote.c.kind == FORECAST)


def quotes_query(run: str) -> sa.Select[Any]:
    """Quotes of a run in the order in which they were made."""
    mine = sa.select(t.quote).where(t.quote.c.run_id == run, t.quote.c.kind != FORECAST)
    return mine.order_by(t.quote.c.made_at, t.quote.c.id)


def cancelled_query(run: str) -> sa.Select[Any]:
    """An event of each end of a run by a person (cancel, Ctrl-C, a no): it may succeed later all the same."""
    column = t.event.c
    is_end = column.kind == "run", column.after == State.DONE
    return sa.select(column.id).where(column.run_id == run, *is_end, column.reason.in_(_BY_HAND))


def failed_attempts_query(run: str) -> sa.Select[Any]:
    """How its attempts that were made in vain have ended, and how many ended so, most of them first."""
    column = t.attempt.c
    mine = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)
    count = sa.func.count().label("attempts")
    found = sa.select(column.reason, count).group_by(column.reason).order_by(count.desc(), column.reason)
    return found.where(column.experiment_id.in_(mine), column.reason.not_in(FINISHED))


def measured_in_query(run: str) -> sa.Select[Any]:
    """What its attempts have shown of their time."""
    return sa.select(t.measurement.c.data).where(t.measurement.c.run_id == run, is_of_job())


def judged_query() -> sa.Select[Any]:
    """Quotes of whole runs that have ended, with what is known of the run; of the newest runs."""
    tasks = (
        sa.select(sa.func.sum(t.experiment.c.tasks_total))
        .where(t.experiment.c.run_id == t.quote.c.run_id)
        .scalar_subquery()
    )
    newest = (
        sa.select(t.run.c.id, t.run.c.provider, t.run.c.home_id, t.run.c.team, t.run.c.recipe, t.run.c.reason)
        .where(t.run.c.state == State.DONE, t.run.c.id.in_(sa.select(t.quote.c.run_id)))
        .order_by(t.run.c.created_at.desc(), t.run.c.id)
        .limit(JUDGED_RUNS)
        .subquery()
    )
    known = (newest.c.provider, newest.c.home_id, newest.c.team, newest.c.recipe, newest.c.reason)
    columns = (*known, tasks.label("tasks"))
    return (
        sa.select(t.quote, *columns)
        .join(newest, newest.c.id == t.quote.c.run_id)
        .where(t.quote.c.time_s.is_not(None), t.quote.c.experiment.is_(None))
        .order_by(t.quote.c.made_at, t.quote.c.id)
    )
