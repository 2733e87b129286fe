"""The store of the simulation does what the real one does: whole schedules, row by row."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.control.loop.loading import ended_rows, run_state_from_rows
from trainmaster.db import Database, Lease, run_facts, tables
from trainmaster.spec.errors import LeaseLostError, UsageError
from trainmaster.testing.simulated_store import SimulatedStore
from trainmaster.testing.simulation import Simulation


class Twins(SimulatedStore):
    """Everything that is written to the simulated store is written to a real one too."""

    real: Database

    def __init__(self, run, shapes, totals, retries):
        super().__init__(run, shapes, totals, retries)
        self.leases: dict[int, Lease] = {}
        experiments = [(name, totals[name]) for name in shapes]
        self.leases[1] = self.real.create_run(new_run(run, experiments), NOW)

    def acquire(self, owner, now, *, dead):
        lease = super().acquire(owner, now, dead=dead)
        if lease is not None and lease.token > 1:
            self.leases[lease.token] = self.real.acquire(lease.run, now)
            assert self.leases[lease.token].token == lease.token
        return lease

    def release(self, lease, now):
        super().release(lease, now)
        self.real.release(self.leases[lease.token], now)

    def want_stop(self, reason):
        super().want_stop(reason)
        self.real.want_stop(self.run["id"], reason)

    def renew(self, lease, now):
        return self.both("renew", lease, now)

    def commit(self, lease, changes, now):
        self.both("commit", lease, changes, now)
        run = self.run["id"]
        real = run_state_from_rows(
            self.shapes,
            self.real.run_row(run),
            self.real.experiment_rows(run),
            self.real.tallies(run),
            self.real.live_task_rows(run),
            ended_rows(self.real, run, self.shapes),
        )
        for name, said in self.real.approvals(run).items():
            real.experiments[name].approval = said
        assert real == self.run_state()

    def answer(self, experiment, said):
        is_asked = super().answer(experiment, said)
        with nullcontext() if is_asked else pytest.raises(UsageError):
            run_facts.answer(self.real, self.run["id"], experiment, said)
        return is_asked

    def cancel_task(self, name):
        super().cancel_task(name)
        if name in self.cancelled:
            run_facts.cancel_tasks(self.real, self.run["id"], [name], "ada")

    def requeue(self, lease, now):
        result = self.both("requeue", lease, now)
        assert self.real.cancelled_tasks(lease.run) == self.cancelled
        return result

    def both(self, name, lease, *arguments):
        try:
            result = getattr(super(), name)(lease, *arguments)
        except LeaseLostError:
            with pytest.raises(LeaseLostError):
                getattr(self.real, name)(self.leases[lease.token], *arguments)
            raise
        assert getattr(self.real, name)(self.leases[lease.token], *arguments) == result
        return result

    def check(self):
        with self.real.engine.connect() as connection:
            found = {
                name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for name, table in tables.metadata.tables.items()
            }
        names = {row["id"]: row["name"] for row in found["experiment"]}
        for row in found["task"]:
            ours = self.tasks[names[row["experiment_id"]], row["number"]]
            assert {key: row[key] for key in ours} == ours
        assert len(found["task"]) == len(self.tasks)
        for row in found["attempt"]:
            ours = self.attempts[names[row["experiment_id"]], row["task"], row["number"]]
            assert {key: row[key] for key in ours} == ours
            json.loads(row["members"])
        assert len(found["attempt"]) == len(self.attempts)
        columns = ("kind", "before", "after", "experiment", "task")
        assert [[row[c] for c in columns] for row in found["event"]] == [
            [row.get(c) for c in columns] for row in self.events
        ]


@pytest.mark.parametrize("seed", [*range(12), 272])  # 272: a lease is lost
def test_both_stores_hold_the_same(seed, database):
    Twins.real = database
    simulation = Simulation(seed, make_store=Twins)
    simulation.run()
    simulation.database.check()
