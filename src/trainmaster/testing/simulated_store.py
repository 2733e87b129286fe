"""A store in memory with the semantics of `trainmaster.db.Database`, and a judge of every write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.control.loop.loading import Shape, run_state_from_rows
from trainmaster.control.loop.run_state import RunState
from trainmaster.db.changes import (
    Change,
    EndpointChange,
    ExperimentChange,
    Progress,
    QueueChange,
    ReplicaChange,
    RunChange,
    TaskChange,
)
from trainmaster.db.events import change_event, json_column
from trainmaster.db.leases import LEASE_S, Lease
from trainmaster.db.task_rows import JSON_COLUMNS
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.facts import Approval
from trainmaster.spec.states import MAX_FREE_RESTARTS, WHOLE, EndReason, State, may_follow
from trainmaster.testing.simulated_world import ViolationError

Row = dict[str, Any]

_NEW_TASK: Row = {
    "state": State.WAITING, "reason": None, "message": "", "parameters": "{}", "attempt": 0,
    "retries_used": 0, "free_restarts": 0, "not_before": 0, "tries": 0, "try_at": 0, "saving_usd": 0,
    "kept_model": None, "kept_checkpoint": None, "end_reason": None, "parent": None,
    "restored": None, "bad_checkpoints": "[]", "metrics": "{}", "model_uri": None, "started_at": None,
    "ended_at": None,
}  # fmt: skip


class SimulatedStore:
    """Rows of one run.

    Args:
        run: its id.
        shapes: its experiments in topological order.
        totals: number of tasks per experiment.
        retries: what the recipe allows, per experiment.

    Attributes:
        run: row of the run.
        experiments: rows by name.
        tasks: rows by experiment and number.
        attempts: rows by experiment, task and number.
        events: in order.
        answers: what people have said of experiments that need their approval.
        seen: how often each transition, end reason of a task (``DONE/OOM``), of an attempt
            (``attempt/OOM``), of tasks without a row (``rest/SKIPPED``) and of the run was written.
    """

    def __init__(
        self, run: str, shapes: Mapping[str, Shape], totals: Mapping[str, int], retries: Mapping[str, int]
    ) -> None:
        self.run: Row = {
            "id": run, "state": State.WAITING, "reason": None, "message": "", "stop_wanted": None,
            "lease_owner": None, "lease_token": 0, "lease_expires_at": 0.0, "turn": 0,
            "queued_for": None, "queued_s": 0.0,
        }  # fmt: skip
        self.shapes = shapes
        self.experiments: dict[str, Row] = {
            name: {
                "name": name, "state": State.WAITING, "reason": None, "message": "",
                "tasks_total": totals[name], "rest_reason": None,
            }
            for name in shapes
        }  # fmt: skip
        self.tasks: dict[tuple[str, int], Row] = {}
        self.attempts: dict[tuple[str, int, int], Row] = {}
        self.events: list[Row] = [{"kind": "run", "before": None, "after": State.WAITING}]
        self.seen: Counter[str] = Counter()
        self.answers: dict[str, Approval] = {}
        self.cancelled: dict[str, str] = {}
        self._retries = retries
        self._spent: Counter[tuple[str, int]] = Counter()
        self._freed: Counter[tuple[str, int]] = Counter()

    # --- leases ----------------------------------------------------------------------------------

    def acquire(self, owner: str, now: float, *, dead: bool) -> Lease | None:
        """Take the lease; None if its owner may live. ``dead``: everybody knows that it does not."""
        row = self.run
        if row["lease_owner"] and not dead and row["lease_expires_at"] > now:
            return None
        row["lease_owner"], row["lease_expires_at"] = owner, now + LEASE_S
        row["lease_token"] += 1
        row["queued_for"] = None
        return Lease(row["id"], row["lease_token"], owner, row["turn"])

    def renew(self, lease: Lease, now: float) -> EndReason | None:
        """See `Database.renew`."""
        self._check_lease(lease, now)
        return self.stop_wanted(lease.run)

    def release(self, lease: Lease, now: float) -> None:
        """See `Database.release`."""
        if lease.token == self.run["lease_token"]:
            self.run["lease_owner"], self.run["lease_expires_at"] = None, now

    def want_stop(self, reason: EndReason) -> None:
        """See `Database.want_stop`."""
        self.run["stop_wanted"] = reason

    def stop_wanted(self, run: str) -> EndReason | None:
        """See `Database.stop_wanted`."""
        wanted: EndReason | None = self.run["stop_wanted"]
        return wanted

    def approvals(self, run: str) -> dict[str, Approval]:
        """See `Database.approvals`."""
        return dict(self.answers)

    def cancelled_tasks(self, run: str) -> dict[str, str]:
        """See `Database.cancelled_tasks`."""
        return dict(self.cancelled)

    def cancel_task(self, name: str) -> None:
        """A person wants a task ended; see `run_facts.cancel_tasks`."""
        if self.run["state"] is not State.DONE:
            self.cancelled[name] = "ada"

    def answer(self, experiment: str, said: Approval) -> bool:
        """A person says something; False if that is not asked (any more)."""
        row = self.experiments[experiment]
        if row["state"] is not State.WAITING or not row["message"] or experiment in self.answers:
            return False
        self.answers[experiment] = said
        self.events.append({"kind": "note", "experiment": experiment})
        self.seen["approved" if said.is_given else "denied"] += 1
        return True

    def _check_lease(self, lease: Lease, now: float) -> None:
        if lease.token != self.run["lease_token"] or self.run["lease_owner"] is None:
            raise LeaseLostError("stale")
        self.run["lease_expires_at"] = now + LEASE_S

    def _advance(self, lease: Lease, now: float) -> None:
        self._check_lease(lease, now)
        _require(lease.turn == self.run["turn"], f"turn {lease.turn} is over: it is turn {self.run['turn']}")
        self.run["turn"] += 1
        lease.turn += 1

    # --- transitions -----------------------------------------------------------------------------

    def commit(self, lease: Lease, changes: Sequence[Change], now: float) -> None:
        """See `Database.commit`. Whatever the rules forbid raises `ViolationError`."""
        self._advance(lease, now)
        for change in changes:
            match change:
                case TaskChange():
                    self._write_task(change, now)
                case Progress():
                    row = self.tasks[change.experiment, change.task]
                    if change.fields.get("tries", 0) > row["tries"]:
                        self.seen[f"{row['state']}/again"] += 1
                    self._set(row, change.fields)
                    _require(row["free_restarts"] <= MAX_FREE_RESTARTS, "more free restarts than there are")
                case ExperimentChange():
                    self._write_experiment(change)
                case RunChange():
                    self._write_run(change, now)
                case QueueChange():
                    waited = self.run["queued_for"] is not None or change.is_undriven
                    _require(waited or not change.waited_s, "it has waited, but nobody has said so")
                    self.run["queued_for"] = change.waits_for
                    self.run["queued_s"] += change.waited_s
                    self.seen["queued" if change.waits_for else "unqueued"] += 1
                case _:
                    pass
            if not isinstance(change, Progress | QueueChange | EndpointChange | ReplicaChange):
                self.events.append(change_event(lease.run, change, now))

    def requeue(self, lease: Lease, now: float) -> None:
        """See `Database.requeue`."""
        self._advance(lease, now)
        self._event("run", self.run["state"], State.WAITING, reason=self.run["reason"])
        if self.run["state"] is State.DONE:
            self.cancelled.clear()
        self.run |= {"state": State.WAITING, "reason": None, "message": "", "stop_wanted": None}
        for name, row in self.experiments.items():
            if row["reason"] is not EndReason.SUCCEEDED and row["state"] is not State.WAITING:
                self._event("experiment", row["state"], State.WAITING, name, reason=row["reason"])
                row |= {"state": State.WAITING, "reason": None, "message": "", "rest_reason": None}
                if name in self.answers and not self.answers[name].is_given:
                    del self.answers[name]
        order = {name: ordinal for ordinal, name in enumerate(self.shapes)}
        for key in sorted(self.tasks, key=lambda key: (order[key[0]], key[1])):
            row = self.tasks[key]
            if row["state"] is State.DONE and not row["reason"].is_success:
                self.seen["DONE>WAITING"] += 1
                self._spent[key] = self._freed[key] = 0
                self._event("task", State.DONE, State.WAITING, *key, reason=row["reason"])
                row |= {
                    "state": State.WAITING, "reason": None, "message": "", "retries_used": 0,
                    "free_restarts": 0, "not_before": 0, "tries": 0, "try_at": 0, "saving_usd": 0,
                    "end_reason": None, "ended_at": None,
                }  # fmt: skip

    def record_saved(self, key: tuple[str, int], uri: str) -> None:
        """See `Database.record_saved`."""
        row = self.tasks[key]
        row |= {"reason": EndReason.SUCCEEDED, "message": "", "model_uri": uri, "kept_model": None}
        self.attempts[(*key, row["attempt"])]["reason"] = EndReason.SUCCEEDED
        self.seen["kept/saved"] += 1
        if self.shapes[key[0]].gate is not None:
            return
        whole = self.experiments[key[0]]
        rows = [task for (experiment, _), task in self.tasks.items() if experiment == key[0]]
        if len(rows) == whole["tasks_total"] and all(
            task["state"] is State.DONE and task["reason"].is_success for task in rows
        ):
            whole |= {"state": State.DONE, "reason": EndReason.SUCCEEDED, "message": "", "rest_reason": None}
        if self.run["state"] is State.DONE and all(
            each["reason"] is EndReason.SUCCEEDED for each in self.experiments.values()
        ):
            self.run |= {"reason": EndReason.SUCCEEDED, "message": ""}

    def _write_task(self, change: TaskChange, now: float) -> None:
        key = (change.experiment, change.task)
        if change.creates:
            _require(key not in self.tasks, f"{key} is created twice")
            self.tasks[key] = dict(_NEW_TASK)
        row = self.tasks[key]
        step = f"{change.before}>{change.after}"
        _require(row["state"] is change.before, f"{key}: {step}, but it is {row['state']}")
        _require(may_follow(change.before, change.after), f"{key}: {step} is not in the table")
        self.seen[step] += 1
        if change.closes:
            self._close(key, change)
        if change.opens:
            _require(change.attempt == row["attempt"] + 1, f"{key}: a gap before attempt {change.attempt}")
            before = self.attempts.get((*key, change.attempt - 1))
            _require(before is None or before["reason"] is not None, f"{key}: two attempts are open")
            _require(now >= row["not_before"], f"{key}: retried before it had waited")
            self.attempts[(*key, change.attempt)] = {"opened_at": now, "reason": None}
            row["attempt"] = change.attempt
        _require(change.attempt == row["attempt"], f"{key}: {step} of attempt {change.attempt}")
        row["state"] = change.after
        done = change.after is State.DONE
        _require(not done or change.reason is not None, f"{key}: DONE without a reason")
        row["reason"] = change.reason if done else None
        if change.message or done:
            row["message"] = change.message
        self._set(row, change.fields)
        if done:
            self.seen[f"DONE/{change.reason}"] += 1
            last = self.attempts.get((*key, row["attempt"]))
            _require(last is None or last["reason"] is not None, f"{key}: DONE, but its attempt is open")
            if change.before is State.SAVING:
                self._require_exhausted(key, change)
            good = change.reason in WHOLE
            _require(good or not row["model_uri"], f"{key}: {change.reason}, but it has a model")

    def _close(self, key: tuple[str, int], change: TaskChange) -> None:
        closes = change.closes
        assert closes is not None
        number = self.tasks[key]["attempt"]
        _require(closes.number == number, f"{key}: closes {closes.number}, but {number} is under way")
        attempt = self.attempts[(*key, number)]
        _require(attempt["reason"] is None, f"{key}: attempt {number} is closed twice")
        attempt |= {"reason": closes.reason, "ended_at": closes.ended_at, "members": closes.members}
        self.seen[f"attempt/{closes.reason}"] += 1
        self._spent[key] += closes.reason.uses_retry
        self._freed[key] += closes.reason.is_free_retry
        most = self._retries[key[0]] + 1
        _require(self._spent[key] <= most, f"{key}: {self._spent[key]} bad attempts, {most} are allowed")
        _require(self._freed[key] <= MAX_FREE_RESTARTS + 1, f"{key}: restarted for ever")

    def _require_exhausted(self, key: tuple[str, int], change: TaskChange) -> None:
        """Its end was not wanted: it is not given up before all it may have was tried."""
        assert change.reason is not None
        if change.reason.uses_retry:
            spent, most = self._spent[key], self._retries[key[0]] + 1
            _require(spent == most, f"{key}: given up after {spent} of {most} attempts")
        if change.reason.is_free_retry:
            freed, most = self._freed[key], MAX_FREE_RESTARTS + 1
            _require(freed == most, f"{key}: given up after {freed} of {most} free attempts")

    def _write_experiment(self, change: ExperimentChange) -> None:
        row = self.experiments[change.experiment]
        _require(row["state"] is change.before, f"{change.experiment} is {row['state']}: {change}")
        _require(may_follow_whole(change.before, change.after), f"{change}: not allowed")
        if change.rest_reason and change.after is State.DONE:
            self.seen[f"rest/{change.rest_reason}"] += 1
        row["state"], row["reason"] = change.after, change.reason
        row["message"], row["rest_reason"] = change.message, change.rest_reason

    def _write_run(self, change: RunChange, now: float) -> None:
        row = self.run
        _require(row["state"] is change.before, f"the run is {row['state']}: {change}")
        _require(may_follow_whole(change.before, change.after), f"{change}: not allowed")
        row["state"], row["reason"], row["message"] = change.after, change.reason, change.message
        if change.after is State.DONE:
            self.seen[f"run/{change.reason}"] += 1
            row["ended_at"], row["stop_wanted"] = now, None

    def _set(self, row: Row, fields: Mapping[str, object]) -> None:
        for name, value in fields.items():
            _require(name in _NEW_TASK, f"there is no column {name}")
            row[name] = json_column(value) if name in JSON_COLUMNS else value

    def _event(
        self,
        kind: str,
        before: State,
        after: State,
        experiment: str | None = None,
        task: int | None = None,
        *,
        reason: EndReason | None = None,
    ) -> None:
        self.events.append(
            {"kind": kind, "before": before, "after": after, "reason": reason,
             "experiment": experiment, "task": task}
        )  # fmt: skip

    # --- reading -----------------------------------------------------------------------------------

    def run_state(self) -> RunState:
        """The run as a new controller loads it."""
        tallies: dict[tuple[str, State, EndReason | None], Row] = {}
        live: list[Row] = []
        over: list[Row] = []
        for (experiment, number), row in self.tasks.items():
            key = (experiment, row["state"], row["reason"])
            count = tallies.setdefault(
                key,
                {"experiment": experiment, "state": key[1], "reason": key[2], "tasks": 0, "first": number},
            )
            count["tasks"] += 1
            count["first"] = min(count["first"], number)
            (over if row["state"] is State.DONE else live).append(
                {"experiment": experiment, "number": number, **row}
            )
        live.sort(key=lambda row: (list(self.shapes).index(row["experiment"]), row["number"]))
        found = run_state_from_rows(
            self.shapes, self.run, self.experiments.values(), tallies.values(), live, over
        )
        for name, said in self.answers.items():
            found.experiments[name].approval = said
        return found


def may_follow_whole(before: State, after: State) -> bool:
    """The transitions of experiments and runs."""
    return after in _WHOLE.get(before, ())


_WHOLE = {
    State.WAITING: (State.WAITING, State.RUNNING, State.STOPPING),  # it asks somebody, and waits on
    State.RUNNING: (State.STOPPING, State.DONE),
    State.STOPPING: (State.DONE,),
}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ViolationError(message)
