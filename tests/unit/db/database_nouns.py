"""What tests of the store begin with, and what they write."""

from __future__ import annotations

import sqlalchemy as sa

from trainmaster.db import AcceptedRun, ClosedAttempt, Database, TaskChange, tables
from trainmaster.spec.states import EndReason, State

NOW = 1_000_000.0


class ToldStore(Database):
    """Its clock for leases is what the last call has said, on a server too."""

    told = NOW

    def clock_s(self, most_age_s: float = 0.0) -> float:
        return self.told

    def create_run(self, new, now, admit=None):
        self.told = now
        return super().create_run(new, now, admit)

    def acquire(self, run, now, worked_until=None):
        self.told = now
        return super().acquire(run, now, worked_until)

    def renew(self, lease, now):
        self.told = now
        return super().renew(lease, now)

    def release(self, lease, now):
        self.told = now
        super().release(lease, now)

    def commit(self, lease, changes, now):
        self.told = now
        super().commit(lease, changes, now)

    def requeue(self, lease, now, admit=None):
        self.told = now
        super().requeue(lease, now, admit)


def new_run(run: str = "r-1", experiments=(("a", 3), ("b", 1))) -> AcceptedRun:
    return AcceptedRun(
        id=run,
        name="r",
        recipe="{}",
        recipe_path="/recipe.yaml",
        provider="local",
        code_path="/code",
        store_url="file:///store",
        experiments=experiments,
    )


def everything(database: Database) -> dict[str, list[dict]]:
    """All rows of all tables, in the order in which they were written."""
    with database.engine.connect() as connection:
        return {
            name: [
                dict(row)
                for row in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()
            ]
            for name, table in tables.metadata.tables.items()
        }


def planned(number: int, experiment: str = "a", **fields) -> TaskChange:
    return TaskChange(experiment, number, 0, State.WAITING, State.PLANNED, fields=fields, creates=True)


def opened(number: int, attempt: int = 1, before: State = State.PLANNED, **what) -> TaskChange:
    return TaskChange("a", number, attempt, before, State.ACQUIRING, opens=True, **what)


def ended(number: int, reason: EndReason, attempt: int = 1) -> TaskChange:
    closes = ClosedAttempt(attempt, reason, "so", NOW, NOW + 5, None, "[]")
    return TaskChange("a", number, attempt, State.SAVING, State.DONE, reason, "so", closes=closes)
