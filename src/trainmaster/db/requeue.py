"""What is written of a run that is over: `resume` begins it again, and a model that was kept is saved."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import tables as t
from trainmaster.db.endpoint_changes import reopen
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.run_rows import run_row
from trainmaster.spec.facts import Approval, Fact
from trainmaster.spec.states import FINISHED, EndReason, State


def requeue_rows(connection: Connection, run: str, now: float) -> None:
    """Make everything WAITING again that ended without success; services get new replicas."""
    serves = sa.select(t.endpoint.c.experiment).where(t.endpoint.c.run_id == run)
    ids = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run, t.experiment.c.name.not_in(serves))
    bad = (t.task.c.state == State.DONE, t.task.c.reason.not_in(FINISHED))
    again = connection.execute(
        sa.select(t.task.c.number, t.task.c.reason, t.task.c.attempt, t.experiment.c.name)
        .join(t.experiment)
        .where(t.experiment.c.id.in_(ids), *bad)
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
            started_at=None,
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
        .where(*unfinished, t.experiment.c.state != State.WAITING)  # those that wait may have asked somebody
        .values(state=State.WAITING, reason=None, message="", rest_reason=None)
    )
    _forget_denials(connection, run, {row.name for row in reset})
    if before == State.DONE:  # what people have had ended is done again; of a run that goes on it stays so
        connection.execute(t.run_fact.delete().filter_by(run_id=run, kind=Fact.CANCELLED.value))
    connection.execute(
        t.run.update()
        .where(t.run.c.id == run)
        .values(
            state=State.WAITING,
            reason=None,
            message="",
            ended_at=None,
            closed_at=None,
            stop_wanted=None,
            trimmed_at=None,
        )
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
    reopen(connection, run)


def record_saved(
    connection: Connection,
    run: str,
    experiment: str,
    task: int,
    uri: str | None,
    now: float,
    *,
    gated: bool = False,
) -> None:
    """A kept model was published: its task has succeeded after all, and what hung on nothing else, too.

    Args:
        connection: in a transaction.
        run: its id.
        experiment: name.
        task: number.
        uri: of the model; None: it is kept no more, and was not published.
        now: Unix seconds.
        gated: the experiment has a gate, which only a driver asks: it is not over by this.
    """
    ids = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)
    mine = ids.where(t.experiment.c.name == experiment).scalar_subquery()
    row = t.task.c.experiment_id == mine, t.task.c.number == task
    if uri is None:
        connection.execute(t.task.update().where(*row).values(kept_model=None))
        return
    attempt = connection.execute(sa.select(t.task.c.attempt).where(*row)).scalar_one()
    good = {"reason": EndReason.SUCCEEDED, "message": ""}
    connection.execute(t.task.update().where(*row).values(**good, model_uri=uri, kept_model=None))
    connection.execute(
        t.attempt.update()
        .where(t.attempt.c.experiment_id == mine, t.attempt.c.task == task, t.attempt.c.number == attempt)
        .values(**good)
    )
    events = [
        event_row(
            run, now, "task", State.DONE, State.DONE, EndReason.SUCCEEDED, f"saved: {uri}",
            experiment, task, attempt,
        )
    ]  # fmt: skip
    if gated:
        insert_events(connection, events)
        return
    bad = sa.exists().where(
        t.task.c.experiment_id == t.experiment.c.id,
        sa.or_(t.task.c.state != State.DONE, t.task.c.reason.not_in(FINISHED)),
    )
    whole = connection.execute(
        t.experiment.update()
        .where(
            t.experiment.c.id == mine,
            t.experiment.c.state == State.DONE,
            t.experiment.c.rest_reason.is_(None),
            ~bad,
        )
        .values(**good)
    )
    if whole.rowcount:
        events.append(
            event_row(run, now, "experiment", State.DONE, State.DONE, EndReason.SUCCEEDED, "", experiment)
        )
    unfinished = sa.exists().where(
        t.experiment.c.run_id == run, t.experiment.c.reason.is_distinct_from(EndReason.SUCCEEDED)
    )
    over = connection.execute(
        t.run.update().where(t.run.c.id == run, t.run.c.state == State.DONE, ~unfinished).values(**good)
    )
    if over.rowcount:
        events.append(event_row(run, now, "run", State.DONE, State.DONE, EndReason.SUCCEEDED))
    insert_events(connection, events)


def _forget_denials(connection: Connection, run: str, ended: set[str]) -> None:
    """People are asked again for what they have denied and has ended so: somebody wants the run to go on.

    What was denied while the run was undriven, and still waits, ends so now.
    """
    approvals = t.run_fact.select().filter_by(run_id=run, kind=Fact.APPROVAL.value)
    for row in connection.execute(approvals).all():
        if row.name in ended and not Approval.from_json(row.value).is_given:
            connection.execute(t.run_fact.delete().filter_by(run_id=run, kind=row.kind, name=row.name))
