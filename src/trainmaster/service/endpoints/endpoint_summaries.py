"""Summaries of services and their replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import RowMapping

from trainmaster.db import Database
from trainmaster.db import endpoint_rows as rows
from trainmaster.db.endpoint_changes import ReplicaState
from trainmaster.db.row_values import columns
from trainmaster.service.runs.stored_recipe import stored_recipe
from trainmaster.spec.serve import path_of_model
from trainmaster.spec.states import State


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
        **columns(row, "name", "team"),
        "run": row["run_id"],
        **columns(row, "experiment", "model", "version", "refused"),
        "path": "" if row["place"] is None else _path(database, row),
        "state": "DONE" if row["place"] is None else "READY" if is_ready else "STARTING",
        "asleep": row["place"] is not None and is_drained and _may_sleep(database, row),
        **columns(row, "created_at", "ended_at"),
        "replicas": replicas,
    }


def _path(database: Database, row: RowMapping) -> str:
    """Where it is asked for its model, below its address; empty if it has a command of its own."""
    stored = json.loads(database.run_row(row["run_id"])["recipe"]).get("experiments", {})
    return path_of_model(stored.get(row["experiment"], {}).get("command", ""))


def _may_sleep(database: Database, row: RowMapping) -> bool:
    """Whether it has begun, and needs no replica without requests."""
    states = {each["name"]: each["state"] for each in database.experiment_rows(row["run_id"])}
    if states.get(row["experiment"]) != State.RUNNING:
        return False
    serve = stored_recipe(database.run_row(row["run_id"])).experiments[row["experiment"]].serve
    return serve is not None and serve.replicas.fewest == 0


def _told_replica(row: RowMapping) -> dict[str, Any]:
    same = columns(row, "task", "version", "state", "said", "node", "port", "in_flight", "ready_at")
    return {"replica": row["id"], **same}
