"""What the driver of a run writes of its services, in the transactions of the run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from trainmaster.dataclass import dataclass
from trainmaster.db import tables as t
from trainmaster.db.changes import EndpointChange, ReplicaChange
from trainmaster.db.events import storable
from trainmaster.spec.errors import UsageError

_E, _R = t.endpoint.c, t.replica.c
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


def write_endpoint(connection: Connection, run: str, change: EndpointChange) -> None:
    """Write columns of a run's service."""
    mine = (_E.run_id == run, _E.experiment == change.experiment)
    connection.execute(t.endpoint.update().where(*mine).values(**change.fields))


def write_replica(connection: Connection, run: str, change: ReplicaChange, now: float) -> None:
    """Write columns of a replica; with its row its experiment has one task more."""
    mine = sa.select(_E.id).where(_E.run_id == run, _E.experiment == change.experiment)
    endpoint = connection.execute(mine).scalar_one()
    values = {name: storable(x) if isinstance(x, str) else x for name, x in change.fields.items()}
    is_gone = values.get("state") == ReplicaState.GONE
    if is_gone:
        values["ended_at"] = now
    known = (_R.endpoint_id == endpoint, _R.task == change.task)
    replica = f"{endpoint}-{change.task}"
    if not connection.execute(t.replica.update().where(*known).values(**values)).rowcount:
        row = {"id": replica, "endpoint_id": endpoint, "task": change.task, "created_at": now}
        connection.execute(t.replica.insert().values(**row, **values))
        x = t.experiment
        more = (x.c.run_id == run, x.c.name == change.experiment, x.c.tasks_total <= change.task)
        connection.execute(x.update().where(*more).values(tasks_total=change.task + 1))
    if is_gone:
        connection.execute(t.replica_load.delete().where(t.replica_load.c.replica_id == replica))


def _place(team: str | None, name: str) -> str:
    return f"{team or ''}/{name}"  # no team's name is empty


def _take(connection: Connection, team: str | None, name: str) -> None:
    if connection.dialect.name != "sqlite":  # where every writer is alone
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_TAKING)))
    other = connection.execute(sa.select(_E.run_id).where(_E.place == _place(team, name))).first()
    if other is not None:
        raise UsageError(
            f"there is a service {name!r} already: that of {other.run_id}",
            f"`trainmaster services stop {name}` ends it; `--name`, or `name` in `serve`, is another name.",
        )
