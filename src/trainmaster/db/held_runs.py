"""`HeldRuns`: what one process holds the leases of, asked for all at once; `HeldDatabase`: for one of them.

A process that drives hundreds of runs must not ask the database for each of them five times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from trainmaster.dataclass import dataclass
from trainmaster.db import admissions, run_rows
from trainmaster.db import tables as t
from trainmaster.db.changes import Change, ExperimentChange, RunChange
from trainmaster.db.database import Database
from trainmaster.db.events import event_row, insert_events
from trainmaster.db.leases import LEASE_S, Lease, is_alive, this_process
from trainmaster.db.retry_policy import RetryPolicy, Try
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.facts import Fact
from trainmaster.spec.states import EndReason

#: Before a run is taken over, its own server has so long to go on with it.
OWN_FIRST_S: Final = 10.0
#: What was seen of a lease longer ago says nothing of it. Not less: where looks are late as there is much to
#: do, a thousand runs that each ask for themselves make them later.
FRESH_S: Final = 5.0
#: Leases that are to be extended wait for each other so long, and after `FRESH_S` not at all.
_TOGETHER_S: Final = 2.5

# The state is written out: both databases use the index of open runs only for those words.
_OPEN = t.run.c.state != sa.literal_column("'DONE'")
_MINE: sa.Select[Any] = sa.select(t.run.c.id, t.run.c.lease_token, t.run.c.stop_wanted).where(
    t.run.c.lease_owner == sa.bindparam("owner"), _OPEN
)
_CANCELLED: sa.Select[Any] = (
    sa.select(t.run_fact.c.run_id, t.run_fact.c.name, t.run_fact.c.value)
    .join(t.run)
    .where(t.run.c.lease_owner == sa.bindparam("owner"), _OPEN, t.run_fact.c.kind == Fact.CANCELLED.value)
)


def undriven(database: Database, home_id: str, limit: int | None = None) -> list[str]:
    """Ids of undriven submitted runs that this home may drive, oldest first."""
    waits = (*_for_home(database, home_id), ~admissions.WAITS, t.run.c.away.is_(None))
    owners = database.read(
        sa.select(t.run.c.lease_owner, sa.func.max(t.run.c.lease_expires_at).label("expires_at"))
        .where(*waits)
        .group_by(t.run.c.lease_owner)
    )
    now = database.clock_s()
    gone = [row["lease_owner"] for row in owners if not is_alive(row["lease_owner"], row["expires_at"], now)]
    if not gone:
        return []
    no_owner = t.run.c.lease_owner.is_(None)
    query = sa.select(t.run.c.id).where(
        *waits, no_owner | t.run.c.lease_owner.in_([owner for owner in gone if owner])
    )
    return [row["id"] for row in database.read(query.order_by(t.run.c.created_at, t.run.c.id).limit(limit))]


def count_open(database: Database, home_id: str) -> int:
    """How many runs that were sent to a server are not over, of those that a home drives or might."""
    query = sa.select(sa.func.count().label("runs")).where(*_for_home(database, home_id))
    return int(database.read(query)[0]["runs"])


def _for_home(database: Database, home_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Its own, and those that can move and that their own server has not gone on with for a while."""
    own = sa.func.coalesce(t.run.c.kept_by, t.run.c.home_id) == home_id
    left = t.run.c.can_move & (t.run.c.lease_expires_at < database.clock_s() - OWN_FIRST_S)
    return t.run.c.submitted_by.is_not(None), own | left, _OPEN


def add_note(database: Database, run: str, text: str, now: float) -> None:
    """An event of an undriven run, unless it is its newest already: each of several servers may say it."""
    row = event_row(run, now, "note", message=text)
    alone = sa.select(t.run.c.id).where(t.run.c.id == run).with_for_update()
    newest = (
        sa.select(t.event.c.message).where(t.event.c.run_id == run).order_by(t.event.c.id.desc()).limit(1)
    )

    def write(connection: sa.Connection, _: Try) -> None:
        connection.execute(alone)
        if connection.execute(newest.limit(1)).scalar() != text:
            insert_events(connection, [row])

    database.write(write, patient=False)


@dataclass(frozen=True, slots=True)
class _SeenLease:
    token: int
    stop_wanted: EndReason | None
    cancelled_tasks: Mapping[str, str]
    at: float


class HeldRuns:
    """The runs whose leases this process holds. `look` asks for all of them in one query, often.

    Args:
        database: the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owner = this_process()
        self._lock = threading.Lock()
        self._seen: dict[str, _SeenLease] = {}
        self._due: dict[str, Lease] = {}
        self._renewed_at = 0.0

    def look(self) -> None:
        """Ask which runs are held and which of them are to stop; extend the leases that `renew` was given.

        Raises:
            StoreError: the database cannot be used.
        """
        at = boot_s()  # before it is asked: it may be older than the answer, never newer
        rows = self._database.read(_MINE, {"owner": self._owner})
        cancelled: dict[str, dict[str, str]] = {}
        for row in self._database.read(_CANCELLED, {"owner": self._owner}):
            cancelled.setdefault(row["run_id"], {})[row["name"]] = row["value"]
        self._seen = {
            row["id"]: _SeenLease(
                row["lease_token"],
                EndReason(row["stop_wanted"]) if row["stop_wanted"] else None,
                cancelled.get(row["id"], {}),
                at,
            )
            for row in rows
        }
        if at - self._renewed_at < _TOGETHER_S:
            return
        with self._lock:
            due, self._due = self._due, {}
        try:
            if due:
                self._renew(list(due.values()))
        except BaseException:
            with self._lock:  # their driver was told that it is done: at the next look, then
                self._due = {**due, **self._due}
            raise
        self._renewed_at = at

    def _renew(self, leases: Sequence[Lease]) -> None:
        expires_at = self._database.clock_s() + LEASE_S
        self._database.write(
            lambda connection, this: run_rows.renew_leases(connection, leases, expires_at + this.waited_s)
        )

    def release_all_but(self, driven: Container[str]) -> None:
        """Give up what was seen to be held and is driven no more: the database was away when that ended.

        As long as this process lives, no other could take it.

        Args:
            driven: ids of runs that this process drives.

        Raises:
            StoreError: the database cannot be used.
        """
        for run, seen in self._seen.items():
            if run not in driven:
                self._database.release(Lease(run, seen.token, self._owner))

    def renew(self, lease: Lease) -> bool:
        """Have a lease extended at the next `look`; False if it was not looked at of late.

        Raises:
            LeaseLostError: it is not ours any more.
        """
        seen = self._fresh(lease.run)
        if seen is None or seen.token < lease.token:  # seen before it was taken
            return False
        if seen.token > lease.token:
            raise LeaseLostError.of(lease.run)
        with self._lock:
            self._due[lease.run] = lease
        return True

    def stop_wanted(self, run: str) -> tuple[bool, EndReason | None]:
        """Whether that is known of a run, and why somebody wants its end."""
        seen = self._fresh(run)
        return seen is not None, None if seen is None else seen.stop_wanted

    def cancelled_tasks(self, run: str) -> Mapping[str, str] | None:
        """Who wants which tasks of a run ended; None if that is not known."""
        seen = self._fresh(run)
        return None if seen is None else seen.cancelled_tasks

    def _fresh(self, run: str) -> _SeenLease | None:
        seen = self._seen.get(run)
        return seen if seen is not None and boot_s() - seen.at <= FRESH_S else None


class HeldDatabase(Database):
    """The database as the driver of one run sees it that has many runs in one process.

    Args:
        database: whose connections it uses.
        retry_policy: of this run.
        held: asks for all of them.
        moved: called with the run when it, or an experiment of it, has another state; must be quick.
    """

    def __init__(
        self,
        database: Database,
        retry_policy: RetryPolicy,
        held: HeldRuns,
        moved: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__("", retry_policy, shares=database)
        self._held = held
        self._moved = moved

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """See `Database.commit`."""
        super().commit(lease, changes, now)
        if any(isinstance(change, ExperimentChange | RunChange) for change in changes):
            self._moved(lease.run)

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """See `Database.renew`."""
        if self._held.renew(lease):
            return self.stop_wanted(lease.run)
        return super().renew(lease, now)

    def stop_wanted(self, run: str) -> EndReason | None:
        """See `Database.stop_wanted`; as it was when all were asked for last."""
        is_known, wanted = self._held.stop_wanted(run)
        return wanted if is_known else super().stop_wanted(run)

    def cancelled_tasks(self, run: str) -> Mapping[str, str]:
        """See `Database.cancelled_tasks`; as `stop_wanted`."""
        known = self._held.cancelled_tasks(run)
        return super().cancelled_tasks(run) if known is None else known

    def close(self) -> None:
        """Its connections are those of others, too."""
