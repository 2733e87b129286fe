"""Rows of clusters: what is rented, for whom, and what it has cost; one row each, its details as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.dataclass import dataclass
from trainmaster.db import ledger
from trainmaster.db import tables as t
from trainmaster.db.events import storable
from trainmaster.db.leases import Lease
from trainmaster.spec.errors import LeaseLostError

#: States of a row: `trainmaster.cluster.record.ClusterState`; these two are looked for here.
KEPT = "KEPT"
ENDED = "ENDED"
#: Of a run that is over.
_DONE = "DONE"
#: How many clusters of a provider say how long one waits for it.
_WAITS = 50


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """A cluster as it is written.

    Attributes:
        id: what its machines are tagged with.
        provider, home_id: that rents it, and for which home.
        state: of `ClusterState`.
        data: JSON.
        kept_until: Unix seconds, while KEPT.
        waited_s: from the first request to the first time that it was up; None before.
    """

    id: str
    provider: str
    home_id: str
    state: str
    data: str
    kept_until: float | None = None
    waited_s: float | None = None


def columns(row: ClusterRow, run: str, now: float) -> dict[str, Any]:
    """All columns of a cluster of a run."""
    return {**asdict(row), "data": storable(row.data), "run_id": run, "changed_at": now}


def put_cluster(connection: Connection, lease: Lease, row: ClusterRow, now: float) -> None:
    """Write a cluster of a run, in place of what was there. Safe to repeat.

    Raises:
        LeaseLostError: somebody else drives the run.
    """
    _prove(connection, lease)
    values = columns(row, lease.run, now)
    mine = t.cluster.update().where(t.cluster.c.id == row.id, t.cluster.c.run_id == lease.run)
    if connection.execute(mine.values(values)).rowcount == 1:
        return
    if connection.execute(sa.select(t.cluster.c.id).where(t.cluster.c.id == row.id)).first() is not None:
        raise LeaseLostError.of(lease.run)  # it was kept, and another run has taken it
    connection.execute(t.cluster.insert().values(values))


def take_kept(
    connection: Connection, lease: Lease, row: ClusterRow, now: float, idle_usd: float = 0.0
) -> bool:
    """Make a warm cluster one of a run's own, as it is written from now on.

    Args:
        connection: in a transaction.
        lease: of the run.
        row: as it is to be.
        now: Unix seconds.
        idle_usd: what it has cost while it was warm, for the bill of the run that has kept it.

    Returns:
        False if somebody else was quicker, it is too late, or another team has kept it: what its code has
        left on the machines is not for others.

    Raises:
        LeaseLostError: somebody else drives the run.
    """
    _prove(connection, lease)
    mine = sa.select(t.cluster.c.id).where(t.cluster.c.id == row.id, t.cluster.c.run_id == lease.run)
    owner = connection.execute(_run_of(row)).scalar()
    taken = connection.execute(
        t.cluster.update()
        .where(t.cluster.c.id == row.id, t.cluster.c.state == KEPT, t.cluster.c.kept_until > now)
        .where(_team_of(owner) == _team_of(lease.run))
        .values(columns(row, lease.run, now))
    )
    if taken.rowcount == 1:
        _bill(connection, owner, idle_usd, now)
    return taken.rowcount == 1 or connection.execute(mine).first() is not None


def end_unused(connection: Connection, row: ClusterRow, now: float, idle_usd: float = 0.0) -> bool:
    """Write how far the end of a cluster is that no run uses: a warm one, or what a run has left.

    Args:
        connection: in a transaction.
        row: as it is to be.
        now: Unix seconds.
        idle_usd: what it has cost since its run is over, for the bill of that run; told once.

    Returns:
        False if a run uses it (again).
    """
    over = sa.select(t.run.c.id).where(t.run.c.id == t.cluster.c.run_id, t.run.c.state == _DONE)
    written = connection.execute(
        t.cluster.update()
        .where(t.cluster.c.id == row.id, t.cluster.c.state != ENDED, over.exists())
        .values(state=row.state, data=storable(row.data), kept_until=row.kept_until, changed_at=now)
    )
    if written.rowcount == 1:
        _bill(connection, connection.execute(_run_of(row)).scalar(), idle_usd, now)
    return written.rowcount == 1


def end_damaged(connection: Connection, cluster: str, data: str, now: float) -> None:
    """Write that a cluster is given back whose data mean nothing, unless others were written since."""
    connection.execute(
        t.cluster.update()
        .where(t.cluster.c.id == cluster, t.cluster.c.data == data)
        .values(state=ENDED, kept_until=None, changed_at=now)
    )


def _run_of(row: ClusterRow) -> sa.Select[Any]:
    return sa.select(t.cluster.c.run_id).where(t.cluster.c.id == row.id)


def _team_of(run: str | None) -> sa.ColumnElement[str]:
    team = sa.select(t.run.c.team).where(t.run.c.id == run).scalar_subquery()
    return sa.func.coalesce(team, "")  # the owner's


def _bill(connection: Connection, run: str | None, usd: float, now: float) -> None:
    """What machines have cost that stayed warm comes on the bill; what was set aside for that is free."""
    if run is None:
        return
    if usd:
        more = t.run.update().where(t.run.c.id == run).values(cost_usd=t.run.c.cost_usd + usd)
        connection.execute(more)
        ledger.charge(connection, run, now)
    ledger.release(connection, run, now)


def put_cost(connection: Connection, lease: Lease, cost_usd: float, now: float) -> None:
    """Write what a run has cost so far, and charge it.

    Raises:
        LeaseLostError: somebody else drives the run.
    """
    written = connection.execute(
        t.run.update()
        .where(t.run.c.id == lease.run, t.run.c.lease_token == lease.token)
        .values(cost_usd=cost_usd)
    )
    if written.rowcount != 1:
        raise LeaseLostError.of(lease.run)
    ledger.charge(connection, lease.run, now)


def of_run(run: str) -> sa.Select[Any]:
    """The clusters that a run has, or had last."""
    return sa.select(t.cluster).where(t.cluster.c.run_id == run).order_by(t.cluster.c.id)


def not_ended(provider: str | None, home_id: str, *, moves: bool = False) -> sa.Select[Any]:
    """Clusters of a provider (None: of all) that may still have machines, the newest first.

    Those of a home; with ``moves`` also of runs that any server goes on with, wherever they were rented.
    With ``team``, ``run_state``, ``run_ended_at``, ``lease_owner`` and ``lease_expires_at`` of their runs.
    """
    of_home = t.cluster.c.home_id == home_id
    found = (
        sa.select(
            t.cluster,
            t.run.c.team,
            t.run.c.state.label("run_state"),
            t.run.c.ended_at.label("run_ended_at"),
            t.run.c.lease_owner,
            t.run.c.lease_expires_at,
        )
        .join(t.run)
        .where(sa.or_(of_home, t.run.c.can_move) if moves else of_home, t.cluster.c.state != ENDED)
        .order_by(t.cluster.c.changed_at.desc())
    )
    return found if provider is None else found.where(t.cluster.c.provider == provider)


def waits(provider: str) -> sa.Select[Any]:
    """How long one waited for clusters of a provider, the newest first."""
    return (
        sa.select(t.cluster.c.waited_s, t.cluster.c.data, t.cluster.c.id)
        .where(t.cluster.c.provider == provider, t.cluster.c.waited_s.is_not(None))
        .order_by(t.cluster.c.changed_at.desc())
        .limit(_WAITS)
    )


def given_back(provider: str) -> sa.Select[Any]:
    """When the work of runs was over, and when all of a provider was given back; the newest first.

    What was given back before, as the rest of the work was elsewhere, or kept for a later run, says nothing.
    """
    gone_at = sa.func.max(t.cluster.c.changed_at)
    return (
        sa.select(t.run.c.ended_at, gone_at.label("gone_at"))
        .join(t.cluster, t.cluster.c.run_id == t.run.c.id)
        .where(t.cluster.c.provider == provider, t.cluster.c.state == ENDED)
        .where(t.cluster.c.changed_at.between(t.run.c.ended_at, t.run.c.closed_at))
        .group_by(t.run.c.id, t.run.c.ended_at, t.run.c.created_at)
        .order_by(t.run.c.created_at.desc())
        .limit(_WAITS)
    )


def _prove(connection: Connection, lease: Lease) -> None:
    held = sa.select(t.run.c.id).where(t.run.c.id == lease.run, t.run.c.lease_token == lease.token)
    if connection.execute(held).first() is None:
        raise LeaseLostError.of(lease.run)
