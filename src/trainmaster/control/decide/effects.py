"""What is decided of tasks, and what that rests on: `Effect`, `Job`, `Policy`, `ObservedTask`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Note, Progress, TaskChange
from trainmaster.executors.base import GangStatus
from trainmaster.spec.states import EndReason
from trainmaster.spec.until import Until


class EffectKind(StrEnum):
    """What the control loop does to the world, per attempt; all are safe to repeat.

    SUBMIT: queue the gang. STAGE: prepare its directories, data, environment. LAUNCH: start it.
    STOP: ask its members to stop. CHECKPOINT: publish what is in its checkpoint directory.
    RECOVER: publish the last checkpoint of an attempt that has ended badly. SAVE: publish model
    and last checkpoint of one that has ended well. KEEP: neither can be published now; have it on the disk
    of this machine. ENLARGE: its cluster gets machines with more memory. FORGET: it is recorded; clean up
    behind it.
    """

    SUBMIT = "SUBMIT"
    STAGE = "STAGE"
    LAUNCH = "LAUNCH"
    STOP = "STOP"
    CHECKPOINT = "CHECKPOINT"
    RECOVER = "RECOVER"
    SAVE = "SAVE"
    KEEP = "KEEP"
    ENLARGE = "ENLARGE"
    FORGET = "FORGET"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing to do for one attempt; ``grace_s`` and ``stacks`` (see `Executor.stop`) for STOP only."""

    kind: EffectKind
    experiment: str
    task: int
    attempt: int
    grace_s: float = 0.0
    stacks: bool = False


@dataclass(frozen=True, slots=True)
class PhaseDuration:
    """How long a part of what is done for an attempt took.

    Attributes:
        phase: ``setup``, ``image``, ``data``, ``staging`` (the rest before its members) or ``saving``.
        content: hash of what it was; empty where all are alike.
        seconds: that it took. is_new: it was done now; False: another one did it, and this one waited.
    """

    phase: str
    content: str
    seconds: float
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A STAGE, CHECKPOINT, RECOVER, SAVE or KEEP that was begun in the background.

    Attributes:
        done: it is over.
        error: why it failed, else empty.
        users_fault: the error lies in the user's recipe or script (a failing ``setup``, a missing metric).
        fields: columns of the task to set (``restored``, ``model_uri``, ``metrics``, ...).
        reason: a better reason than the exit code alone gives (OOM read from the log).
        message: a better message than the exit code alone gives.
        last_errors: RECOVER: what each member's log says of its end, where ``message`` knows nothing.
        note: STAGE, RECOVER, SAVE: what else the user is told.
        progressed: RECOVER: the attempt had reported metrics or published a checkpoint.
        unsaved: RECOVER, SAVE, KEEP: what could not be saved is still there, and may be saved later.
        place: where it is then, in words.
        lacks_room: STAGE: a disk is full: it is begun anew for as long as it takes.
        took: STAGE, SAVE: how long its parts took.
    """

    done: bool = False
    error: str = ""
    users_fault: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)
    reason: EndReason | None = None
    message: str = ""
    last_errors: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    progressed: bool = False
    unsaved: bool = False
    place: str = ""
    lacks_room: bool = False
    took: tuple[PhaseDuration, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """What the recipe says about one experiment's tasks; seconds.

    Attributes:
        helpers: members that only serve the others: how they end says nothing about the task.
        timeout_name: what the timeout is, for who is told that it has passed.
        until: what ends the training early.
        searched: the metric that its search looks at; empty without one.
        memory_bytes: that its machine was asked for; None for any.
        silence_s: after so long without a sign of work an attempt is stopped; None for never.
    """

    retries: int = 0
    timeout_s: float | None = None
    grace_s: float = 20.0
    checkpoint_every_s: float = 60.0
    helpers: frozenset[str] = frozenset()
    timeout_name: str = "timeout"
    until: Until | None = None
    memory_bytes: int | None = None
    silence_s: float | None = None
    searched: str = ""


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """Machines that an attempt may have which follows one that ran out of memory.

    Attributes:
        words: which, why and what they cost; or why they cannot be had. One line for the user.
        is_allowed: the budget pays for them.
        is_planned: its cluster is to have no others any more.
    """

    words: str
    is_allowed: bool = True
    is_planned: bool = False


@dataclass(frozen=True, slots=True)
class ObservedTask:
    """What was observed of one task's present attempt.

    Attributes:
        gang: the executor's status.
        jobs: background work begun by this control process, by kind.
        wanted: the task must end for this reason (cancel, budget, pruning, a skipped experiment).
        hurry: the user does not want to wait for the grace time.
        launched: LAUNCH was performed; its effect will be seen soon.
        running_since: Unix seconds by the clock of ``now``, whatever the clocks of its nodes say.
        last_checkpoint_at: Unix seconds of the last CHECKPOINT begun, or the start.
        why: what to tell the user about ``wanted``, one line.
        is_wait_over: the money set aside for saving is used: what cannot be saved waits no longer.
        saving_usd: what that waiting has cost.
        left_s: seconds until machines must be given back for the run to stay below its cap; infinite while
            that is not in sight.
        is_store_silent: the store answers nothing: what is under way with it may take for ever.
        more_memory: of an attempt that ran out of it; None where there are no larger machines to choose.
        reached: what its first member reported when `until` held, in words; empty before.
        moved_at: when it last reported anything, by the clock of ``now``; None before.
        longest_pause_s: between two of its reports; None until there were two.
        silent_s: for how long it has shown no sign of work.
    """

    gang: GangStatus
    jobs: Mapping[EffectKind, Job]
    wanted: EndReason | None = None
    hurry: bool = False
    launched: bool = False
    running_since: float | None = None
    last_checkpoint_at: float = 0.0
    why: str = ""
    is_wait_over: bool = False
    saving_usd: float = 0.0
    left_s: float = math.inf
    is_store_silent: bool = False
    more_memory: MoreMemory | None = None
    reached: str = ""
    moved_at: float | None = None
    longest_pause_s: float | None = None
    silent_s: float = 0.0


Step = TaskChange | Progress | Note | Effect
