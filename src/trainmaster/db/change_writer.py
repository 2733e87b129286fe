"""`ChangeWriter`: writes what a control loop has decided, and its events, within a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.db import endpoint_changes, ledger, outbox, run_rows
from trainmaster.db import tables as t
from trainmaster.db.changes import (
    Change,
    EndpointChange,
    ExperimentChange,
    Note,
    Progress,
    QueueChange,
    ReplicaChange,
    RunChange,
)
from trainmaster.db.events import change_event, insert_events, storable
from trainmaster.db.task_rows import write_tasks
from trainmaster.spec.states import State


class ChangeWriter:
    """Of one database; remembers what of a run never changes."""

    def __init__(self) -> None:
        self._experiment_ids: dict[str, dict[str, int]] = {}
        self._wanted: dict[str, outbox.Wanted] = {}

    def write(self, connection: Connection, run: str, changes: Sequence[Change], now: float) -> None:
        """Write transitions of a run, and the events of those that have one.

        Args:
            connection: of the transaction.
            run: its id.
            changes: in the order in which they were decided.
            now: Unix seconds.
        """
        ids = self._ids(connection, run)
        write_tasks(connection, changes, ids, now)
        events: list[dict[str, Any]] = []
        promoted: list[dict[str, Any]] = []
        for change in changes:
            match change:
                case ExperimentChange():
                    _write_experiment(connection, ids[change.experiment], change)
                    if change.after in (State.STOPPING, State.DONE):
                        endpoint_changes.close(connection, run, change.experiment, now)
                    if change.promotes is not None:
                        from trainmaster.db import registry_rows

                        note = registry_rows.promote(connection, run, change.experiment, change.promotes, now)
                        promoted.append(change_event(run, note, now))
                case RunChange():
                    _write_run(connection, run, change, now)
                case QueueChange():
                    run_rows.write_queue(connection, run, change, now)
                case Note(set_s=set_s) if set_s:
                    run_rows.follow_clock(connection, run, set_s)
                case EndpointChange():
                    endpoint_changes.write_endpoint(connection, run, change)
                case ReplicaChange():
                    endpoint_changes.write_replica(connection, run, change, now)
                case _:
                    pass
            if not isinstance(change, Progress | QueueChange | EndpointChange | ReplicaChange):
                events += [*promoted, change_event(run, change, now)]
                promoted.clear()
        insert_events(connection, events, self._wanted_kinds(connection, run))

    def _ids(self, connection: Connection, run: str) -> Mapping[str, int]:
        """Ids of a run's experiments by name: they never change, so they are asked for once."""
        if run not in self._experiment_ids:
            rows = connection.execute(
                sa.select(t.experiment.c.name, t.experiment.c.id).where(t.experiment.c.run_id == run)
            )
            self._experiment_ids[run] = {row.name: row.id for row in rows}
        return self._experiment_ids[run]

    def _wanted_kinds(self, connection: Connection, run: str) -> outbox.Wanted:
        """What a run's subscribers want: that never changes either."""
        if run not in self._wanted:
            self._wanted[run] = outbox.wanted_kinds(connection, run)
        return self._wanted[run]


def _write_experiment(connection: Connection, experiment_id: int, change: ExperimentChange) -> None:
    connection.execute(
        t.experiment.update()
        .where(t.experiment.c.id == experiment_id)
        .values(
            state=change.after,
            reason=change.reason,
            message=storable(change.message),
            rest_reason=change.rest_reason,
        )
    )


def _write_run(connection: Connection, run: str, change: RunChange, now: float) -> None:
    values: dict[str, Any] = {
        "state": change.after, "reason": change.reason, "message": storable(change.message)
    }  # fmt: skip
    if change.after is State.DONE:
        values |= {"ended_at": now, "stop_wanted": None}
    connection.execute(t.run.update().where(t.run.c.id == run).values(values))
    if change.after is State.DONE:
        ledger.release(connection, run, now)
