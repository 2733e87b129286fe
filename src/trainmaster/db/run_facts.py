"""What was found out of a run while it was driven: the first look decides, for whoever drives it later.

A row is written once and never changed. Only the holder of the run's lease writes one, but for what a person
says of an experiment that waits for that, or of a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.leases import Lease
from trainmaster.db.retry_policy import Try
from trainmaster.db.run_files import write_held
from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import Approval, Fact
from trainmaster.spec.states import State
from trainmaster.spec.topics import APPROVAL_ANSWERED


def facts_of(database: Database, run: str) -> dict[tuple[Fact, str], str]:
    """All that is known of a run, by kind and name."""
    rows = database.read(sa.select(t.run_fact).where(t.run_fact.c.run_id == run))
    return {(Fact(row["kind"]), row["name"]): row["value"] for row in rows}


def begin_with(connection: Connection, run: str, kind: Fact, known: Mapping[str, str]) -> None:
    """Write down what is known of a new run before it is driven, by name."""
    rows = [{"run_id": run, "kind": kind.value, "name": name, "value": known[name]} for name in known]
    if rows:
        connection.execute(t.run_fact.insert(), rows)


def put_fact(database: Database, lease: Lease, kind: Fact, name: str, value: str) -> str:
    """Write down what was found, unless something is known already; what is known from now on.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """
    row = {"run_id": lease.run, "kind": kind.value, "name": name}
    query = sa.select(t.run_fact.c.value).filter_by(**row)

    def write(connection: Connection) -> str:
        known: str | None = connection.execute(query).scalar()
        if known is None:
            connection.execute(t.run_fact.insert().values(**row, value=value))
        return value if known is None else known

    # What members work with is only to be known later: a run does not wait for it.
    return write_held(database, lease, write, alone=True, patient=kind is not Fact.ENVIRONMENT)


def answer(database: Database, run: str, experiment: str, said: Approval) -> None:
    """Write down what a person says of an experiment, with its event: the run's driver goes by that.

    Raises:
        UsageError: it waits for no answer (any more).
    """

    def write(connection: Connection, this: Try) -> None:
        # The driver's transactions begin with this row, too: events of a run are seen in their order.
        connection.execute(sa.select(t.run.c.id).where(t.run.c.id == run).with_for_update())
        query = sa.select(t.run_fact.c.value).where(_approvals(run), t.run_fact.c.name == experiment)
        if known := connection.execute(query).scalar():
            if this.again and known == said.to_json():
                return
            raise answered(run, experiment, Approval.from_json(known))
        said_of = connection.execute(sa.select(t.run_fact.c.name).where(_approvals(run))).scalars()
        _must_ask(run, experiment, connection.execute(_experiments(run)).mappings(), set(said_of))
        fact = {"run_id": run, "kind": Fact.APPROVAL.value, "name": experiment, "value": said.to_json()}
        connection.execute(t.run_fact.insert().values(fact))
        message, topic = f"{experiment} was {said.words}", APPROVAL_ANSWERED
        note = event_row(run, said.at, "note", message=message, experiment=experiment, topic=topic)
        insert_events(connection, [note])

    database.write(write)


def cancel_tasks(database: Database, run: str, names: Sequence[str], by: str) -> list[dict[str, Any]]:
    """Write down that a person wants tasks ended: the run's driver goes by that.

    Args:
        database: the database.
        run: its id.
        names: of tasks, such as ``sweep/3``; a number alone, where the run has one experiment.
        by: whose wish it is.

    Returns:
        ``experiment``, ``task``, ``state``, ``reason`` and ``message`` of each at present.

    Raises:
        UsageError: there is no such task, or it is a replica; then nothing was written.
    """
    column = t.experiment.c
    columns = (column.name, column.id, column.tasks_total, column.state, column.reason, column.rest_reason)
    mine = sa.select(*columns).where(column.run_id == run).order_by(column.ordinal)
    serves = sa.select(t.endpoint.c.experiment).where(t.endpoint.c.run_id == run)

    def write(connection: Connection, _: Try) -> list[dict[str, Any]]:
        connection.execute(sa.select(t.run.c.id).where(t.run.c.id == run).with_for_update())  # as `answer`
        experiments = {row.name: row for row in connection.execute(mine)}
        replicas = set(connection.execute(serves).scalars())
        total = {name: row.tasks_total for name, row in experiments.items() if name not in replicas}
        wanted = dict.fromkeys(_task_named(run, text, total) for text in names)
        known = set(connection.execute(sa.select(t.run_fact.c.name).where(_cancelled(run))).scalars())
        found, new = [], []
        for name, number in wanted:
            query = sa.select(t.task.c.state, t.task.c.reason, t.task.c.message)
            query = query.where(t.task.c.experiment_id == experiments[name].id, t.task.c.number == number)
            if (begun := connection.execute(query).mappings().first()) is not None:
                row = dict(begun)
            else:  # and it may never
                of = experiments[name]
                reason = of.rest_reason or of.reason if of.state == State.DONE else None
                row = {"state": State.DONE if reason else State.WAITING, "reason": reason, "message": ""}
            found.append({"experiment": name, "task": number, **row})
            if row["state"] != State.DONE and (key := f"{name}/{number}") not in known:
                new.append(key)
        begin_with(connection, run, Fact.CANCELLED, dict.fromkeys(new, by))
        return found

    return database.write(write)


def _task_named(run: str, text: str, total: Mapping[str, int]) -> tuple[str, int]:
    """The task that a person means, of experiments with so many each."""
    name, _, number = text.rpartition("/")
    if not name and len(total) == 1:
        name = next(iter(total))
    if number.isascii() and number.isdigit() and int(number) < total.get(name, 0):
        return name, int(number)
    what = ", ".join(f"{each}/0" + f" to {each}/{count - 1}" * (count > 1) for each, count in total.items())
    hint = f"Its tasks are {what}." if what else f"It has replicas: `trainmaster cancel {run}` ends them all."
    raise UsageError(f"{run} has no task {text}", hint)


def check_asked(database: Database, run: str, experiment: str) -> None:
    """Whether an experiment waits for a person's answer, as far as is known here.

    Raises:
        UsageError: it does not.
    """
    known = database.approvals(run)
    if said := known.get(experiment):
        raise answered(run, experiment, said)
    _must_ask(run, experiment, database.read(_experiments(run)), known)


def answered(run: str, experiment: str, said: Approval) -> UsageError:
    """Somebody was quicker."""
    hint = "An answer is not taken back; `trainmaster cancel` ends a run."
    return UsageError(f"{run}: {experiment} was answered already: {said.words}", hint)


def _experiments(run: str) -> sa.Select[Any]:
    columns = (t.experiment.c.name, t.experiment.c.state, t.experiment.c.message)
    return sa.select(*columns).where(t.experiment.c.run_id == run).order_by(t.experiment.c.name)


def _must_ask(run: str, experiment: str, rows: Iterable[RowMapping], known: Collection[str]) -> None:
    found = {row["name"]: row for row in rows}
    asking = [name for name, row in found.items() if row["state"] == State.WAITING and row["message"]]
    if experiment in asking:
        return
    is_what = f"is {found[experiment]['state']}" if experiment in found else "is no experiment of it"
    waiting = ", ".join(name for name in asking if name not in known)
    raise UsageError(
        f"{run}: {experiment} waits for nobody's approval: it {is_what}",
        f"Those that wait for it: {waiting}."
        if waiting
        else "An experiment with `approval: required` asks when all before it has succeeded.",
    )


def _cancelled(run: str) -> sa.ColumnElement[bool]:
    return sa.and_(t.run_fact.c.run_id == run, t.run_fact.c.kind == Fact.CANCELLED.value)


def _approvals(run: str) -> sa.ColumnElement[bool]:
    return sa.and_(t.run_fact.c.run_id == run, t.run_fact.c.kind == Fact.APPROVAL.value)
