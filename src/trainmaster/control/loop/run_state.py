"""What a control loop holds in memory of its run: only what is not over yet.

A `RunState` is made from the database's rows and changed only by `apply`, with the very changes that
the database commits; so the two never disagree. Finished tasks are counted, not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.control.decide.queue_wait import QueueWait
from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import (
    Change,
    EndpointChange,
    ExperimentChange,
    Note,
    Progress,
    Promotion,
    QueueChange,
    ReplicaChange,
    RunChange,
    TaskChange,
)
from trainmaster.spec.facts import Approval, AwaitedApproval
from trainmaster.spec.parameter import ParameterValue
from trainmaster.spec.states import EndReason, State, may_follow

if TYPE_CHECKING:
    from trainmaster.control.measure.progress import TaskProgress
    from trainmaster.spec.gate import Gate, GateResult


@dataclass(slots=True)
class Task:
    """A task that is not DONE.

    Attributes:
        attempt: number of the present (or last) attempt, 0 before the first.
        retries_used: attempts that cost one of the recipe's retries.
        free_restarts: attempts lost to nodes or preemption.
        not_before: Unix seconds before which no new attempt starts.
        tries: how often the present stage, or what is to be saved now, has failed; all of them passing.
        try_at: Unix seconds before which that does not begin anew; 0: no failure that is counted waits.
        saving_usd: what machines have cost that waited for nothing but that.
        kept_model: attempt whose model lies here, on the driver's disk, as it could not be published.
        kept_checkpoint: the same of its last checkpoint; the next attempt goes on from it.
        end_reason: how the attempt ended (RECOVERING, SAVING) or why it must (STOPPING).
        message: what goes with ``end_reason``.
        restored: checkpoint the present attempt started from.
        bad_checkpoints: never restored again: an attempt died at once from them.
        metrics: last value per key of rank 0.
        parameters: what it was planned with.
        parent: number of the task whose last checkpoint its first attempt starts from.
        started_at: Unix seconds, start of the present attempt's members.
        opened_at: when an earlier driver opened that, by the clock of the record; else 0. Only read there.
        doing: the part of its staging that is under way, as `TaskContext.timed` calls it; never recorded.
    """

    experiment: str
    number: int
    state: State = State.WAITING
    attempt: int = 0
    retries_used: int = 0
    free_restarts: int = 0
    not_before: float = 0.0
    tries: int = 0
    try_at: float = 0.0
    saving_usd: float = 0.0
    kept_model: int | None = None
    kept_checkpoint: int | None = None
    end_reason: EndReason | None = None
    message: str = ""
    restored: int | None = None
    bad_checkpoints: tuple[int, ...] = ()
    metrics: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    parent: int | None = None
    started_at: float | None = None
    opened_at: float = 0.0
    doing: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Experiment and number: the name of the task within its run."""
        return (self.experiment, self.number)


@dataclass(frozen=True, slots=True)
class FirstBad:
    """A task that ended without success; the message is empty if it ended under an earlier controller."""

    task: int
    reason: EndReason
    message: str = ""

    @property
    def order(self) -> tuple[bool, int]:
        """The first one counts: what failed by itself comes before what a person has ended."""
        return self.reason is EndReason.CANCELLED, self.task


@dataclass(slots=True)
class ExperimentState:
    """An experiment and its tasks that are not DONE.

    Attributes:
        after: experiments that must have SUCCEEDED before it starts.
        total: how many tasks it has.
        window: how many tasks may be under way at once (running, and a few waiting for slots).
        created: how many tasks have a row; the next new task has this number.
        live: tasks with a row that are not DONE, by number.
        ended: how many tasks ended, per reason.
        first_bad: the task that did not succeed which is told; see `FirstBad.order`.
        rest_reason: how the tasks without a row ended.
        gate: what its best model must reach.
        verdict: what the gate says of tasks that have all succeeded; looked up when it is needed.
        promotes: what becomes of its best model when it has succeeded.
        results: tasks that are DONE, by number, with the reason in ``end_reason``; kept only where a search
            learns from them.
        serves: its tasks are replicas of a service: it is over when somebody ends it.
        until_words: what `until` says of the last task that has succeeded; empty where it says nothing.
        needs_approval: a person must approve that it begins.
        approval: what a person has said; None as yet.
        last_ends: reason and message of its replicas that are DONE, until they have been looked at.
    """

    name: str
    after: tuple[str, ...]
    total: int
    window: int
    state: State = State.WAITING
    reason: EndReason | None = None
    message: str = ""
    created: int = 0
    live: dict[int, Task] = field(default_factory=dict)
    ended: Counter[EndReason] = field(default_factory=Counter)
    first_bad: FirstBad | None = None
    rest_reason: EndReason | None = None
    results: dict[int, Task] | None = None
    promotes: Promotion | None = None
    gate: Gate | None = None
    verdict: GateResult | None = field(default=None, compare=False)
    serves: bool = False
    until_words: str = field(default="", compare=False)
    needs_approval: bool = False
    approval: Approval | None = None
    last_ends: dict[int, tuple[EndReason, str]] = field(default_factory=dict, compare=False)

    @property
    def is_exhausted(self) -> bool:
        """True if every task has ended."""
        return not self.live and self.created >= self.total and not self.serves

    def note_bad(self, bad: FirstBad) -> None:
        """One more of its tasks did not succeed."""
        if self.first_bad is None or bad.order < self.first_bad.order:
            self.first_bad = bad

    @property
    def awaits_verdict(self) -> bool:
        """True if only its gate says how it ends, and has not been asked."""
        is_open = self.state in (State.RUNNING, State.STOPPING) and self.is_exhausted
        return is_open and self.first_bad is None and self.gate is not None and self.verdict is None

    @property
    def awaits_approval(self) -> bool:
        """True if a person was asked (which is its message) and has not answered."""
        is_asked = self.state is State.WAITING and bool(self.message)
        return self.needs_approval and is_asked and self.approval is None

    def tally(self) -> dict[str, int]:
        """Counters as the command line shows them; they sum to ``total``."""
        return tally(
            self.total,
            self.ended,
            running=sum(task.state in RUNNING_STATES for task in self.live.values()),
            rest_reason=self.rest_reason,
            created=self.created,
        )


@dataclass(slots=True)
class RunState:
    """A run as its control loop sees it; experiments in topological order.

    Attributes:
        queue_wait: whether it waits for what other runs hold; the loop looks after it.
        course: its phases and when it ends, as ``status --json`` has them; empty where none are followed.
    """

    run: str
    experiments: dict[str, ExperimentState]
    state: State = State.WAITING
    reason: EndReason | None = None
    message: str = ""
    queue_wait: QueueWait = field(default_factory=QueueWait)
    course: Mapping[str, Any] = field(default_factory=dict)

    def live_tasks(self) -> list[Task]:
        """All tasks with a row that are not DONE."""
        return [task for experiment in self.experiments.values() for task in experiment.live.values()]

    def held_by_people(self) -> set[str]:
        """Experiments that do not begin before a person has approved that of them, or of one before them."""
        held: set[str] = set()
        for each in self.experiments.values():
            if each.awaits_approval or (each.state is State.WAITING and held.intersection(each.after)):
                held.add(each.name)
        return held

    def awaited_approval(self) -> AwaitedApproval | None:
        """What all that is left waits for; None if anything of it can go on."""
        open_ones = {each.name for each in self.experiments.values() if each.state is not State.DONE}
        if not open_ones or open_ones - self.held_by_people():
            return None
        return AwaitedApproval(tuple(each.name for each in self.experiments.values() if each.awaits_approval))

    def take_in(self, told: Mapping[tuple[str, int], TaskProgress]) -> list[Change]:
        """What running tasks have reported that is new, by their keys; what is to be written down of it."""
        changes: list[Change] = []
        for (experiment, number), progress in told.items():
            task = self.experiments[experiment].live.get(number)
            if progress.changed and task is not None and task.state is State.RUNNING:
                progress.changed = False
                change = Progress(experiment, number, {"metrics": {**task.metrics, **progress.metrics}})
                self.apply(change)
                changes.append(change)
        return changes

    def apply(self, change: Change) -> None:
        """Carry out one change.

        Raises:
            AssertionError: the transition table does not allow it: a bug in a decision.
        """
        match change:
            case TaskChange():
                self._apply_task(change)
            case ExperimentChange():
                experiment = self.experiments[change.experiment]
                experiment.state = change.after
                experiment.reason = change.reason
                experiment.message = change.message
                experiment.rest_reason = change.rest_reason
            case RunChange():
                self.state, self.reason, self.message = change.after, change.reason, change.message
            case Progress():
                task = self.experiments[change.experiment].live[change.task]
                _set_fields(task, change.fields)
            case Note() | QueueChange() | EndpointChange() | ReplicaChange():
                pass

    def _apply_task(self, change: TaskChange) -> None:
        experiment = self.experiments[change.experiment]
        if change.creates:
            if change.task != experiment.created:
                raise AssertionError(
                    f"{change.experiment}: task {change.task} created after {experiment.created}"
                )
            experiment.created += 1
            experiment.live[change.task] = Task(change.experiment, change.task)
        task = experiment.live[change.task]
        if task.state is not change.before or not may_follow(change.before, change.after):
            raise AssertionError(f"{task.key}: {task.state} cannot become {change.before} -> {change.after}")
        task.state = change.after
        task.attempt = change.attempt
        task.message = change.message or task.message
        _set_fields(task, change.fields)
        if change.after is State.DONE:
            if change.reason is None:
                raise AssertionError(f"{task.key}: DONE without a reason")
            del experiment.live[change.task]
            experiment.ended[change.reason] += 1
            if experiment.serves:
                experiment.last_ends[change.task] = (change.reason, change.message)
            if experiment.results is not None:
                task.end_reason, task.message = change.reason, change.message
                experiment.results[change.task] = task
            if change.reason.is_whole:
                experiment.until_words = change.message
            if not change.reason.is_success:
                experiment.note_bad(FirstBad(change.task, change.reason, change.message))


RUNNING_STATES = frozenset({State.STAGING, State.RUNNING, State.RECOVERING, State.SAVING, State.STOPPING})


def tally(
    total: int,
    ended: Mapping[EndReason, int],
    *,
    running: int,
    rest_reason: EndReason | None,
    created: int,
) -> dict[str, int]:
    """Counters of an experiment's tasks that sum to ``total``.

    Args:
        total: how many tasks there are.
        ended: tasks with a row that are DONE, per reason.
        running: tasks with a row that are between STAGING and STOPPING.
        rest_reason: how the tasks without a row ended, None while they wait.
        created: tasks with a row.
    """
    counts = Counter(ended)
    if rest_reason is not None:
        counts[rest_reason] += total - created
    for done in (EndReason.DRAINED, EndReason.UNTIL):  # they have done what they were for
        counts[EndReason.SUCCEEDED] += counts.pop(done, 0)
    apart = (EndReason.SUCCEEDED, EndReason.PRUNED, EndReason.SKIPPED, EndReason.CANCELLED)
    return {
        "total": total,
        "succeeded": counts[EndReason.SUCCEEDED],
        "failed": sum(count for reason, count in counts.items() if reason not in apart),
        "running": running,
        "waiting": total - sum(counts.values()) - running,
        "pruned": counts[EndReason.PRUNED],
        "skipped": counts[EndReason.SKIPPED],
        "cancelled": counts[EndReason.CANCELLED],
    }


#: What of a Task the database has.
RECORDED = tuple(name for name in Task.__slots__ if name not in ("opened_at", "doing"))
# Columns of the database that a Task mirrors; the others are written and forgotten.
_MIRRORED = frozenset(RECORDED) - {"experiment", "number", "state", "attempt", "message"}


def _set_fields(task: Task, fields: Mapping[str, object]) -> None:
    for name, value in fields.items():
        if name in _MIRRORED:
            setattr(task, name, value)
