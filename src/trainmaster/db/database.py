"""`Database`: what a control loop reads when it starts, and the transactions it writes.

It knows tables, leases and events, no business rules. Every write of a driver names its lease;
a stale one changes nothing. A transition and its event are in the same transaction. While the
database is away each transaction is tried again; none is ever written twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, RowMapping

from trainmaster.db import (
    admissions,
    cluster_rows,
    ledger,
    outbox,
    quote_rows,
    run_rows,
)
from trainmaster.db import tables as t
from trainmaster.db.change_writer import ChangeWriter
from trainmaster.db.changes import Change
from trainmaster.db.cluster_rows import ClusterRow
from trainmaster.db.engine import open_database
from trainmaster.db.events import event_row
from trainmaster.db.leases import LEASE_S, Lease, this_process
from trainmaster.db.quote_rows import NewMeasurement, NewQuoteRow
from trainmaster.db.retry_policy import RetryPolicy, Try
from trainmaster.db.run_rows import AcceptedRun
from trainmaster.db.task_rows import tasks_of
from trainmaster.db.transactions import Transactions
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.facts import Approval, Fact
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.spec.gate import Gate, GateResult

T = TypeVar("T")
P = ParamSpec("P")
#: Says within a transaction whether what it has written may be.
Admit = Callable[[Connection], None]

#: How often a server is asked for its time; between that, our boot-time clock carries it on.
_SERVER_TIME_EVERY_S = 60.0
#: Its answer takes no longer on its way, both ways together.
_ROUND_TRIP_S = 1.0
_SERVER_TIME: sa.Select[Any] = sa.select(sa.extract("epoch", sa.func.clock_timestamp()).label("now"))


def transaction(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[Database, P], T]:
    """A function of a database, or a method of it, that does ``work`` in a transaction of its own."""

    @wraps(work)
    def method(self: Database, /, *args: P.args, **named: P.kwargs) -> T:
        return self.write(lambda connection, _: work(connection, *args, **named))

    return method


def _reading(query: Callable[P, sa.Select[Any]]) -> Callable[Concatenate[Database, P], Sequence[RowMapping]]:
    """A method that returns all rows of a query."""

    @wraps(query)
    def method(self: Database, /, *args: P.args, **named: P.kwargs) -> Sequence[RowMapping]:
        return self.read(query(*args, **named))

    return method


class Database:
    """One database. Safe to use from several threads; each call is one transaction.

    Args:
        url: ``sqlite:///FILE`` or ``postgresql://...``.
        retry_policy: how long each transaction is tried while the database is away; once by default.
        shares: an open one, whose connections are used instead of new ones.

    Raises:
        StoreError: (every method) the database cannot be used.
    """

    def __init__(
        self, url: str, retry_policy: RetryPolicy | None = None, *, shares: Database | None = None
    ) -> None:
        self.retry_policy = retry_policy or RetryPolicy()
        self._transactions: Transactions = (
            Transactions(open_database(url), self.retry_policy)
            if shares is None
            else shares._transactions.sharing(self.retry_policy)
        )
        self._changes = ChangeWriter()
        #: Another object as soon as this process has changed what tokens, sessions or accounts allow.
        self.rights = object()
        # Machines that share a server have one clock for leases, however their own are set.
        self._has_clock = self.engine.dialect.name != "sqlite"
        self._server_time = (0.0, 0.0)  # the server's, and by our boot-time clock when that was

    @property
    def engine(self) -> Engine:
        """The connections."""
        return self._transactions.engine

    def check_schema(self) -> None:
        """Refuse to go on with tables that a newer Trainmaster has changed; each write does so, too."""
        self._transactions.check_schema()

    @property
    def is_shared(self) -> bool:
        """Whether it is a server, which other machines may use, too."""
        return self._has_clock

    def close(self) -> None:
        """Give back the connections."""
        self.engine.dispose()

    def clock_s(self, most_age_s: float = _SERVER_TIME_EVERY_S) -> float:
        """Unix seconds by the clock that leases are judged by: the server's; with SQLite this machine's.

        Never a caller's own: what one process writes of its lease, others read.

        Args:
            most_age_s: a server that was asked longer ago is asked again.
        """
        if not self._has_clock:
            return time.time()
        server_s, asked_at = self._server_time
        if not server_s or boot_s() - asked_at > most_age_s:
            begun = boot_s()
            server_s = float(self.read(_SERVER_TIME)[0]["now"])
            # Somewhere in between; of one that was away meanwhile, at the end.
            asked_at = max((begun + boot_s()) / 2, boot_s() - _ROUND_TRIP_S)
            self._server_time = (server_s, asked_at)
        return server_s + boot_s() - asked_at

    # --- runs and leases -------------------------------------------------------------------

    def create_run(
        self, new: AcceptedRun, now: float, admit: Admit | None = None, *, waits: bool = False
    ) -> Lease:
        """Write a new run with its experiments; this process drives it.

        Args:
            new: the run.
            now: Unix seconds.
            admit: called in the transaction, after the run was written; what it raises undoes that.
            waits: it is not driven yet: what is returned holds nothing.
        """
        process = this_process()
        owner = None if waits else process
        expires_at = self.clock_s() + LEASE_S

        def insert(connection: Connection, this: Try) -> None:
            if not (this.again and run_rows.was_inserted(connection, new, owner, now)):
                run_rows.insert_run(connection, new, owner, now, expires_at)
                if admit is not None:
                    admit(connection)

        self._transactions.write(insert)
        return Lease(new.id, 1, process)

    def has_run(self, run: str) -> bool:
        """True if there is a run with this id, or was one that was removed: no name is given twice."""
        return bool(self.read(sa.select(t.run.c.id).where(t.run.c.id == run)))

    def acquire(self, run: str, now: float | None = None, worked_until: float | None = None) -> Lease | None:
        """Take the lease of a run; None if a living process holds it.

        Args:
            run: its id.
            now: Unix seconds; those of `clock_s` by default.
            worked_until: Unix seconds; its tasks are known to have worked so long, if not driven.

        Raises:
            NotFoundError: there is no such run.
        """
        owner = this_process()
        lease_now = self.clock_s()
        begins = lease_now if now is None else now
        return self._transactions.write(
            lambda connection, this: run_rows.take_lease(
                connection, run, owner, begins + this.waited_s, lease_now + this.waited_s, worked_until
            )
        )

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """Extend a lease; also tells whether somebody wants the run to stop.

        Raises:
            LeaseLostError: it is not ours any more.
        """
        expires_at = self.clock_s() + LEASE_S
        self._transactions.write(
            lambda connection, this: run_rows.renew_lease(connection, lease, expires_at + this.waited_s)
        )
        return self.stop_wanted(lease.run)

    def release(self, lease: Lease, now: float | None = None, *, patient: bool = False) -> None:
        """Give a lease up (no effect if it is lost or given up already).

        Of a run that has ended meanwhile this is when everything was given back.

        Args:
            lease: ours.
            now: Unix seconds; those of `clock_s` by default.
            patient: of a process that lives on, whose leases do not end with it; else tried only once.
        """
        # What could write the lease knows the server's time: one that is away is not waited for.
        lease_now = self.clock_s(math.inf)
        ended = lease_now if now is None else now
        ended_now = (t.run.c.state == State.DONE) & (t.run.c.ended_at >= t.run.c.session_at)
        give_up = (
            t.run.update()
            .where(
                t.run.c.id == lease.run,
                t.run.c.lease_token == lease.token,
                t.run.c.lease_owner == lease.owner,
            )
            .values(
                lease_owner=None,
                lease_expires_at=lease_now,
                closed_at=sa.case((ended_now, ended), else_=t.run.c.closed_at),
            )
        )

        def write(connection: Connection, _: Try) -> None:
            if connection.execute(give_up).rowcount:
                ledger.release(connection, lease.run, ended)

        self._transactions.write(write, patient=patient)

    def want_stop(self, run: str, reason: EndReason | None) -> None:
        """Ask the driver of a run to end it (None takes the wish back).

        One that waits for its turn waits no longer, so that a driver takes it and ends it.

        Raises:
            NotFoundError: there is no such run.
        """
        now = self.clock_s(math.inf)

        def wish(connection: Connection, _: Try) -> None:
            run_rows.run_row(connection, run)
            if reason is not None and connection.execute(admissions.waiting_query(run)).first():
                ledger.lock_admission(connection)  # what decides sees that it is no longer to be decided
                admissions.admit(connection, run, now)  # and nothing is set aside for it
            connection.execute(t.run.update().where(t.run.c.id == run).values(stop_wanted=reason))

        self._transactions.write(wish)

    def stop_wanted(self, run: str) -> EndReason | None:
        """The wish of `want_stop`, if any."""
        rows = self.read(run_rows.STOP_WANTED, {"run": run})
        wanted = rows[0]["stop_wanted"] if rows else None
        return EndReason(wanted) if wanted else None

    def approvals(self, run: str) -> dict[str, Approval]:
        """What people have said of a run's experiments; see `run_facts.answer`."""
        rows = self.read(t.run_fact.select().filter_by(run_id=run, kind=Fact.APPROVAL.value))
        return {row["name"]: Approval.from_json(row["value"]) for row in rows}

    def cancelled_tasks(self, run: str) -> Mapping[str, str]:
        """Who wants which tasks of a run ended; see `run_facts.cancel_tasks`."""
        rows = self.read(t.run_fact.select().filter_by(run_id=run, kind=Fact.CANCELLED.value))
        return {row["name"]: row["value"] for row in rows}

    # --- transitions -----------------------------------------------------------------------

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """Write many transitions and their events in one transaction, and renew the lease.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """
        self._advance(lease, lambda connection: self._changes.write(connection, lease.run, changes, now))

    def verdict(self, run: str, experiment: str, gate: Gate) -> GateResult:
        """What a gate says of an experiment, by what is recorded now; see `best_models.verdict`."""
        from trainmaster.db import best_models

        return self._transactions.write(
            lambda connection, _: best_models.verdict(connection, run, experiment, gate)
        )

    def requeue(self, lease: Lease, now: float, admit: Admit | None = None) -> None:
        """Make everything WAITING again that ended without success.

        Args:
            lease: of the run.
            now: Unix seconds.
            admit: called in the transaction, after that; what it raises undoes it.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """
        from trainmaster.db.requeue import requeue_rows

        def write(connection: Connection) -> None:
            requeue_rows(connection, lease.run, now)
            if admit is not None:
                admit(connection)

        self._advance(lease, write)

    def move_run(
        self,
        lease: Lease,
        provider: str,
        recipe: str,
        clusters: Sequence[ClusterRow],
        now: float,
        message: str,
        admit: Admit,
    ) -> None:
        """Have a run, none of whose machines is there, go on at another provider.

        Args:
            lease: of the run.
            provider: its name.
            recipe: as JSON, with that.
            clusters: what is to be had there.
            now: Unix seconds.
            message: of the event.
            admit: called in the transaction, after that; what it raises undoes it.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """

        def write(connection: Connection) -> None:
            run_rows.move_run(connection, lease.run, provider, recipe, now, message)
            for row in clusters:
                cluster_rows.put_cluster(connection, lease, row, now)
            admit(connection)

        self._advance(lease, write)

    def record_saved(
        self, lease: Lease, experiment: str, task: int, uri: str | None, now: float, *, gated: bool = False
    ) -> None:
        """A model that was kept in the home is published now; see `requeue.record_saved`.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """
        from trainmaster.db.requeue import record_saved

        self._advance(
            lease,
            lambda connection: record_saved(connection, lease.run, experiment, task, uri, now, gated=gated),
        )

    # --- who is to be told ------------------------------------------------------------------------

    messages = _reading(outbox.messages_query)

    def claim_message(self, lease: Lease, message: int, tries: int) -> bool:
        """Whether a message that was tried so often is ours to try once more; see `outbox.claim`."""
        return self._transactions.write(
            lambda connection, _: outbox.claim(connection, lease, message, tries), patient=False
        )

    def end_message(self, lease: Lease, message: int, now: float, why: str = "") -> None:
        """A message was taken, or is given up and ``why``; with a stale lease nothing is written."""
        note = event_row(lease.run, now, "note", message=why) if why else None
        self._transactions.write(lambda connection, _: outbox.end(connection, lease, message, note))

    # --- measurements and quotes ---------------------------------------------------------------

    def add_measurement(self, *found: NewMeasurement, patient: bool = True) -> None:
        """Keep measurements, in one transaction; one with a known id replaces the earlier one.

        Args:
            *found: what was measured.
            patient: False to try only once: a run does not wait for its measurements to be kept.
        """
        self._transactions.write(
            lambda connection, _: quote_rows.put_measurements(connection, found), patient=patient
        )

    def measurements(self, fingerprint: str, team: str | None = None) -> Sequence[RowMapping]:
        """What a team, or the owner, has measured of the very same thing, newest first."""
        return self.read(quote_rows.measurements_query(team, t.measurement.c.fingerprint == fingerprint))

    def similar_measurements(
        self, similar: str, fingerprint: str, team: str | None = None
    ) -> Sequence[RowMapping]:
        """What it has measured of similar things that have another fingerprint, newest first."""
        column = t.measurement.c
        return self.read(
            quote_rows.measurements_query(team, column.similar == similar, column.fingerprint != fingerprint)
        )

    def other_measurements(self, *not_fingerprints: str, team: str | None = None) -> Sequence[RowMapping]:
        """What it has measured of other things than these, newest first."""
        others = t.measurement.c.fingerprint.not_in(not_fingerprints)
        return self.read(quote_rows.measurements_query(team, others, quote_rows.is_of_job()))

    phases = _reading(quote_rows.phases_query)

    def add_quote(self, new: NewQuoteRow, most_usd: float | None = None) -> int:
        """Keep a quote; its id. The same run, experiment, kind and time is the same quote.

        Args:
            new: the quote.
            most_usd: what the run may cost by it; is set aside from now on, as far as there is so much.
        """

        def write(connection: Connection, _: Try) -> int:
            if most_usd is not None:
                most = ledger.micro(most_usd)
                ledger.reserve_up_to(connection, new.run_id, most, new.made_at, gives_back=True)
            return quote_rows.put_quote(connection, new)

        return self._transactions.write(write)

    quotes_of = _reading(quote_rows.quotes_query)
    put_forecast = transaction(quote_rows.put_forecast)

    def forecast_of(self, run: str) -> str | None:
        """How far a run is, as JSON; None if that was never kept."""
        rows = self.read(quote_rows.forecast_query(run))
        return rows[0]["data"] if rows else None

    def forecasts(self, runs: Sequence[str]) -> dict[str, str]:
        """The same of several runs."""
        rows = self.read(quote_rows.forecasts_query(runs)) if runs else ()
        return {row["run_id"]: row["data"] for row in rows}

    judged_quotes = _reading(quote_rows.judged_query)

    def was_cancelled(self, run: str) -> bool:
        """True if a person ever ended it (cancel, Ctrl-C, a no to it), also if it was resumed then."""
        return bool(self.read(quote_rows.cancelled_query(run).limit(1)))

    def failed_attempts(self, run: str) -> dict[str, int]:
        """How many of its attempts ended in each way that is no success, most of them first."""
        rows = self.read(quote_rows.failed_attempts_query(run))
        return {row["reason"]: row["attempts"] for row in rows}

    measured_in = _reading(quote_rows.measured_in_query)
    record_outcome = transaction(quote_rows.put_outcome)

    # --- clusters -----------------------------------------------------------------------------

    put_cluster = transaction(cluster_rows.put_cluster)
    take_kept_cluster = transaction(cluster_rows.take_kept)
    end_unused_cluster = transaction(cluster_rows.end_unused)
    end_damaged_cluster = transaction(cluster_rows.end_damaged)
    put_cost = transaction(cluster_rows.put_cost)
    clusters_of = _reading(cluster_rows.of_run)
    living_clusters = _reading(cluster_rows.not_ended)
    cluster_waits = _reading(cluster_rows.waits)

    def gave_back_s(self, provider: str) -> list[float]:
        """Seconds from the end of a run's work until its machines there were given back, the newest first."""
        return [row["gone_at"] - row["ended_at"] for row in self.read(cluster_rows.given_back(provider))]

    # --- reading, and writes of other modules ---------------------------------------------------

    def write(self, work: Callable[[Connection, Try], T], *, patient: bool = True) -> T:
        """One transaction; see `Transactions.write` and `trainmaster.db.access`."""
        return self._transactions.write(work, patient=patient)

    def execute(self, statement: sa.Executable, *, patient: bool = True) -> int:
        """One statement, safe to repeat, in a transaction of its own; how many rows it has changed."""
        return self.write(lambda connection, _: connection.execute(statement).rowcount, patient=patient)

    def remove(self, rows: sa.Delete) -> bool:
        """Delete rows, in a transaction of its own; False if there were none."""
        return self.write(lambda connection, this: bool(connection.execute(rows).rowcount) or this.again)

    def change_rights(self, work: Callable[[Connection, Try], T]) -> T:
        """`write` of what tokens, sessions and accounts allow."""
        try:
            return self.write(work)
        finally:
            self.rights = object()

    def add_lasting(
        self, table: sa.Table, row: Mapping[str, object], over: sa.ColumnElement[bool] | None = None
    ) -> None:
        """Keep a row that counts for a while, and forget those of its table that are over."""
        key = [each.name for each in table.primary_key if each.name in row] or row
        mine = sa.select(table).where(*(table.c[name] == row[name] for name in key))

        def write(connection: Connection, this: Try) -> None:
            if over is not None:
                connection.execute(table.delete().where(over))
            if not (this.again and connection.execute(mine).first()):
                connection.execute(table.insert().values(**row))

        self.write(write)

    def read(
        self, query: sa.Select[Any], parameters: Mapping[str, object] | None = None
    ) -> Sequence[RowMapping]:
        """All rows of a query; see `trainmaster.db.queries`."""
        return self._transactions.read(query, parameters)

    def first(self, query: sa.Select[Any]) -> RowMapping | None:
        """The first row of a query; None without any."""
        rows = self.read(query)
        return rows[0] if rows else None

    def run_row(self, run: str) -> RowMapping:
        """The row of a run.

        Raises:
            NotFoundError: there is no such run.
        """
        rows = self.read(run_rows.RUN_ROW, {"run": run})
        return run_rows.existing(rows[0] if rows else None, run)

    def experiment_rows(self, run: str) -> Sequence[RowMapping]:
        """The experiments of a run in the recipe's order."""
        return self.read(
            sa.select(t.experiment).where(t.experiment.c.run_id == run).order_by(t.experiment.c.ordinal)
        )

    def live_task_rows(self, run: str) -> Sequence[RowMapping]:
        """The tasks of a run that are not DONE, with their experiment's name as ``experiment``."""
        return self.read(tasks_of(run).where(t.task.c.state != State.DONE))

    def tallies(self, run: str) -> Sequence[RowMapping]:
        """Per experiment, state and reason: ``tasks`` (how many rows) and ``first`` (lowest number)."""
        return self.read(
            sa.select(
                t.experiment.c.name.label("experiment"),
                t.task.c.state,
                t.task.c.reason,
                sa.func.count().label("tasks"),
                sa.func.min(t.task.c.number).label("first"),
            )
            .join(t.experiment)
            .where(t.experiment.c.run_id == run)
            .group_by(t.experiment.c.name, t.task.c.state, t.task.c.reason)
        )

    # --- private ----------------------------------------------------------------------------

    def _advance(self, lease: Lease, work: Callable[[Connection], None]) -> None:
        """The next turn of a run, with what belongs to it, unless it was committed without an answer."""
        expires_at = self.clock_s() + LEASE_S

        def write(connection: Connection, this: Try) -> None:
            if run_rows.advance(connection, lease, expires_at + this.waited_s, again=this.again):
                work(connection)

        self._transactions.write(write)
        lease.turn += 1
