"""`requeue_rows`: what `resume` does to a run."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.run_rows import run_row
from trainmaster.spec.states import EndReason, State

_FINISHED = (EndReason.SUCCEEDED, EndReason.PRUNED)


def requeue_rows(connection: Connection, run: str, now: float) -> int:
    """Make everything WAITING again that ended neither SUCCEEDED nor PRUNED; how many tasks."""
    ids = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)
    bad = (t.task.c.state == State.DONE, t.task.c.reason.not_in(_FINISHED))
    again = connection.execute(
        sa.select(t.task.c.number, t.task.c.reason, t.task.c.attempt, t.experiment.c.name)
        .join(t.experiment)
        .where(t.experiment.c.run_id == run, *bad)
        .order_by(t.experiment.c.ordinal, t.task.c.number)
    ).all()
    connection.execute(
        t.task.update()
        .where(t.task.c.experiment_id.in_(ids), *bad)
        .values(
            state=State.WAITING,
            reason=None,
            message="",
            retries_used=0,
            free_restarts=0,
            not_before=0,
            tries=0,
            try_at=0,
            saving_usd=0,
            end_reason=None,
            ended_at=None,
        )
    )
    unfinished = (
        t.experiment.c.run_id == run,
        t.experiment.c.reason.is_distinct_from(EndReason.SUCCEEDED),
    )
    reset = connection.execute(
        sa.select(t.experiment.c.name, t.experiment.c.state, t.experiment.c.reason)
        .where(*unfinished, t.experiment.c.state != State.WAITING)
        .order_by(t.experiment.c.ordinal)
    ).all()
    before = run_row(connection, run)["state"]
    connection.execute(
        t.experiment.update()
        .where(*unfinished)
        .values(state=State.WAITING, reason=None, message="", rest_reason=None)
    )
    connection.execute(
        t.run.update()
        .where(t.run.c.id == run)
        .values(state=State.WAITING, reason=None, message="", ended_at=None, closed_at=None, stop_wanted=None)
    )
    events = [event_row(run, now, "run", before, State.WAITING, message="resumed")]
    events += [
        event_row(run, now, "experiment", state, State.WAITING, reason, "", name)
        for name, state, reason in reset
    ]
    events += [
        event_row(run, now, "task", State.DONE, State.WAITING, reason, "", name, number, attempt)
        for number, reason, attempt, name in again
    ]
    insert_events(connection, events)
    return len(again)
