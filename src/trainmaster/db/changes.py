"""What a control loop asks the database to write: plain data, many in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainmaster.dataclass import dataclass, field
from trainmaster.spec.states import EndReason, State

if TYPE_CHECKING:
    from trainmaster.spec.gate import Gate


@dataclass(frozen=True, slots=True)
class ClosedAttempt:
    """The end of an attempt, as its append-only row keeps it.

    Attributes:
        number: of the attempt, 1-based.
        reason: why it ended.
        message: what to tell the user, one line.
        started_at: Unix seconds, None if no member ever ran.
        ended_at: Unix seconds.
        restored: checkpoint number it started from, None for a fresh start.
        members: the members' exit records as JSON.
    """

    number: int
    reason: EndReason
    message: str
    started_at: float | None
    ended_at: float
    restored: int | None
    members: str


@dataclass(frozen=True, slots=True)
class TaskChange:
    """One transition of one task; becomes an update of its row and one event.

    Attributes:
        experiment: name.
        task: 0-based number.
        attempt: number of the attempt it concerns, 0 before the first.
        before: the state it leaves.
        after: the state it enters.
        reason: set when ``after`` is DONE, else why it moves (if there is a why).
        message: what to tell the user, one line.
        fields: columns of the task's row to set.
        creates: True if the task gets its row now (it left WAITING for the first time).
        opens: True if a new attempt (number ``attempt``) begins.
        closes: the end of the present attempt.
    """

    experiment: str
    task: int
    attempt: int
    before: State
    after: State
    reason: EndReason | None = None
    message: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    creates: bool = False
    opens: bool = False
    closes: ClosedAttempt | None = None


@dataclass(frozen=True, slots=True)
class Promotion:
    """What becomes of the best model of an experiment that has succeeded.

    Attributes:
        name: of the registered model whose next version it is.
        alias: that means this version from then on.
        metric: by which it is the best; None of an experiment with one task.
        smallest: the smallest value is the best.
        gate: that must hold when the alias moves.
    """

    name: str
    alias: str
    metric: str | None = None
    smallest: bool = False
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class ExperimentChange:
    """One transition of one experiment.

    Attributes:
        rest_reason: how its tasks without a row ended.
        promotes: done in the same transaction, and told as a note.
        topic: see `Note`.
    """

    experiment: str
    before: State
    after: State
    reason: EndReason | None = None
    message: str = ""
    rest_reason: EndReason | None = None
    promotes: Promotion | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class RunChange:
    """One transition of the run."""

    before: State
    after: State
    reason: EndReason | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """New columns for a task that stays in its state (its last metrics, ...): no event."""

    experiment: str
    task: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Note:
    """An event without a transition: something the user may want to know later.

    Attributes:
        message: one line.
        experiment, task, attempt: what it is about, if that is less than the run.
        reason: NODE_LOST if it tells of a machine that is lost: attempts that end with it need no word.
        topic: what it tells of, if anybody looks for that; see `trainmaster.spec.topics`.
        set_s: so far the clock of this machine was set meanwhile, which is no time of the run.
    """

    message: str
    experiment: str | None = None
    task: int | None = None
    attempt: int | None = None
    reason: EndReason | None = None
    topic: str | None = None
    set_s: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The run begins to wait for what other runs hold, waits for something else, or no more: no event.

    Attributes:
        waits_for: as JSON; None if it waits no more.
        waited_s: seconds of the wait that is over, else 0.
        is_undriven: it waited for nothing but a driver.
    """

    waits_for: str | None
    waited_s: float = 0.0
    is_undriven: bool = False


@dataclass(frozen=True, slots=True)
class EndpointChange:
    """New columns of the endpoint of an experiment that serves: no event."""

    experiment: str
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """New columns of the replica that a task is; it gets its row with the first of them: no event."""

    experiment: str
    task: int
    fields: Mapping[str, object]


#: Those that become events.
EventChange = TaskChange | ExperimentChange | RunChange | Note
Change = EventChange | Progress | QueueChange | EndpointChange | ReplicaChange
