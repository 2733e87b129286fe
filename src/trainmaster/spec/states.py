"""The states of a task and the reasons for its end: the transition table is data."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Where a task stands. Experiments and runs use WAITING, RUNNING, STOPPING and DONE."""

    WAITING = "WAITING"
    PLANNED = "PLANNED"
    ACQUIRING = "ACQUIRING"
    STAGING = "STAGING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    SAVING = "SAVING"
    STOPPING = "STOPPING"
    DONE = "DONE"


class EndReason(StrEnum):
    """Why something is DONE (or an attempt over); kept apart from the state."""

    SUCCEEDED = "SUCCEEDED"
    UNTIL = "UNTIL"
    PRUNED = "PRUNED"
    USER_ERROR = "USER_ERROR"
    NODE_LOST = "NODE_LOST"
    PREEMPTED = "PREEMPTED"
    OOM = "OOM"
    TIMEOUT = "TIMEOUT"
    BUDGET = "BUDGET"
    CANCELLED = "CANCELLED"
    GATE_REFUSED = "GATE_REFUSED"
    DENIED = "DENIED"
    UNHEALTHY = "UNHEALTHY"
    DRAINED = "DRAINED"
    SKIPPED = "SKIPPED"
    INTERNAL = "INTERNAL"

    @property
    def is_success(self) -> bool:
        """True if nothing is left to do: SUCCEEDED, UNTIL, PRUNED or DRAINED."""
        return self.is_whole or self in (EndReason.PRUNED, EndReason.DRAINED)

    @property
    def is_whole(self) -> bool:
        """True if it trained as far as it was to: by itself, or `until` what the recipe says."""
        return self in (EndReason.SUCCEEDED, EndReason.UNTIL)

    @property
    def is_of_no_use(self) -> bool:
        """True if a task was ended as it is not needed any more, though it might have gone on."""
        return self in (EndReason.PRUNED, EndReason.DRAINED, EndReason.UNHEALTHY)

    @property
    def uses_retry(self) -> bool:
        """True if another attempt costs one of the recipe's ``retries``."""
        return self in (EndReason.USER_ERROR, EndReason.OOM, EndReason.TIMEOUT)

    @property
    def is_free_retry(self) -> bool:
        """True if it was not the task's fault: another attempt is free."""
        return self in (EndReason.NODE_LOST, EndReason.PREEMPTED)


def counted_ends(ends: Mapping[str, int]) -> str:
    """How many ended in which way, for people.

    >>> counted_ends({EndReason.NODE_LOST: 2, EndReason.USER_ERROR: 1})
    '2 NODE_LOST, 1 USER_ERROR'
    """
    return ", ".join(f"{count} {reason}" for reason, count in ends.items())


class Overuse(StrEnum):
    """Of what a task used more than it asked for, so that its place has ended the machine."""

    MEMORY = "memory"
    DISK = "disk"


#: Ends of what trained as far as it was to, and of that for which nothing is left to do.
WHOLE: Final = tuple(reason for reason in EndReason if reason.is_whole)
FINISHED: Final = tuple(reason for reason in EndReason if reason.is_success)

#: What may follow what. ``DONE -> WAITING`` is `resume`.
TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PLANNED, State.STOPPING}),
    State.PLANNED: frozenset({State.ACQUIRING, State.STOPPING}),
    State.ACQUIRING: frozenset({State.STAGING, State.STOPPING}),
    State.STAGING: frozenset({State.RUNNING, State.STOPPING}),
    State.RUNNING: frozenset({State.SAVING, State.RECOVERING, State.STOPPING}),
    State.RECOVERING: frozenset({State.ACQUIRING, State.STOPPING}),
    State.SAVING: frozenset({State.DONE, State.RECOVERING, State.STOPPING}),
    State.STOPPING: frozenset({State.DONE}),
    State.DONE: frozenset({State.WAITING}),
}

#: Free restarts (lost nodes, preemptions) of one task before it is given up.
MAX_FREE_RESTARTS = 20
#: So often an attempt is staged again when nodes, or stores, made that fail. Saving has no such limit.
MAX_STAGE_TRIES = 20


def may_follow(before: State, after: State) -> bool:
    """True if the transition table allows ``before -> after``.

    >>> may_follow(State.RUNNING, State.RECOVERING), may_follow(State.DONE, State.RUNNING)
    (True, False)
    """
    return after in TRANSITIONS[before]
