"""Summaries of services and their replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.db import endpoint_rows as rows
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from sqlalchemy.engine import RowMapping

    from trainmaster.db import Database


def endpoint_summaries(database: Database, found: Sequence[RowMapping]) -> list[dict[str, Any]]:
    """Rows of services with their replicas; see `Endpoints.show`."""
    if not found:
        return []
    replicas: dict[str, list[dict[str, Any]]] = {row["id"]: [] for row in found}
    for each in rows.replicas(database, list(replicas), database.clock_s()):
        replicas[each["endpoint_id"]].append(_told_replica(each))
    return [_told_endpoint(database, row, replicas[row["id"]]) for row in found]


def _told_endpoint(database: Database, row: RowMapping, replicas: list[dict[str, Any]]) -> dict[str, Any]:
    is_ready = any(each["state"] == ReplicaState.READY for each in replicas)
    is_drained = all(each["state"] == ReplicaState.DRAINING for each in replicas)
    return {
        "name": row["name"],
        "team": row["team"],
        "run": row["run_id"],
        "experiment": row["experiment"],
        "model": row["model"],
        "version": row["version"],
        "refused": row["refused"],
        "state": "DONE" if row["place"] is None else "READY" if is_ready else "STARTING",
        "asleep": row["place"] is not None and is_drained and _may_sleep(database, row),
        "created_at": row["created_at"],
        "ended_at": row["ended_at"],
        "replicas": replicas,
    }


def _may_sleep(database: Database, row: RowMapping) -> bool:
    """Whether it has begun, and needs no replica without requests."""
    states = {each["name"]: each["state"] for each in database.experiment_rows(row["run_id"])}
    if states.get(row["experiment"]) != State.RUNNING:
        return False
    serve = stored_recipe(database.run_row(row["run_id"])).experiments[row["experiment"]].serve
    return serve is not None and serve.replicas.fewest == 0


def _told_replica(row: RowMapping) -> dict[str, Any]:
    same = ("task", "version", "state", "said", "node", "port", "in_flight", "ready_at")
    return {"replica": row["id"], **{name: row[name] for name in same}}
