"""Rows of runs: their beginning, and which process may drive them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.dataclass import dataclass, field
from trainmaster.db import tables as t
from trainmaster.db.changes import QueueChange
from trainmaster.db.cluster_rows import ClusterRow, columns
from trainmaster.db.events import event_row, insert_events, json_column
from trainmaster.db.leases import LEASE_S, Lease, is_alive
from trainmaster.spec.errors import LeaseLostError, NotFoundError
from trainmaster.spec.states import State


@dataclass(frozen=True, slots=True)
class Submission:
    """A request to run something, which is accepted once however often it is sent.

    Attributes:
        by: name of the token or user.
        team: whose the run is; None for the owner of the home.
        key: of the request (``Idempotency-Key``); empty without one.
        digest: SHA-256 of the request.
        firing: id of the start of a workflow that it is for; None for none.
    """

    by: str
    team: str | None = None
    key: str = ""
    digest: str = ""
    firing: int | None = None


@dataclass(frozen=True, slots=True)
class AcceptedRun:
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
        home: directory of the home its processes will live in.
        home_id: identity of that home.
        clusters: that it is to have.
        notify: for each of its subscriptions the kinds of events that it wants.
        sinks: kinds of sinks that get what its tasks report.
        submission: of a run that was sent to a server.
        can_move: any server can go on with it.
        private: what only servers with the key may read, sealed, by name.
        labels: as JSON.
        wallet: that its money is from; None without one.
    """

    id: str
    name: str
    recipe: str
    recipe_path: str
    provider: str
    code_path: str
    store_url: str
    experiments: Sequence[tuple[str, int]]
    home: str = ""
    home_id: str = ""
    clusters: Sequence[ClusterRow] = ()
    notify: Sequence[Sequence[str]] = ()
    sinks: Sequence[str] = ()
    submission: Submission | None = None
    can_move: bool = False
    private: Mapping[str, bytes] = field(default_factory=dict)
    labels: str = "{}"
    wallet: str | None = None


def move_run(connection: Connection, run: str, provider: str, recipe: str, now: float, message: str) -> None:
    """A run goes on at another provider, or with another cap, with an event; see `Database.move_run`."""
    values = {"provider": provider, "recipe": recipe}
    connection.execute(t.run.update().where(t.run.c.id == run).values(values))
    insert_events(connection, [event_row(run, now, "note", message=message)])


def insert_run(
    connection: Connection, new: AcceptedRun, owner: str | None, now: float, expires_at: float
) -> None:
    """Write a new run, its experiments and its first event; ``owner`` holds the lease with token 1.

    Args:
        connection: in a transaction.
        new: the run.
        owner: that drives it; None for whichever driver comes first.
        now: Unix seconds, as written down.
        expires_at: Unix seconds by the clock of `Database.clock_s`, as everywhere for leases.
    """
    sent = new.submission
    connection.execute(
        t.run.insert().values(
            {name: getattr(new, name) for name in AcceptedRun.__slots__ if name in t.run.c}
            | {
                "notify": json_column(new.notify) if new.notify else None,
                "state": State.WAITING,
                "created_at": now,
                "session_at": now,
                "lease_owner": owner,
                "lease_token": 1,
                "lease_expires_at": expires_at,
                "team": sent and sent.team,
                "submitted_by": sent and sent.by,
            }
        )
    )
    if sent is not None and sent.key:  # refused, and the run with it, if the key was used meanwhile
        connection.execute(
            t.submission.insert().values(
                caller=sent.team or "", key=sent.key, digest=sent.digest, run_id=new.id, created_at=now
            )
        )
    connection.execute(
        t.experiment.insert(),
        [
            {"run_id": new.id, "ordinal": ordinal, "name": name, "state": State.WAITING, "tasks_total": total}
            for ordinal, (name, total) in enumerate(new.experiments)
        ],
    )
    if new.sinks:
        found = [{"run_id": new.id, "kind": kind, "state": State.RUNNING} for kind in new.sinks]
        connection.execute(t.sink.insert(), found)
    if new.private:
        rows = [{"run_id": new.id, "name": name, "sealed": data} for name, data in new.private.items()]
        connection.execute(t.run_private.insert(), rows)
    if new.clusters:
        connection.execute(t.cluster.insert(), [columns(row, new.id, now) for row in new.clusters])
    events = [event_row(new.id, now, "run", after=State.WAITING)]
    if sent is not None and sent.firing is not None:
        from trainmaster.db.workflow_starts import begin

        events.append(event_row(new.id, now, "note", message=begin(connection, sent.firing, new.id)))
    insert_events(connection, events)


def was_inserted(connection: Connection, new: AcceptedRun, owner: str | None, now: float) -> bool:
    """True if this very call of `insert_run` was committed already."""
    mine = sa.select(t.run.c.id).where(t.run.c.id == new.id, t.run.c.created_at == now)
    if owner is not None:  # else a driver may have taken it meanwhile
        mine = mine.where(t.run.c.lease_owner == owner)
    return connection.execute(mine).first() is not None


def run_row(connection: Connection, run: str) -> RowMapping:
    """The row of a run.

    Raises:
        NotFoundError: there is no such run.
    """
    row = connection.execute(RUN_ROW, {"run": run}).mappings().first()
    return existing(row, run)


def existing(row: RowMapping | None, run: str) -> RowMapping:
    """The row itself.

    Raises:
        NotFoundError: there is none.
    """
    if row is None:
        raise NotFoundError(f"there is no run {run!r}", "`trainmaster status` lists the runs.")
    return row


def take_lease(
    connection: Connection,
    run: str,
    owner: str,
    now: float,
    lease_now: float,
    worked_until: float | None = None,
) -> Lease | None:
    """Take the lease of a run; None if a living process holds it, or a machine of its own drives it.

    Compare and swap: what was seen of the lease must still be so when it is written. On PostgreSQL
    two processes may see the same lease, and the holder may renew it between a look and a write.

    Args:
        connection: in a transaction.
        run: its id.
        owner: that takes it.
        now: Unix seconds, as written down.
        lease_now: Unix seconds by the clock of `Database.clock_s`.
        worked_until: see `Database.acquire`.

    Raises:
        NotFoundError: there is no such run.
    """
    while True:
        row = run_row(connection, run)
        if row["away"] is not None:
            return None
        if row["lease_owner"] != owner and is_alive(row["lease_owner"], row["lease_expires_at"], lease_now):
            return None
        token = int(row["lease_token"]) + 1
        until = driven_until(row, now)
        ran_until = until if row["state"] == State.DONE else max(until, worked_until or until)
        taken = connection.execute(
            t.run.update()
            .where(
                t.run.c.id == run,
                t.run.c.lease_token == row["lease_token"],
                t.run.c.turn == row["turn"],
                t.run.c.away.is_(None),
                t.run.c.lease_owner.is_not_distinct_from(row["lease_owner"]),
                t.run.c.lease_expires_at.is_not_distinct_from(row["lease_expires_at"]),
            )
            .values(
                lease_owner=owner,
                lease_token=token,
                lease_expires_at=lease_now + LEASE_S,
                earlier_s=row["earlier_s"] + _until_now(row["session_at"], ran_until, now),
                queued_s=row["queued_s"] + _until_now(row["queued_at"], until, now),
                queued_at=None,
                queued_for=None,
                session_at=now,
                # One that is over stays so until it is requeued: machines that it left are billed from then.
                ended_at=row["ended_at"] if row["state"] == State.DONE else None,
                closed_at=row["closed_at"] if row["state"] == State.DONE else None,
            )
        )
        if taken.rowcount == 1:
            return Lease(run, token, owner, row["turn"])


def advance(connection: Connection, lease: Lease, expires_at: float, *, again: bool) -> bool:
    """Begin the next turn of a run, proving and renewing the lease.

    Args:
        connection: in a transaction that ends the turn.
        lease: of the writer.
        expires_at: Unix seconds.
        again: this is tried once more, since the outcome of the first time is unknown.

    Returns:
        False if that first time was committed: nothing is left to be written.

    Raises:
        LeaseLostError: the lease is stale.
    """
    parameters = {"run": lease.run, "token": lease.token, "expires": expires_at}
    if connection.execute(_ADVANCE, {**parameters, "expected": lease.turn}).rowcount == 1:
        return True
    if again and connection.execute(_RENEW_AT, {**parameters, "expected": lease.turn + 1}).rowcount == 1:
        return False
    raise LeaseLostError.of(lease.run)


def renew_lease(connection: Connection, lease: Lease, expires_at: float) -> None:
    """Extend a lease.

    Raises:
        LeaseLostError: it is stale.
    """
    parameters = {"run": lease.run, "token": lease.token, "expires": expires_at}
    if connection.execute(_RENEW, parameters).rowcount != 1:
        raise LeaseLostError.of(lease.run)


def renew_leases(connection: Connection, leases: Sequence[Lease], expires_at: float) -> None:
    """Extend many leases; one that is stale stays as it is."""
    connection.execute(
        _RENEW, [{"run": each.run, "token": each.token, "expires": expires_at} for each in leases]
    )


def write_queue(connection: Connection, run: str, change: QueueChange, now: float) -> None:
    """Write down that a run begins to wait for what others hold, for what, or that it waits no more."""
    since = None if change.waits_for is None else sa.func.coalesce(t.run.c.queued_at, now)
    connection.execute(
        t.run.update()
        .where(t.run.c.id == run)
        .values(queued_at=since, queued_for=change.waits_for, queued_s=t.run.c.queued_s + change.waited_s)
    )


def follow_clock(connection: Connection, run: str, set_s: float) -> None:
    """The clock of the driver's machine was set: what is reckoned from begins so much later by it."""
    moved = {"session_at": t.run.c.session_at + set_s, "queued_at": t.run.c.queued_at + set_s}
    connection.execute(t.run.update().where(t.run.c.id == run).values(moved))


def describe(
    connection: Connection,
    run: str,
    change: Callable[[Mapping[str, str]], Mapping[str, str]],
    note: str | None,
) -> None:
    """Change the labels of a run, and its note unless that is None.

    Raises:
        NotFoundError: there is no such run.
    """
    # Locked: two who change different labels at once both succeed.
    row = connection.execute(RUN_ROW.with_for_update(), {"run": run}).mappings().first()
    values = {"labels": json_column(change(json.loads(existing(row, run)["labels"])))}
    values |= {} if note is None else {"note": note}
    connection.execute(t.run.update().where(t.run.c.id == run).values(values))


def driven_until(row: Mapping[Any, Any], now: float) -> float:
    """Until when the time of an undriven run counts, Unix seconds: it was driven last then, or waits."""
    ended_at = row["closed_at"] or row["ended_at"]
    if ended_at is not None:
        return float(ended_at)
    if row["queued_at"] is not None and "waits_for" in json.loads(row["queued_for"]):
        return now  # what waits for its turn is driven by nothing, and its wait goes on
    seen_at = float(row["lease_expires_at"] or row["session_at"] or now)
    # not given up in order: its last sign of life was earlier
    return seen_at if row["lease_owner"] is None else seen_at - LEASE_S


def _until_now(since: float | None, until: float, now: float) -> float:
    return 0.0 if since is None else max(0.0, min(until, now) - since)


#: The row of the run named by the parameter ``run``, unless that was removed.
RUN_ROW: sa.Select[Any] = sa.select(t.run).where(
    t.run.c.id == sa.bindparam("run"), t.run.c.removed_at.is_(None)
)
#: Why somebody wants the end of the run named by the parameter ``run``.
STOP_WANTED: sa.Select[Any] = sa.select(t.run.c.stop_wanted).where(t.run.c.id == sa.bindparam("run"))
_RENEW = (
    t.run.update()
    .where(
        t.run.c.id == sa.bindparam("run"),
        t.run.c.lease_token == sa.bindparam("token"),
        t.run.c.lease_owner.is_not(None),
    )
    .values(lease_expires_at=sa.bindparam("expires"))
)
_RENEW_AT = _RENEW.where(t.run.c.turn == sa.bindparam("expected"))
_ADVANCE = _RENEW_AT.values(turn=t.run.c.turn + 1)
