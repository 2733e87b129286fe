"""`RunNews`: what happens to a run, as plain data, from its driver or from the stream of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Note
from trainmaster.spec.states import EndReason, State

#: A run with more tasks than this shows no lines of the tasks' own output.
MAX_ECHOED_TASKS = 4
#: Failed tasks that are told one by one.
MAX_TOLD_FAILURES = 5
#: Running tasks shown one by one.
MAX_SHOWN_TASKS = 8
#: Attempts that end so end with their machine.
LOST = (EndReason.NODE_LOST, EndReason.PREEMPTED)


@dataclass(frozen=True, slots=True)
class SetupBegun:
    """An experiment's ``setup`` begins: it may take minutes."""

    experiment: str


@dataclass(frozen=True, slots=True)
class ExperimentMoved:
    """An experiment begins (RUNNING) or is over (DONE); ``tally`` counts its tasks by what became of them."""

    experiment: str
    state: State
    reason: EndReason | None
    message: str
    total: int
    tally: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended.

    Attributes:
        output: the last lines that its first member wrote, where they are shown.
        is_again: another one follows.
        is_lost: it ended with its machine, of which a note tells.
        parameters: of the task, where several tasks may differ in them.
    """

    experiment: str
    task: int
    attempt: int
    reason: EndReason
    message: str
    output: tuple[str, ...]
    is_again: bool
    is_lost: bool
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MoreFailures:
    """From now on no failed attempt is reported."""

    run: str


@dataclass(frozen=True, slots=True)
class AttemptResumed:
    """An attempt goes on from a step, as it says itself; the one before had come to ``came_to``.

    Without ``has_checkpoint`` there was none to go on from: it begins again.
    """

    experiment: str
    task: int
    from_step: float
    came_to: float | None
    has_checkpoint: bool = True


#: What is worth telling.
Happening = SetupBegun | ExperimentMoved | AttemptEnded | MoreFailures | AttemptResumed | Note


@dataclass(frozen=True, slots=True)
class ExperimentView:
    """How far an experiment is.

    Attributes:
        name, state, reason: its own.
        total: tasks that there are.
        tally: of them by what became of them.
        left_s: of several tasks, seconds until all will be over, if known.
        is_service: its tasks are replicas, which do not end by themselves.
    """

    name: str
    state: State
    reason: EndReason | None
    total: int
    tally: Mapping[str, int]
    left_s: float | None
    is_service: bool = False


@dataclass(frozen=True, slots=True)
class TaskView:
    """How far a running task is, as it tells itself; what it does not tell is None."""

    experiment: str
    task: int
    metrics: Mapping[str, object]
    steps_per_s: float | None
    examples_per_s: float | None
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class RunView:
    """How far a run is: its experiments in order, and the first of its running tasks.

    Attributes:
        is_queued: it waits for what other runs hold.
        best: of each search its metric, and the best tasks: ``task``, ``value``, ``parameters``.
        course: its phases and when it ends, as ``status --json`` has them; empty where none are followed.
    """

    run: str
    state: State
    is_queued: bool
    experiments: tuple[ExperimentView, ...]
    tasks: tuple[TaskView, ...]
    best: Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]
    course: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunNews:
    """What has happened since the last one, if anything, and now and then how far the run is.

    Attributes:
        view: None while it is not due.
    """

    happened: tuple[Happening, ...]
    view: RunView | None
    is_over: bool
