"""One run, carried to a database of its own and back: for a driver that lives on another machine.

What only grows (events, pieces of files) is carried on from where it was last, with the rows of the tasks
and experiments that these events are of; the few rows of the run itself (`RunRows`) are carried whole. A run
may be brought back again, and after a kill anywhere: how far it is stands in the same transaction.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import ledger
from trainmaster.db import tables as t
from trainmaster.db.database import Database, transaction
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.leases import LEASE_S, Lease
from trainmaster.db.retry_policy import Try
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.states import State as RunState
from trainmaster.spec.topics import TAKEN_BACK

Row = dict[str, Any]
#: About so much of what has grown is carried at once.
NEWS_BYTES: Final = 4 << 20
_EVENTS: Final = 2000
#: Of a run: what its driver writes. The rest is of the home that it began in.
_OF_DRIVER: Final = (
    "state", "reason", "message", "session_at", "ended_at", "closed_at", "earlier_s", "queued_at",
    "queued_for", "queued_s", "cost_usd", "lease_token", "turn", "kept_by",
)  # fmt: skip
_BYTES: Final = ("sealed", "data")


@dataclass(frozen=True, slots=True)
class RunRows:
    """Rows of a run that change, as JSON can have them.

    Attributes:
        run: its own row.
        experiments, tasks, attempts: theirs; none where news carry them.
        quotes, clusters, measurements: its own, too.
        private: what is sealed of it.
        facts: what was found out of it.
    """

    run: Row
    experiments: list[Row]
    tasks: list[Row]
    attempts: list[Row]
    quotes: list[Row]
    clusters: list[Row]
    measurements: list[Row]
    private: list[Row]
    facts: list[Row]


@dataclass(frozen=True, slots=True)
class RunGrowth:
    """What a run has grown by.

    Attributes:
        events, pieces: rows in their order.
        last_event, last_piece: their ids, or of what was there before.
        experiments, tasks: rows that have changed.
        attempts: all of those tasks.
    """

    events: list[Row]
    pieces: list[Row]
    last_event: int = 0
    last_piece: int = 0
    experiments: list[Row] = field(default_factory=list)
    tasks: list[Row] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing new."""
        return not (self.events or self.pieces or self.tasks)


def rows_of(database: Database, run: str, *, of_tasks: bool = True) -> RunRows:
    """The rows of a run that change.

    Args:
        database: that has it.
        run: its id.
        of_tasks: also those of its experiments, tasks and attempts, of which there may be many.
    """
    of_experiments = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == run)

    def all_of(table: sa.Table, where: sa.ColumnElement[bool], *order: sa.Column[Any]) -> list[Row]:
        return [_plain(row) for row in database.read(sa.select(table).where(where).order_by(*order))]

    def if_asked(table: sa.Table, where: sa.ColumnElement[bool]) -> list[Row]:
        return all_of(table, where, table.c.id) if of_tasks else []

    return RunRows(
        run=_plain(database.run_row(run)),
        experiments=if_asked(t.experiment, t.experiment.c.run_id == run),
        tasks=if_asked(t.task, t.task.c.experiment_id.in_(of_experiments)),
        attempts=if_asked(t.attempt, t.attempt.c.experiment_id.in_(of_experiments)),
        quotes=all_of(t.quote, t.quote.c.run_id == run, t.quote.c.id),
        clusters=all_of(t.cluster, t.cluster.c.run_id == run, t.cluster.c.id),
        measurements=all_of(t.measurement, t.measurement.c.run_id == run, t.measurement.c.id),
        private=all_of(t.run_private, t.run_private.c.run_id == run, t.run_private.c.name),
        facts=all_of(t.run_fact, t.run_fact.c.run_id == run, t.run_fact.c.kind, t.run_fact.c.name),
    )


def news_of(
    database: Database,
    run: str,
    after_event: int,
    after_piece: int,
    progressed: Iterable[tuple[str, int]] = (),
) -> RunGrowth:
    """What a run has grown by since two ids, about `NEWS_BYTES` of it; empty if there is nothing.

    Args:
        database: that of its driver.
        run: its id.
        after_event: id of the last event that is known.
        after_piece: id of the last piece that is known.
        progressed: experiment and number of tasks that have changed without an event.
    """
    events = database.read(
        sa.select(t.event)
        .where(t.event.c.run_id == run, t.event.c.id > after_event)
        .order_by(t.event.c.id)
        .limit(_EVENTS)
    )
    pieces: list[RowMapping] = []
    size, last = 0, after_piece
    while size < NEWS_BYTES:
        some = database.read(
            sa.select(t.run_file)
            .where(t.run_file.c.run_id == run, t.run_file.c.id > last)
            .order_by(t.run_file.c.id)
            .limit(4)
        )
        if not some:
            break
        pieces += some
        size += sum(len(row["data"]) for row in some)
        last = some[-1]["id"]
    named = {(row["experiment"], row["task"]) for row in events if row["experiment"] is not None}
    numbers: dict[str, set[int]] = {}
    for experiment, task in (*named, *progressed):
        if task is not None:
            numbers.setdefault(experiment, set()).add(task)
    found = database.experiment_rows(run) if named or numbers else []
    return RunGrowth(
        [_plain(row) for row in events],
        [_plain(row) for row in pieces],
        events[-1]["id"] if events else after_event,
        last,
        [_plain(row) for row in found if (row["name"], None) in named],
        _of_tasks(database, found, t.task.c.number, numbers),
        _of_tasks(database, found, t.attempt.c.task, numbers),
    )


def _of_tasks(
    database: Database,
    experiments: Sequence[RowMapping],
    task: sa.Column[Any],
    numbers: Mapping[str, set[int]],
) -> list[Row]:
    """Rows of some tasks, in the table of the column that has their number."""
    table, rows = task.table, list[Row]()
    for experiment in experiments:
        chosen = sorted(numbers.get(experiment["name"], ()))
        for first in range(0, len(chosen), _EVENTS):
            some = task.in_(chosen[first : first + _EVENTS])
            query = sa.select(table).where(table.c.experiment_id == experiment["id"], some)
            rows += [_plain(row) for row in database.read(query.order_by(table.c.id))]
    return rows


def newest(database: Database, run: str) -> tuple[int, int]:
    """Ids of the last event and of the last piece of a run."""
    found = []
    for table in (t.event, t.run_file):
        query = sa.select(sa.func.max(table.c.id).label("last")).where(table.c.run_id == run)
        found.append(int(database.read(query)[0]["last"] or 0))
    return found[0], found[1]


@transaction
def settle(
    connection: Connection, rows: RunRows, news: Sequence[RunGrowth], changes: Mapping[str, Any]
) -> None:
    """Write a run into a database of its own; nothing if it is there already.

    Args:
        connection: of its transaction.
        rows: of the run.
        news: all pieces of its files.
        changes: of its own row: what is different there.
    """
    if connection.execute(sa.select(t.run.c.id).where(t.run.c.id == rows.run["id"])).first():
        return
    connection.execute(t.run.insert().values({**_stored(rows.run), **changes}))
    for table, found in (
        (t.experiment, rows.experiments),
        (t.task, rows.tasks),
        (t.attempt, rows.attempts),
        (t.quote, rows.quotes),
        (t.cluster, rows.clusters),
        (t.measurement, rows.measurements),
        (t.run_private, rows.private),
        (t.run_fact, rows.facts),
        *((t.event, each.events) for each in news),
    ):
        if found:
            connection.execute(table.insert(), [_stored(row) for row in found])
    for each in news:
        for row in each.pieces:
            _put_piece(connection, rows.run["id"], _stored(row))


def go_away(database: Database, lease: Lease, away: Mapping[str, Any]) -> None:
    """Give a run to a machine of its own: its lease cannot be taken here until it is back, and ours is lost.

    Raises:
        LeaseLostError: somebody else drives the run; nothing was written.
    """
    text, token, of_run = json.dumps(dict(away)), lease.token + 1, t.run.c.id == lease.run
    held = (of_run, t.run.c.lease_token == lease.token, t.run.c.away.is_(None))
    leave = t.run.update().where(*held).values(away=text, lease_owner=AWAY, lease_token=token)
    left = sa.select(t.run.c.id).where(of_run, t.run.c.away == text, t.run.c.lease_token == token)

    def write(connection: Connection, this: Try) -> None:
        if connection.execute(leave).rowcount == 1:
            return
        if not (this.again and connection.execute(left).first()):
            raise LeaseLostError.of(lease.run)

    database.write(write)


#: The holder of the lease of a run that is away: no process of this machine.
AWAY: Final = "on-cluster"


def bring(
    database: Database,
    run: str,
    before: str,
    away: Mapping[str, Any],
    news: Sequence[RunGrowth],
    rows: RunRows | None,
    *,
    is_alive: bool,
) -> bool:
    """Write what has become of a run that is away.

    Args:
        database: of the home.
        run: its id.
        before: what `run.away` has been when it was read.
        away: what it is to be: how far this brings it.
        news: what it has grown by since then.
        rows: its rows as of now; None if those are not known.
        is_alive: its driver was heard of just now.

    Returns:
        False if somebody else has brought it on meanwhile: nothing was written.
    """
    expires_at = database.clock_s() + (LEASE_S if is_alive else 0.0)

    def write(connection: Connection) -> bool:
        moved = connection.execute(
            t.run.update()
            .where(t.run.c.id == run, t.run.c.away == before)
            .values(away=json.dumps(dict(away)), lease_expires_at=expires_at)
        )
        if moved.rowcount != 1:
            return False
        for each in news:
            _add_news(connection, run, each)
        if rows is not None:
            _replace(connection, run, rows, database.clock_s())
        return True

    return database.write(lambda connection, _: write(connection))


def come_back(database: Database, run: str, before: str, note: str = "") -> bool:
    """Let the home drive a run again that is away.

    Args:
        database: of the home.
        run: its id.
        before: what `run.away` was when it was read.
        note: an event that goes with it; empty for none.

    Returns:
        False if somebody else has done so.
    """
    mine, undriven = t.run.c.id == run, (t.run.c.away.is_(None), t.run.c.lease_owner.is_(None))
    back = t.run.update().where(mine, t.run.c.away == before).values(away=None, lease_owner=None)

    def write(connection: Connection, this: Try) -> bool:
        if connection.execute(back).rowcount == 1:
            if note:
                said = event_row(run, database.clock_s(), "note", message=note, topic=TAKEN_BACK)
                insert_events(connection, [said])
            return True
        return (
            this.again
            and connection.execute(sa.select(t.run.c.id).where(mine, *undriven)).first() is not None
        )

    return database.write(write)


def runs_away(database: Database, home_id: str) -> list[str]:
    """Ids of the runs of a home that machines of their own drive."""
    query = sa.select(t.run.c.id).where(t.run.c.away.is_not(None), t.run.c.home_id == home_id)
    return [row["id"] for row in database.read(query.order_by(t.run.c.created_at))]


# --- rows ----------------------------------------------------------------------------------------------


def _add_news(connection: Connection, run: str, news: RunGrowth) -> None:
    insert_events(connection, [_without_id(row) for row in news.events])  # and to whom they are to be sent
    for row in news.pieces:
        _put_piece(connection, run, _without_id(row))
    _put_tasks(connection, run, news)


def _put_tasks(connection: Connection, run: str, found: RunGrowth | RunRows) -> None:
    """Experiments are there since the run was accepted, with the same ids; tasks come with all attempts."""
    for row in found.experiments:
        values = {name: value for name, value in row.items() if name not in ("id", "run_id", "name")}
        connection.execute(
            t.experiment.update()
            .where(t.experiment.c.run_id == run, t.experiment.c.name == row["name"])
            .values(values)
        )
    keys = [{"b_experiment": row["experiment_id"], "b_task": row["number"]} for row in found.tasks]
    for task, rows in ((t.attempt.c.task, found.attempts), (t.task.c.number, found.tasks)):
        table = task.table
        if keys:
            mine = table.c.experiment_id == sa.bindparam("b_experiment"), task == sa.bindparam("b_task")
            connection.execute(table.delete().where(*mine), keys)
        if rows:
            connection.execute(table.insert(), [_without_id(row) for row in rows])


def _put_piece(connection: Connection, run: str, piece: Row) -> None:
    """What was known of a file from there on holds no more: it has begun again."""
    connection.execute(
        t.run_file.delete().where(
            t.run_file.c.run_id == run,
            t.run_file.c.path == piece["path"],
            t.run_file.c.offset >= piece["offset"],
        )
    )
    connection.execute(t.run_file.insert().values(piece))


def _replace(connection: Connection, run: str, rows: RunRows, now: float) -> None:
    of_run = t.run.c.id == run
    connection.execute(t.run.update().where(of_run).values({name: rows.run[name] for name in _OF_DRIVER}))
    _put_tasks(connection, run, rows)
    for table, found in ((t.quote, rows.quotes), (t.run_private, rows.private)):
        connection.execute(table.delete().where(table.c.run_id == run))
        if found:
            connection.execute(table.insert(), [_without_id(row) for row in found])
    for table, found in ((t.cluster, rows.clusters), (t.measurement, rows.measurements)):
        names = [row["id"] for row in found]
        connection.execute(table.delete().where(table.c.id.in_(names)))
        if found:
            connection.execute(table.insert(), [_stored(row) for row in found])
    known = sa.select(t.run_fact.c.kind, t.run_fact.c.name).where(t.run_fact.c.run_id == run)
    there = {tuple(row) for row in connection.execute(known)}
    if new := [row for row in rows.facts if (row["kind"], row["name"]) not in there]:  # none ever changes
        connection.execute(t.run_fact.insert(), new)
    ledger.charge(connection, run, now)
    if rows.run["state"] == RunState.DONE:
        ledger.release(connection, run, now)


def _plain(row: RowMapping) -> Row:
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes | memoryview) else value
        for name, value in row.items()
    }


def _stored(row: Row) -> Row:
    return {
        name: base64.b64decode(value) if name in _BYTES and _is_packed(row) else value
        for name, value in row.items()
    }


def _is_packed(row: Row) -> bool:
    """Whether its bytes are base64: of files and what is sealed; `data` of others is text."""
    return "sealed" in row or "offset" in row


def _without_id(row: Row) -> Row:
    return {name: value for name, value in _stored(row).items() if name != "id"}
