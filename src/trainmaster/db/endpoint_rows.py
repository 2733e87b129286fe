"""Rows of endpoints, their replicas, and how many requests each proxy has with them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from trainmaster.db import tables as t
from trainmaster.db.database import Database
from trainmaster.db.patience import Try
from trainmaster.spec.errors import UsageError

_E, _R, _L = t.endpoint.c, t.replica.c, t.replica_load.c
#: What a proxy has counted is believed for so long: it may have been killed.
LOAD_VALID_S: Final = 10.0
#: Any number: that of nothing else of ours.
_TAKING: Final = 0x7A11_A996


class ReplicaState(StrEnum):
    """How far a replica is: it gets requests while it is READY."""

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """A service of a run that is accepted.

    Attributes:
        experiment: that serves.
        name: by which it is asked.
        model: as the recipe names it.
    """

    experiment: str
    name: str
    model: str | None = None


def registering(
    new: Sequence[NewEndpoint], run: str, team: str | None, now: float, admit: Callable[[Connection], None]
) -> Callable[[Connection], None]:
    """Take the names of a run's services in the transaction that accepts it; then ``admit`` decides."""

    def accept(connection: Connection) -> None:
        for each in new:
            _take(connection, team, each.name)
            connection.execute(
                t.endpoint.insert().values(
                    id=f"ep-{secrets.token_hex(8)}", team=team, name=each.name,
                    place=_place(team, each.name), run_id=run, experiment=each.experiment,
                    model=each.model, created_at=now,
                )
            )  # fmt: skip
        admit(connection)

    return accept if new else admit


def reopen(connection: Connection, run: str) -> None:
    """A run goes on: it takes the names of its services again."""
    for row in connection.execute(sa.select(t.endpoint).where(_E.run_id == run, _E.place.is_(None))).all():
        _take(connection, row.team, row.name)
        again = {"place": _place(row.team, row.name), "ended_at": None, "failures": 0, "try_at": 0.0}
        connection.execute(t.endpoint.update().where(_E.id == row.id).values(**again, refused=None))


def close(connection: Connection, run: str, experiment: str, now: float) -> None:
    """A service is over: its name is free, and no replica answers any more."""
    mine = sa.select(_E.id).where(_E.run_id == run, _E.experiment == experiment).scalar_subquery()
    connection.execute(t.endpoint.update().where(_E.id == mine).values(place=None, ended_at=now))
    gone = {"state": ReplicaState.GONE, "ended_at": now}
    connection.execute(
        t.replica.update().where(_R.endpoint_id == mine, _R.state != ReplicaState.GONE).values(**gone)
    )


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
    database.write(lambda connection, _: connection.execute(asked), patient=False)


def write_endpoint(connection: Connection, run: str, experiment: str, values: Mapping[str, object]) -> None:
    """Write columns of a run's service."""
    mine = (_E.run_id == run, _E.experiment == experiment)
    connection.execute(t.endpoint.update().where(*mine).values(**values))


def write_replica(
    connection: Connection, run: str, experiment: str, task: int, values: Mapping[str, Any], now: float
) -> None:
    """Write columns of a replica, which gets its row with the first of them."""
    mine = sa.select(_E.id).where(_E.run_id == run, _E.experiment == experiment)
    endpoint = connection.execute(mine).scalar_one()
    known = (_R.endpoint_id == endpoint, _R.task == task)
    ended = {"ended_at": now} if values.get("state") == ReplicaState.GONE else {}
    if not connection.execute(t.replica.update().where(*known).values(**values, **ended)).rowcount:
        row = {"id": f"{endpoint}-{task}", "endpoint_id": endpoint, "task": task, "created_at": now}
        connection.execute(t.replica.insert().values(**row, **values))
    if ended:
        connection.execute(t.replica_load.delete().where(_L.replica_id == f"{endpoint}-{task}"))


def _place(team: str | None, name: str) -> str:
    return f"{team or ''}/{name}"  # no team's name is empty


def _take(connection: Connection, team: str | None, name: str) -> None:
    if connection.dialect.name != "sqlite":  # where every writer is alone
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TAKING)))
    other = connection.execute(sa.select(_E.run_id).where(_E.place == _place(team, name))).first()
    if other is not None:
        raise UsageError(
            f"there is a service {name!r} already: that of {other.run_id}",
            f"Cancel it, or give this one another `name` in `serve`: `trainmaster cancel {other.run_id}`.",
        )
