"""Rows of endpoints, their replicas, and how many requests each proxy has with them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.db.retry_policy import Try
from trainmaster.spec.states import State

_E, _R, _L = t.endpoint.c, t.replica.c, t.replica_load.c
#: What a proxy has counted is believed for so long: it may have been killed.
LOAD_VALID_S: Final = 10.0


def of_team(database: Database, teams: Sequence[str | None] | None, most: int) -> Sequence[RowMapping]:
    """Those of teams (None in it: of the owner of the home) or of all; open ones first, then the newest."""
    query = sa.select(t.endpoint).order_by(_E.place.is_(None), _E.created_at.desc(), _E.id).limit(most)
    if teams is not None:
        named = [team for team in teams if team is not None]
        query = query.where(_E.team.in_(named) | (_E.team.is_(None) if None in teams else sa.false()))
    return database.read(query)


def named(database: Database, name: str) -> Sequence[RowMapping]:
    """Those of a name, of any team; open ones first, then the newest."""
    return database.read(
        sa.select(t.endpoint)
        .where(_E.name == name)
        .order_by(_E.place.is_(None), _E.created_at.desc(), _E.id)
        .limit(1000)
    )


def recipes(database: Database, runs: Collection[str]) -> dict[str, RowMapping]:
    """``id`` and ``recipe`` of runs, by id."""
    query = sa.select(t.run.c.id, t.run.c.recipe).where(t.run.c.id.in_(runs))
    return {row["id"]: row for row in database.read(query)} if runs else {}


def of_run(database: Database, run: str) -> Sequence[RowMapping]:
    """Those of a run."""
    return database.read(sa.select(t.endpoint).where(_E.run_id == run).order_by(_E.experiment))


def replicas(database: Database, endpoints: Sequence[str], now: float) -> Sequence[RowMapping]:
    """The replicas of endpoints that are not gone, with ``in_flight`` of all proxies.

    Args:
        database: the database.
        endpoints: ids.
        now: by `Database.clock_s`.
    """
    busy = (
        sa.select(_L.replica_id, sa.func.sum(_L.in_flight).label("in_flight"))
        .where(_L.at > now - LOAD_VALID_S)
        .group_by(_L.replica_id)
        .subquery()
    )
    return database.read(
        sa.select(t.replica, sa.func.coalesce(busy.c.in_flight, 0).label("in_flight"))
        .outerjoin(busy, busy.c.replica_id == _R.id)
        .where(_R.endpoint_id.in_(endpoints), _R.state != ReplicaState.GONE)
        .order_by(_R.endpoint_id, _R.task)
    )


def asked_at(database: Database, endpoint: str) -> float | None:
    """When somebody was turned away last, by `Database.clock_s`."""
    found: float | None = database.read(sa.select(_E.asked_at).where(_E.id == endpoint))[0]["asked_at"]
    return found


def report(database: Database, replica: str, server: str, in_flight: int) -> None:
    """Write how many requests a server's proxy has with a replica; unknown replicas are passed over."""

    def write(connection: Connection, _: Try) -> None:
        now = database.clock_s()
        counted = {"in_flight": in_flight, "at": now}
        mine = (_L.replica_id == replica, _L.server == server)
        if connection.execute(t.replica_load.update().where(*mine).values(**counted)).rowcount:
            return
        there = sa.select(_R.id).where(_R.id == replica, _R.state != ReplicaState.GONE)
        if connection.execute(there).first() is not None:
            row = {"replica_id": replica, "server": server, **counted}
            connection.execute(t.replica_load.insert().values(**row))

    database.write(write, patient=False)


def note_asked(database: Database, endpoint: str) -> None:
    """Somebody was turned away as no replica is ready."""
    now = database.clock_s()
    asked = t.endpoint.update().where(_E.id == endpoint).values(asked_at=now)
    database.execute(asked, patient=False)


def unfinished(database: Database, endpoints: Sequence[str]) -> Sequence[RowMapping]:
    """The replicas of endpoints that are not gone, or whose tasks are not over."""
    query = (
        sa.select(t.replica)
        .join(t.endpoint, _E.id == _R.endpoint_id)
        .join(t.experiment, (t.experiment.c.run_id == _E.run_id) & (t.experiment.c.name == _E.experiment))
        .join(t.task, (t.task.c.experiment_id == t.experiment.c.id) & (t.task.c.number == _R.task))
        .where(_R.endpoint_id.in_(endpoints))
        .where((t.task.c.state != State.DONE) | (_R.state != ReplicaState.GONE))
    )
    return database.read(query.order_by(_R.endpoint_id, _R.task))
