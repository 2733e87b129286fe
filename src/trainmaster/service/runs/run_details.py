"""`RunDetails`: what is looked up about a run beyond its status: graph, attempts, machines, checkpoints."""

from __future__ import annotations

import json
import math
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from trainmaster.db import queries
from trainmaster.service.runs.lineage import inputs_of, lineage
from trainmaster.service.runs.stored_recipe import experiments_in_all_sizes, stored_recipe
from trainmaster.service.runs.task_places import TaskPlaces
from trainmaster.spec import Recipe

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from trainmaster.service.service import Service

#: So many trials are named as the best.
BEST_TRIALS: Final = 10
#: So many attempts are told, the newest ones.
MAX_ATTEMPTS: Final = 200
#: Of so many tasks, those that were begun first, checkpoints are looked for in the store.
MAX_TASKS: Final = 20
#: So many tasks are told at most.
MAX_TOLD_TASKS: Final = 1000


class RunDetails:
    """Of one run.

    Args:
        service: of the home.
        run: its id; whoever asks may see it.
    """

    def __init__(self, service: Service, run: str) -> None:
        self._service = service
        self._run = run

    @cached_property
    def _places(self) -> TaskPlaces:
        return TaskPlaces(self._service.database, self._service.files_of(self._run), self._run)

    def recipe(self) -> Recipe:
        """What it was started with, as read."""
        return stored_recipe(self._service.database.run_row(self._run))

    def graph(self) -> list[dict[str, Any]]:
        """Its experiments in order, each with those that it waits for: ``experiment``, ``after``."""
        recipe = self.recipe()
        return [
            {"experiment": name, "after": list(recipe.experiments[name].depends_on)}
            for name in recipe.order()
        ]

    def tasks(self, limit: int = MAX_TOLD_TASKS) -> list[dict[str, Any]]:
        """Its tasks in order, at most so many.

        Returns:
            ``experiment``, ``task``, ``attempt``, ``state``, ``reason``, ``message``, ``parameters``,
            ``metrics`` (the last ones), ``started_at``, ``ended_at``, ``has_model`` and ``place`` (of a
            run in several: where its machines are).
        """
        keys = ("experiment", "attempt", "state", "reason", "message", "started_at", "ended_at")
        can_look = self._service.files_if_here(self._run) is not None
        return [
            {
                **{key: row[key] for key in keys},
                "task": row["number"],
                "parameters": json.loads(row["parameters"]),
                "metrics": json.loads(row["metrics"]),
                "has_model": row["model_uri"] is not None,
                "place": self._places.place(row) if can_look else "",
            }
            for row in queries.tasks(self._service.database, self._run, limit=limit)
        ]

    def cancelled_tasks(self) -> Collection[str]:
        """Tasks, such as ``sweep/3``, that somebody wants ended, whether they are already or not."""
        return self._service.database.cancelled_tasks(self._run).keys()

    def attempts(self, limit: int = MAX_ATTEMPTS) -> list[dict[str, Any]]:
        """The newest attempts, the newest first.

        Returns:
            ``experiment``, ``task``, ``attempt``, ``reason`` (None: it goes on), ``message``, ``opened_at``,
            ``started_at``, ``ended_at``, ``restored`` (the checkpoint that it began with), ``members``, and
            ``machines``: see `TaskPlaces.machines`.
        """
        keys = ("experiment", "task", "reason", "message", "opened_at", "started_at", "ended_at", "restored")
        return [
            {
                **{key: row[key] for key in keys},
                "attempt": row["number"],
                "members": json.loads(row["members"] or "[]"),
                "machines": self._places.machines(row["experiment"], row["task"], row["number"]),
            }
            for row in queries.attempt_details(self._service.database, self._run, limit)
        ]

    def lineage(self, experiment: str, task: int) -> dict[str, Any]:
        """What a model of it was made of; see `lineage`."""
        return lineage(self._service, self._run, experiment, task)

    def inputs(self) -> dict[str, dict[str, str]]:
        """What its experiments began with; see `inputs_of`."""
        return inputs_of(self._service, self._run)

    def members(self) -> list[str]:
        """Names of all that write logs, such as ``worker-0``."""
        from trainmaster.control.task.gangs import member_names

        found = map(member_names, experiments_in_all_sizes(self._service.database, self._run))
        return sorted({"{}-{}".format(*name) for names in found for name in names})

    def checkpoints(self) -> list[dict[str, Any]]:
        """Complete checkpoints in the store, the newest of each task first, of the first `MAX_TASKS` tasks.

        Returns:
            ``experiment``, ``task``, ``checkpoint``, ``uri``, ``attempt``, ``created_at``, ``size_bytes``.
        """
        home = self._service.own_home_for(self._service.database.run_row(self._run))  # they are on its store
        recipe = self.recipe()
        rows = [
            row
            for row in queries.tasks(self._service.database, self._run)
            if recipe.experiments[row["experiment"]].checkpoint is not None and row["attempt"]
        ]
        return [
            found
            for row in rows[:MAX_TASKS]
            for found in _checkpoints(
                home.checkpoints_uri(self._run, row["experiment"], row["number"]),
                {"experiment": row["experiment"], "task": row["number"]},
            )
        ]

    def machines(self) -> list[dict[str, Any]]:
        """Every machine that was ever rented for it, in order; none of a run on this machine.

        Returns:
            ``cluster``, ``provider``, ``name``, ``id``, ``type``, ``zone``, ``spot``, ``usd_per_hour``,
            ``cost_usd``, ``started_at``, ``ended_at`` and ``reason`` (why it is over).
        """
        rows = self._service.database.clusters_of(self._run)
        if not rows:
            return []
        from trainmaster.cluster.record import readable

        now = time.time()
        return [
            {
                "cluster": record.id,
                "provider": record.provider_of(machine),
                "name": record.name_of(machine.seat),
                "id": machine.id,
                "type": machine.rental.instance_type or "host",
                "zone": machine.zone,
                "spot": machine.rental.spot,
                "usd_per_hour": machine.rental.usd_per_hour,
                "cost_usd": machine.billed_usd(now),
                "started_at": machine.started_at,
                "ended_at": machine.ended_at,
                "reason": machine.reason,
            }
            for record in readable(rows, lambda _: None)
            for machine in record.machines
            if machine.id
        ]

    def searches(self) -> list[dict[str, Any]]:
        """Its searches.

        Returns:
            Of each ``experiment``: ``metric``, ``goal``, ``value`` (which one of a task counts), ``trials``
            (with a value: ``task``, ``parameters``, ``state``, ``value``), ``best`` (the numbers of the best
            tasks that were not pruned, the best one first), ``measure`` and ``importance`` (shares of the
            parameters).
        """
        found = []
        for search in self._service.search_results(self._run):
            measure, shares = search.importance()
            trials: list[dict[str, Any]] = [
                {
                    "task": trial.number,
                    "parameters": dict(trial.parameters),
                    "state": trial.state.name,
                    "value": trial.value,
                }
                for trial in search.trials
                if trial.value is not None and math.isfinite(trial.value)
            ]
            sign = 1 if search.goal.value == "min" else -1
            complete = [trial for trial in trials if trial["state"] not in ("FAILED", "PRUNED")]
            ranked = sorted(complete, key=lambda trial: (sign * trial["value"], trial["task"]))
            found.append(
                {
                    "experiment": search.experiment,
                    "metric": search.metric,
                    "goal": search.goal.value,
                    "value": search.counts,
                    "trials": trials,
                    "best": [trial["task"] for trial in ranked[:BEST_TRIALS]],
                    "measure": measure,
                    "importance": dict(sorted(shares.items(), key=lambda item: -item[1])),
                }
            )
        return found

    def usage(self, points: int | None = None) -> dict[str, Any]:
        """What ``members`` used, and what operating systems saw: of this ``machine`` or its ``nodes``."""
        from trainmaster.providers.capabilities import capabilities_of
        from trainmaster.service.runs.usage_curves import POINTS, machine_curves, node_curves, usage_curves

        most = points or POINTS
        row = self._service.database.run_row(self._run)
        files = self._service.files_of(self._run)
        database, machine, nodes = self._service.database, None, []
        if capabilities_of(row["provider"]).is_here:
            until = row["closed_at"] or row["ended_at"] or time.time()
            machine = machine_curves(self._service.home_of(self._run), row["created_at"], until, most)
        else:
            nodes = node_curves(database, files, self._run, self._places, most)
        members = usage_curves(database, files, self._run, most)
        return {"members": members, "machine": machine, "nodes": nodes}


def _checkpoints(uri: str, of: dict[str, Any]) -> Iterable[dict[str, Any]]:
    from trainmaster.artifacts import CheckpointSeries

    series = CheckpointSeries(uri)
    for number in reversed(series.complete()):
        manifest = series.manifest(number)
        if manifest is not None:
            yield {
                **of,
                "checkpoint": number,
                "uri": series.uri_of(number),
                "attempt": manifest.extra.get("attempt"),
                "created_at": manifest.created_at.timestamp(),
                "size_bytes": manifest.total_bytes,
            }
