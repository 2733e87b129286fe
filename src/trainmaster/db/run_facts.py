"""What was found out of a run while it was driven: the first look decides, for whoever drives it later.

A row is written once and never changed. Only the holder of the run's lease writes one, but for what a person
says of an experiment that waits for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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


def _approvals(run: str) -> sa.ColumnElement[bool]:
    return sa.and_(t.run_fact.c.run_id == run, t.run_fact.c.kind == Fact.APPROVAL.value)
