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
    runs = rows.recipes(database, {row["run_id"] for row in found if row["place"] is not None})
    return [_told_endpoint(database, row, runs.get(row["run_id"]), replicas[row["id"]]) for row in found]


def _told_endpoint(
    database: Database, row: RowMapping, run: RowMapping | None, replicas: list[dict[str, Any]]
) -> dict[str, Any]:
    is_ready = any(each["state"] == ReplicaState.READY for each in replicas)
    is_drained = all(each["state"] == ReplicaState.DRAINING for each in replicas)
    return {
        **columns(row, "name", "team"),
        "run": row["run_id"],
        **columns(row, "experiment", "model", "version", "refused"),
        "path": "" if run is None else _path(run, row["experiment"]),
        "state": "DONE" if run is None else "READY" if is_ready else "STARTING",
        "asleep": run is not None and is_drained and _may_sleep(database, run, row["experiment"]),
        **columns(row, "created_at", "ended_at"),
        "replicas": replicas,
    }


def _path(run: RowMapping, experiment: str) -> str:
    """Where it is asked for its model, below its address; empty if it has a command of its own."""
    stored = json.loads(run["recipe"]).get("experiments", {})
    return path_of_model(stored.get(experiment, {}).get("command", ""))


def _may_sleep(database: Database, run: RowMapping, experiment: str) -> bool:
    """Whether it has begun, and needs no replica without requests."""
    states = {each["name"]: each["state"] for each in database.experiment_rows(run["id"])}
    if states.get(experiment) != State.RUNNING:
        return False
    serve = stored_recipe(run).experiments[experiment].serve
    return serve is not None and serve.replicas.fewest == 0


def _told_replica(row: RowMapping) -> dict[str, Any]:
    same = columns(row, "task", "version", "state", "said", "node", "port", "in_flight", "ready_at")
    return {"replica": row["id"], **same}
