"""What must hold of a simulated run: after every commit, and at its end."""

from __future__ import annotations

from dataclasses import fields, replace

from trainmaster.control.loop.run_state import ExperimentState, RunState
from trainmaster.control.task.layout import attempt_id
from trainmaster.executors.base import Phase
from trainmaster.spec.states import WHOLE, EndReason, State
from trainmaster.testing.simulated_node import SimulatedNode
from trainmaster.testing.simulated_plan import SchedulePlan
from trainmaster.testing.simulated_store import Row, SimulatedStore
from trainmaster.testing.simulated_world import ViolationError, World


def check_run_state(run_state: RunState, database: SimulatedStore) -> None:
    """The run in memory is what a new controller would load; its counters add up."""
    for experiment in run_state.experiments.values():
        counts = experiment.tally()
        if counts["total"] != sum(counts.values()) - counts["total"] or min(counts.values()) < 0:
            raise ViolationError(f"{experiment.name}: counters do not add up: {counts}")
    loaded = database.run_state()
    for name, experiment in run_state.experiments.items():
        other = loaded.experiments[name]
        if experiment.first_bad and other.first_bad:  # only a living controller knows the message
            other.first_bad = replace(other.first_bad, message=experiment.first_bad.message)
        if experiment.approval is None:
            other.approval = None  # it was given, and not read yet
        if experiment != other:
            raise ViolationError(f"{name}: memory and store differ: {_difference(experiment, other)}")
    if (run_state.state, run_state.reason) != (loaded.state, loaded.reason):
        raise ViolationError(f"memory says {run_state.state} {run_state.reason}, the store {loaded.state}")


def _difference(ours: ExperimentState, loaded: ExperimentState) -> str:
    for number, task in ours.live.items():
        other = loaded.live.get(number)
        if other is None:
            return f"task {number} is {task.state} in memory only"
        for item in fields(task):
            if getattr(task, item.name) != getattr(other, item.name):
                values = f"{getattr(task, item.name)!r}, recorded {getattr(other, item.name)!r}"
                return f"task {number} ({task.state}): {item.name} is {values}"
    return f"{ours}\n{loaded}"


def check_end(
    database: SimulatedStore,
    node: SimulatedNode,
    plan: SchedulePlan,
    world: World,
    *,
    kills: int,
) -> None:
    """Nothing is left running, everything has ended for a reason, and is counted once."""
    for gang in node.gangs.values():
        if gang.phase is not Phase.EXITED:
            raise ViolationError(f"{gang.request.attempt} is still {gang.phase} at the end")
        if not kills:
            raise ViolationError(f"{gang.request.attempt} was never forgotten")
    if node.used():
        raise ViolationError(f"{node.used()} slots are still taken at the end")
    for key, row in database.tasks.items():
        if row["state"] is not State.DONE:
            raise ViolationError(f"{key} is {row['state']} at the end")
        good = row["reason"] in WHOLE
        if good != bool(row["model_uri"]):
            raise ViolationError(f"{key}: {row['reason']}, its model: {row['model_uri']}")
        if good and world.models.get(key) != row["attempt"]:
            raise ViolationError(f"{key} SUCCEEDED with the model of attempt {world.models.get(key)}")
        _check_kept(key, row, world)
        if row["reason"] is EndReason.UNTIL and not plan.experiments[key[0]].until:
            raise ViolationError(f"{key} is UNTIL, but nothing ended it early")
        if row["reason"] is EndReason.PRUNED and not plan.experiments[key[0]].pruned:
            raise ViolationError(f"{key} is PRUNED, but nobody judged it")
        numbers = sorted(n for name, task, n in database.attempts if (name, task) == key)
        if numbers != list(range(1, row["attempt"] + 1)):
            raise ViolationError(f"{key}: attempts {numbers}")
        for number in numbers:
            _check_attempt(database, node, plan, (*key, number))
    _check_experiments(database)
    _check_events(database)


def _check_kept(key: tuple[str, int], row: Row, world: World) -> None:
    """A model that could not be published is on this machine's disk, or was named where it is."""
    if row["kept_model"] is not None and world.kept.get(key) != row["kept_model"]:
        raise ViolationError(
            f"{key}: the model of attempt {row['kept_model']} is said to be here, and is not"
        )
    is_named = (*key, row["attempt"]) in world.unkept
    is_unsaved = "its model could not be saved: the store" in row["message"]
    if is_unsaved and row["kept_model"] != row["attempt"] and not is_named:
        raise ViolationError(f"{key}: its model is given up: {row['message']}")


def _check_attempt(
    database: SimulatedStore, node: SimulatedNode, plan: SchedulePlan, key: tuple[str, int, int]
) -> None:
    reason = database.attempts[key]["reason"]
    if reason is None:
        raise ViolationError(f"{key} was never closed")
    won = node.won.get(attempt_id(plan.run, *key))
    if reason is EndReason.SUCCEEDED and won is not True:
        raise ViolationError(f"{key} is called SUCCEEDED, but its members did not all end well")
    # What ended well may be lost with its node before it was saved.
    kept_or_lost = (EndReason.SUCCEEDED, EndReason.INTERNAL, EndReason.NODE_LOST)
    if won and reason not in kept_or_lost and not node.was_lost:
        raise ViolationError(f"{key} is called {reason}, but its members all ended well")


def _check_experiments(database: SimulatedStore) -> None:
    if database.run["state"] is not State.DONE:
        raise ViolationError(f"the run is {database.run['state']} at the end")
    for name, row in database.experiments.items():
        if row["state"] is not State.DONE:
            raise ViolationError(f"{name} is {row['state']} at the end")
        rows = [task for (experiment, _), task in database.tasks.items() if experiment == name]
        if len(rows) != row["tasks_total"] and row["rest_reason"] is None:
            raise ViolationError(f"{name}: {len(rows)} of {row['tasks_total']} tasks, no reason for the rest")
        good = len(rows) == row["tasks_total"] and all(r["reason"].is_success for r in rows)
        refused = row["reason"] is EndReason.GATE_REFUSED
        if refused and database.shapes[name].gate is None:
            raise ViolationError(f"{name} is refused by a gate that it does not have")
        if good != (refused or row["reason"] is EndReason.SUCCEEDED):
            raise ViolationError(f"{name} is {row['reason']}, its tasks: {[r['reason'] for r in rows]}")
        before = [database.experiments[other]["reason"] for other in database.shapes[name].after]
        bad = any(reason is not EndReason.SUCCEEDED for reason in before)
        if row["reason"] is EndReason.SKIPPED and not bad:
            raise ViolationError(f"{name} is SKIPPED for nothing")
        if bad and rows:
            raise ViolationError(f"{name} began, but what it depends on did not succeed")
        stopped = row["reason"] in (EndReason.CANCELLED, EndReason.BUDGET)
        if bad and row["reason"] is not EndReason.SKIPPED and not stopped:
            raise ViolationError(f"{name} is {row['reason']}, but it should have been skipped")
    reasons = {row["reason"] for row in database.experiments.values()} - {EndReason.SUCCEEDED}
    if (database.run["reason"] is EndReason.SUCCEEDED) != (not reasons):
        raise ViolationError(f"the run is {database.run['reason']}, its experiments {reasons}")


def _check_events(database: SimulatedStore) -> None:
    """Replay the events: they alone lead to the states that are recorded."""
    states: dict[tuple[object, ...], State] = {}
    for event in database.events:
        if event["kind"] == "note":
            continue
        key: tuple[object, ...] = (event["kind"], event.get("experiment"), event.get("task"))
        before = states.get(key, State.WAITING)
        if event["before"] is not None and event["before"] is not before:
            raise ViolationError(f"{key}: an event from {event['before']}, but it was {before}")
        states[key] = event["after"]
    rows: dict[tuple[object, ...], dict[str, object]] = {("run", None, None): database.run}
    rows.update({("task", *key): row for key, row in database.tasks.items()})
    rows.update({("experiment", name, None): row for name, row in database.experiments.items()})
    for key, row in rows.items():
        if states.get(key, State.WAITING) is not row["state"]:
            raise ViolationError(f"{key} is {row['state']}, its events say {states.get(key)}")
