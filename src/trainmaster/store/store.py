"""The store: what a control loop reads when it starts, and the transactions it writes.

It knows tables, leases and events, no business rules. Every write of a driver names its lease;
a stale one changes nothing. A transition and its event are in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, RowMapping

from trainmaster.spec.errors import LeaseLostError, NotFoundError, StoreError
from trainmaster.spec.states import EndReason, State
from trainmaster.store import tables as t
from trainmaster.store.changes import Change, ExperimentChange, Note, Progress, RunChange, TaskChange
from trainmaster.store.database import open_database, reading
from trainmaster.store.leases import LEASE_S, Lease, is_alive, this_process


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known of a run when it is accepted.

    Attributes:
        id: such as ``digits-7f3a``.
        name: of the recipe.
        recipe: the recipe model as JSON.
        recipe_path: where it was read.
        provider: name.
        code_path: the snapshot its members work on.
        store_url: where its models and checkpoints go.
        experiments: name and number of tasks, in the recipe's order.
    """

    id: str
    name: str
    recipe: str
    recipe_path: str
    provider: str
    code_path: str
    store_url: str
    experiments: Sequence[tuple[str, int]]


class Store:
    """One database. Safe to use from several threads; each call is one transaction.

    Args:
        url: SQLAlchemy URL.

    Raises:
        StoreError: (every method) the database cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.engine: Engine = open_database(url)
        self._experiment_ids: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Give back the connections."""
        self.engine.dispose()

    # --- runs and leases -------------------------------------------------------------------

    def create_run(self, new: NewRun, now: float) -> Lease:
        """Write a new run with its experiments; this process drives it."""
        lease = Lease(new.id, 1, this_process())
        with self._writing() as connection:
            connection.execute(
                t.run.insert().values(
                    id=new.id,
                    name=new.name,
                    recipe=new.recipe,
                    recipe_path=new.recipe_path,
                    provider=new.provider,
                    code_path=new.code_path,
                    store_url=new.store_url,
                    state=State.WAITING,
                    created_at=now,
                    session_at=now,
                    lease_owner=lease.owner,
                    lease_token=lease.token,
                    lease_expires_at=now + LEASE_S,
                )
            )
            connection.execute(
                t.experiment.insert(),
                [
                    {
                        "run_id": new.id,
                        "ordinal": ordinal,
                        "name": name,
                        "state": State.WAITING,
                        "tasks_total": total,
                    }
                    for ordinal, (name, total) in enumerate(new.experiments)
                ],
            )
            _insert_events(connection, [_event(new.id, now, "run", after=State.WAITING)])
        return lease

    def acquire(self, run: str, now: float) -> Lease | None:
        """Take the lease of a run; None if a living process holds it.

        Raises:
            NotFoundError: there is no such run.
        """
        owner = this_process()
        with self._writing() as connection:
            row = self._run_row(connection, run)
            if row["lease_owner"] != owner and is_alive(row["lease_owner"], row["lease_expires_at"], now):
                return None
            token = int(row["lease_token"]) + 1
            seen_at = row["lease_expires_at"] or now
            if row["lease_owner"] is not None:  # not given up in order: its last sign of life was earlier
                seen_at -= LEASE_S
            driven_s = (row["ended_at"] or seen_at) - (row["session_at"] or now)
            connection.execute(
                t.run.update()
                .where(t.run.c.id == run)
                .values(
                    lease_owner=owner,
                    lease_token=token,
                    lease_expires_at=now + LEASE_S,
                    earlier_s=row["earlier_s"] + max(0.0, min(driven_s, now - (row["session_at"] or now))),
                    session_at=now,
                    ended_at=None,
                )
            )
        return Lease(run, token, owner)

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """Extend a lease; also tells whether somebody wants the run to stop.

        Raises:
            LeaseLostError: it is not ours any more.
        """
        with self._writing() as connection:
            self._check_lease(connection, lease, now)
        return self.stop_wanted(lease.run)

    def release(self, lease: Lease, now: float) -> None:
        """Give a lease up (no effect if it is lost already)."""
        with self._writing() as connection:
            connection.execute(
                t.run.update()
                .where(t.run.c.id == lease.run, t.run.c.lease_token == lease.token)
                .values(lease_owner=None, lease_expires_at=now)
            )

    def want_stop(self, run: str, reason: EndReason | None) -> None:
        """Ask whoever drives a run to end it (None takes the wish back).

        Raises:
            NotFoundError: there is no such run.
        """
        with self._writing() as connection:
            self._run_row(connection, run)
            connection.execute(t.run.update().where(t.run.c.id == run).values(stop_wanted=reason))

    def stop_wanted(self, run: str) -> EndReason | None:
        """The wish of `want_stop`, if any."""
        with reading(self.engine) as connection:
            wanted = connection.execute(_STOP_WANTED, {"run": run}).scalar()
        return EndReason(wanted) if wanted else None

    # --- transitions -----------------------------------------------------------------------

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """Write many transitions and their events in one transaction, and renew the lease.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """
        with self._writing() as connection:
            self._check_lease(connection, lease, now)
            self._write_tasks(connection, lease.run, changes, now)
            events = []
            for change in changes:
                match change:
                    case ExperimentChange():
                        self._write_experiment(connection, lease.run, change)
                    case RunChange():
                        _write_run(connection, lease.run, change, now)
                    case _:
                        pass
                if not isinstance(change, Progress):
                    events.append(change_event(lease.run, change, now))
            _insert_events(connection, events)

    def requeue(self, lease: Lease, now: float) -> int:
        """Make everything WAITING again that ended neither SUCCEEDED nor PRUNED; how many tasks.

        Raises:
            LeaseLostError: the lease is stale; nothing was written.
        """
        finished = (EndReason.SUCCEEDED, EndReason.PRUNED)
        with self._writing() as connection:
            self._check_lease(connection, lease, now)
            ids = sa.select(t.experiment.c.id).where(t.experiment.c.run_id == lease.run)
            again = connection.execute(
                sa.select(t.task.c.number, t.task.c.reason, t.task.c.attempt, t.experiment.c.name)
                .join(t.experiment)
                .where(
                    t.experiment.c.run_id == lease.run,
                    t.task.c.state == State.DONE,
                    t.task.c.reason.not_in(finished),
                )
                .order_by(t.experiment.c.ordinal, t.task.c.number)
            ).all()
            connection.execute(
                t.task.update()
                .where(
                    t.task.c.experiment_id.in_(ids),
                    t.task.c.state == State.DONE,
                    t.task.c.reason.not_in(finished),
                )
                .values(
                    state=State.WAITING,
                    reason=None,
                    message="",
                    retries_used=0,
                    free_restarts=0,
                    not_before=0,
                    end_reason=None,
                    ended_at=None,
                )
            )
            unfinished = (
                t.experiment.c.run_id == lease.run,
                t.experiment.c.reason.is_distinct_from(EndReason.SUCCEEDED),
            )
            reset = connection.execute(
                sa.select(t.experiment.c.name, t.experiment.c.state, t.experiment.c.reason)
                .where(*unfinished, t.experiment.c.state != State.WAITING)
                .order_by(t.experiment.c.ordinal)
            ).all()
            before = self._run_row(connection, lease.run)["state"]
            connection.execute(
                t.experiment.update()
                .where(*unfinished)
                .values(state=State.WAITING, reason=None, message="", rest_reason=None)
            )
            connection.execute(
                t.run.update()
                .where(t.run.c.id == lease.run)
                .values(state=State.WAITING, reason=None, message="", ended_at=None, stop_wanted=None)
            )
            events = [_event(lease.run, now, "run", before, State.WAITING, message="resumed")]
            events += [
                _event(lease.run, now, "experiment", state, State.WAITING, reason, "", name)
                for name, state, reason in reset
            ]
            events += [
                _event(lease.run, now, "task", State.DONE, State.WAITING, reason, "", name, number, attempt)
                for number, reason, attempt, name in again
            ]
            _insert_events(connection, events)
        return len(again)

    # --- what a control loop reads when it starts --------------------------------------------

    def run_row(self, run: str) -> RowMapping:
        """The row of a run.

        Raises:
            NotFoundError: there is no such run.
        """
        with reading(self.engine) as connection:
            return self._run_row(connection, run)

    def experiment_rows(self, run: str) -> Sequence[RowMapping]:
        """The experiments of a run in the recipe's order."""
        query = sa.select(t.experiment).where(t.experiment.c.run_id == run).order_by(t.experiment.c.ordinal)
        with reading(self.engine) as connection:
            return connection.execute(query).mappings().all()

    def live_task_rows(self, run: str) -> Sequence[RowMapping]:
        """The tasks of a run that are not DONE, with their experiment's name as ``experiment``."""
        query = (
            sa.select(t.task, t.experiment.c.name.label("experiment"))
            .join(t.experiment)
            .where(t.experiment.c.run_id == run, t.task.c.state != State.DONE)
            .order_by(t.experiment.c.ordinal, t.task.c.number)
        )
        with reading(self.engine) as connection:
            return connection.execute(query).mappings().all()

    def tallies(self, run: str) -> Sequence[RowMapping]:
        """Per experiment, state and reason: ``tasks`` (how many rows) and ``first`` (lowest number)."""
        query = (
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
        with reading(self.engine) as connection:
            return connection.execute(query).mappings().all()

    # --- private ----------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            with self.engine.begin() as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise StoreError(
                f"the database refused a write: {str(error.orig).strip()}",
                "Nothing of this step was recorded. Is its disk full? Then `trainmaster resume RUN`.",
            ) from error

    def _run_row(self, connection: Connection, run: str) -> RowMapping:
        row = connection.execute(sa.select(t.run).where(t.run.c.id == run)).mappings().first()
        if row is None:
            raise NotFoundError(f"there is no run {run!r}", "`trainmaster status` lists the runs.")
        return row

    def _check_lease(self, connection: Connection, lease: Lease, now: float) -> None:
        parameters = {"run": lease.run, "token": lease.token, "expires": now + LEASE_S}
        if connection.execute(_RENEW, parameters).rowcount != 1:
            raise LeaseLostError(
                f"another process drives {lease.run} now; this one changes nothing any more",
                f"Watch it with `trainmaster status {lease.run}` or `trainmaster logs -f {lease.run}`.",
            )

    def _experiment_id(self, connection: Connection, run: str, name: str) -> int:
        key = (run, name)
        if key not in self._experiment_ids:
            rows = connection.execute(
                sa.select(t.experiment.c.name, t.experiment.c.id).where(t.experiment.c.run_id == run)
            )
            self._experiment_ids.update({(run, row.name): row.id for row in rows})
        return self._experiment_ids[key]

    def _write_tasks(self, connection: Connection, run: str, changes: Sequence[Change], now: float) -> None:
        rows: dict[tuple[int, int], dict[str, Any]] = {}
        new: set[tuple[int, int]] = set()
        opened: list[dict[str, Any]] = []
        closed: list[dict[str, Any]] = []
        for change in changes:
            if not isinstance(change, TaskChange | Progress):
                continue
            experiment = self._experiment_id(connection, run, change.experiment)
            key = (experiment, change.task)
            row = rows.setdefault(key, {})
            row.update((name, _encoded(name, value)) for name, value in change.fields.items())
            if isinstance(change, Progress):
                continue
            row["state"] = change.after
            row["reason"] = change.reason if change.after is State.DONE else None
            if change.message or change.after is State.DONE:
                row["message"] = change.message
            if change.creates:
                new.add(key)
            if change.opens:
                row["attempt"] = change.attempt
                opened.append(
                    {
                        "experiment_id": experiment,
                        "task": change.task,
                        "number": change.attempt,
                        "opened_at": now,
                    }
                )
            if change.closes:
                closed.append(
                    {
                        "b_experiment": experiment,
                        "b_task": change.task,
                        "b_number": change.closes.number,
                        "reason": change.closes.reason,
                        "message": change.closes.message,
                        "started_at": change.closes.started_at,
                        "ended_at": change.closes.ended_at,
                        "restored": change.closes.restored,
                        "members": change.closes.members,
                    }
                )
        # Rows are grouped by their columns so that each group is one statement for the driver.
        inserts: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        updates: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for (experiment, number), row in rows.items():
            if (experiment, number) in new:
                full = {"experiment_id": experiment, "number": number, **row}
                inserts.setdefault(tuple(sorted(full)), []).append(full)
            elif row:
                updates.setdefault(tuple(sorted(row)), []).append(
                    {"b_experiment": experiment, "b_number": number, **row}
                )
        for group in inserts.values():
            connection.execute(t.task.insert(), group)
        for columns, group in updates.items():
            connection.execute(_update_task(columns), group)
        if opened:
            connection.execute(t.attempt.insert(), opened)
        if closed:
            connection.execute(_CLOSE_ATTEMPT, closed)

    def _write_experiment(self, connection: Connection, run: str, change: ExperimentChange) -> None:
        connection.execute(
            t.experiment.update()
            .where(t.experiment.c.id == self._experiment_id(connection, run, change.experiment))
            .values(
                state=change.after,
                reason=change.reason,
                message=change.message,
                rest_reason=change.rest_reason,
            )
        )


#: Columns of a task that hold JSON text.
JSON_COLUMNS = frozenset({"parameters", "metrics", "bad_checkpoints"})

_STOP_WANTED = sa.select(t.run.c.stop_wanted).where(t.run.c.id == sa.bindparam("run"))
_RENEW = (
    t.run.update()
    .where(t.run.c.id == sa.bindparam("run"), t.run.c.lease_token == sa.bindparam("token"))
    .where(t.run.c.lease_owner.is_not(None))
    .values(lease_expires_at=sa.bindparam("expires"))
)
_CLOSE_ATTEMPT = (
    t.attempt.update()
    .where(
        t.attempt.c.experiment_id == sa.bindparam("b_experiment"),
        t.attempt.c.task == sa.bindparam("b_task"),
        t.attempt.c.number == sa.bindparam("b_number"),
    )
    .values(
        {
            name: sa.bindparam(name)
            for name in ("reason", "message", "started_at", "ended_at", "restored", "members")
        }
    )
)
_update_statements: dict[tuple[str, ...], sa.Update] = {}


def _update_task(columns: tuple[str, ...]) -> sa.Update:
    if columns not in _update_statements:
        _update_statements[columns] = (
            t.task.update()
            .where(
                t.task.c.experiment_id == sa.bindparam("b_experiment"),
                t.task.c.number == sa.bindparam("b_number"),
            )
            .values({name: sa.bindparam(name) for name in columns})
        )
    return _update_statements[columns]


def _write_run(connection: Connection, run: str, change: RunChange, now: float) -> None:
    values: dict[str, Any] = {"state": change.after, "reason": change.reason, "message": change.message}
    if change.after is State.DONE:
        values |= {"ended_at": now, "stop_wanted": None}
    connection.execute(t.run.update().where(t.run.c.id == run).values(values))


def change_event(run: str, change: Change, now: float) -> dict[str, Any]:
    """The event that goes with a change, as a row."""
    match change:
        case TaskChange():
            return _event(
                run, now, "task", change.before, change.after, change.reason, change.message,
                change.experiment, change.task, change.attempt,
            )  # fmt: skip
        case ExperimentChange():
            return _event(
                run,
                now,
                "experiment",
                change.before,
                change.after,
                change.reason,
                change.message,
                change.experiment,
            )
        case RunChange():
            return _event(run, now, "run", change.before, change.after, change.reason, change.message)
        case Note():
            return _event(
                run, now, "note", message=change.message, experiment=change.experiment,
                task=change.task, attempt=change.attempt,
            )  # fmt: skip
        case Progress():
            raise AssertionError("progress is no event")


def _event(
    run: str,
    at: float,
    kind: str,
    before: State | None = None,
    after: State | None = None,
    reason: EndReason | None = None,
    message: str = "",
    experiment: str | None = None,
    task: int | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    return {
        "run_id": run, "at": at, "kind": kind, "before": before, "after": after, "reason": reason,
        "message": message, "experiment": experiment, "task": task, "attempt": attempt,
    }  # fmt: skip


def _insert_events(connection: Connection, events: list[dict[str, Any]]) -> None:
    if events:
        connection.execute(t.event.insert(), events)


def _encoded(name: str, value: object) -> object:
    return json_column(value) if name in JSON_COLUMNS else value


def json_column(value: object) -> str:
    """How JSON is written into a text column: compact, never NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
