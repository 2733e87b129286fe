"""What to do next about one task: pure, without a clock or a cluster.

`decide_task` looks at a task, at what was observed of it, and at the recipe's policy, and gives
the next step: transitions to commit, then effects to perform. It is called again with the
result, so each state needs to know only what may follow it. Every effect may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trainmaster.control.backoff import backoff_s, stage_pause_s
from trainmaster.control.board import Task
from trainmaster.control.outcome import Outcome, classify, exit_records
from trainmaster.executors.base import GangStatus, Phase
from trainmaster.spec.states import MAX_FREE_RESTARTS, EndReason, State
from trainmaster.store.changes import ClosedAttempt, Progress, TaskChange

#: An attempt that ends sooner than this without having shown any progress "died at once".
DIED_AT_ONCE_S = 60.0


class EffectKind(StrEnum):
    """What the control loop does to the world, per attempt; all are safe to repeat.

    SUBMIT: queue the gang. STAGE: prepare its directories, data, environment. LAUNCH: start it.
    STOP: ask its members to stop. CHECKPOINT: publish what is in its checkpoint directory.
    RECOVER: publish the last checkpoint of an attempt that has ended badly. SAVE: publish model
    and last checkpoint of one that has ended well. FORGET: it is recorded; clean up behind it.
    """

    SUBMIT = "SUBMIT"
    STAGE = "STAGE"
    LAUNCH = "LAUNCH"
    STOP = "STOP"
    CHECKPOINT = "CHECKPOINT"
    RECOVER = "RECOVER"
    SAVE = "SAVE"
    FORGET = "FORGET"


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing to do for one attempt; ``grace_s`` for STOP only."""

    kind: EffectKind
    experiment: str
    task: int
    attempt: int
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A STAGE, CHECKPOINT, RECOVER or SAVE that was begun in the background.

    Attributes:
        done: it is over.
        error: why it failed, else empty.
        users_fault: the error lies in the user's recipe or script (a failing ``setup``, a missing metric).
        fields: columns of the task to set (``restored``, ``model_uri``, ``metrics``, ...).
        reason: a better reason than the exit code alone gives (OOM read from the log).
        message: a better message, likewise.
        progressed: RECOVER: the attempt had reported metrics or published a checkpoint.
        store_away: SAVE: its store does not answer now, and may later.
    """

    done: bool = False
    error: str = ""
    users_fault: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)
    reason: EndReason | None = None
    message: str = ""
    progressed: bool = False
    store_away: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    """What the recipe says about one experiment's tasks; seconds.

    Attributes:
        helpers: members that only serve the others: how they end says nothing about the task.
    """

    retries: int = 0
    timeout_s: float | None = None
    grace_s: float = 20.0
    checkpoint_every_s: float = 60.0
    helpers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Seen:
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
    """

    gang: GangStatus
    jobs: Mapping[EffectKind, Job]
    wanted: EndReason | None = None
    hurry: bool = False
    launched: bool = False
    running_since: float | None = None
    last_checkpoint_at: float = 0.0
    why: str = ""


Step = TaskChange | Progress | Effect


def decide_task(task: Task, seen: Seen, policy: Policy, now: float) -> list[Step]:
    """The next step of a task that is not DONE: transitions, then effects.

    Args:
        task: as recorded.
        seen: as observed.
        policy: from the recipe.
        now: Unix seconds.
    """
    if seen.wanted is not None and task.state in (State.WAITING, State.PLANNED):
        return _end_unbegun(task, seen.wanted, now)
    # A finished attempt is kept, not thrown away.
    stoppable = task.state not in (State.SAVING, State.STOPPING)
    if seen.wanted is not None and stoppable:
        return [_move(task, State.STOPPING, seen.wanted, seen.why, {"end_reason": seen.wanted})]
    match task.state:
        case State.WAITING:
            return [_move(task, State.PLANNED)]
        case State.PLANNED:
            return [_next_attempt(task)]
        case State.ACQUIRING:
            if seen.gang.phase is Phase.UNKNOWN:
                return [_effect(task, EffectKind.SUBMIT)]
            return [] if seen.gang.phase is Phase.QUEUED else [_move(task, State.STAGING)]
        case State.STAGING:
            return _staging(task, seen, now)
        case State.RUNNING:
            return _running(task, seen, policy, now)
        case State.RECOVERING:
            return _recovering(task, seen, policy, now)
        case State.SAVING:
            return _saving(task, seen, policy, now)
        case State.STOPPING:
            return _stopping(task, seen, policy, now)
        case State.DONE:
            return []


def _staging(task: Task, seen: Seen, now: float) -> list[Step]:
    match seen.gang.phase:
        case Phase.UNKNOWN:  # the control process that held the slots is gone, and they with it
            return [_effect(task, EffectKind.SUBMIT)]
        case Phase.QUEUED:
            return []
        case Phase.GRANTED:
            job = seen.jobs.get(EffectKind.STAGE)
            if job is None:
                return _begin(task, EffectKind.STAGE, now)
            if not job.done or seen.launched:
                return []
            if job.error and job.reason is EndReason.NODE_LOST:
                again = _again(task, EffectKind.STAGE, now)
                if again is not None:
                    return again
            if job.error:
                reason = EndReason.USER_ERROR if job.users_fault else EndReason.INTERNAL
                return [_move(task, State.STOPPING, reason, job.error, fields={"end_reason": reason})]
            return [
                Progress(task.experiment, task.number, job.fields),
                _effect(task, EffectKind.LAUNCH),
            ]
        case Phase.RUNNING | Phase.EXITED:
            started_at = seen.gang.started_at
            return [_move(task, State.RUNNING, fields={"started_at": started_at} if started_at else {})]


def _begin(task: Task, kind: EffectKind, now: float) -> list[Step]:
    """Begin a job, for the first time or when the pause after its failure is over."""
    if now < task.not_before:
        return []
    begun = _effect(task, kind)
    if not task.not_before:
        return [begun]
    # While it is set, a job that has failed is counted, and waits its turn: the next one is not yet.
    return [Progress(task.experiment, task.number, {"not_before": 0.0}), begun]


def _again(task: Task, kind: EffectKind, now: float) -> list[Step] | None:
    """Count a job that has failed, or begin it anew when its turn comes; None if it failed too often."""
    if task.not_before:  # it is counted
        return _begin(task, kind, now)
    if task.free_restarts >= MAX_FREE_RESTARTS:
        return None
    count = task.free_restarts + 1
    counted = {"free_restarts": count, "not_before": now + stage_pause_s(count)}
    return [Progress(task.experiment, task.number, counted)]


def _running(task: Task, seen: Seen, policy: Policy, now: float) -> list[Step]:
    match seen.gang.phase:
        case Phase.RUNNING:
            since = now if seen.running_since is None else seen.running_since
            if policy.timeout_s is not None and now - since >= policy.timeout_s:
                return [_effect(task, EffectKind.STOP, policy.grace_s)]
            checkpoint = seen.jobs.get(EffectKind.CHECKPOINT)
            if now - seen.last_checkpoint_at >= policy.checkpoint_every_s and (
                checkpoint is None or checkpoint.done
            ):
                return [_effect(task, EffectKind.CHECKPOINT)]
            return []
        case Phase.EXITED:
            outcome = classify(seen.gang, policy.timeout_s, policy.helpers)
        case _:  # it ran, and its node knows nothing of it any more
            outcome = Outcome(EndReason.NODE_LOST, "its node lost all trace of it")
    fields: dict[str, object] = {"end_reason": outcome.reason}
    if outcome.reason.uses_retry and task.retries_used < policy.retries:
        fields["retries_used"] = task.retries_used + 1
        fields["not_before"] = now + backoff_s(task.retries_used + 1)
        return [_move(task, State.RECOVERING, outcome.reason, outcome.message, fields)]
    if outcome.reason.is_free_retry and task.free_restarts < MAX_FREE_RESTARTS:
        fields["free_restarts"] = task.free_restarts + 1
        return [_move(task, State.RECOVERING, outcome.reason, outcome.message, fields)]
    return [_move(task, State.SAVING, outcome.reason, outcome.message, fields)]


def _recovering(task: Task, seen: Seen, policy: Policy, now: float) -> list[Step]:
    job = _last_job(seen, EffectKind.RECOVER)
    if job is None:
        return [_effect(task, EffectKind.RECOVER)]
    if not job.done or now < task.not_before:
        return []
    fields = dict(job.fields)
    duration_s = (seen.gang.ended_at or now) - (seen.gang.started_at or now)
    was_free = _was_free(task, job)
    is_own_fault = not was_free and not _reason(task).is_free_retry
    stillborn = is_own_fault and not job.progressed and duration_s < DIED_AT_ONCE_S
    if stillborn and task.restored is not None:
        fields["bad_checkpoints"] = (*task.bad_checkpoints, task.restored)
    if was_free and task.retries_used:
        fields |= {"retries_used": task.retries_used - 1, "free_restarts": task.free_restarts + 1}
    return [_next_attempt(task, fields, _closed(task, seen, job, _reason(task), now)), _forget(task)]


def _saving(task: Task, seen: Seen, policy: Policy, now: float) -> list[Step]:
    kind = EffectKind.SAVE if task.end_reason is EndReason.SUCCEEDED else EffectKind.RECOVER
    job = _last_job(seen, kind)
    if job is None:
        return _begin(task, kind, now)
    if not job.done:
        return []
    if job.store_away:  # what was trained is still there, and needs no further attempt
        if seen.wanted is None or seen.wanted is EndReason.PRUNED:
            again = _again(task, kind, now)
        else:  # a run that is to end waits no longer: what is counted is tried now, and for the last time
            again = _begin(task, kind, max(now, task.not_before)) if task.not_before else None
        if again is not None:
            return again
    is_lost = kind is EffectKind.SAVE and job.error and job.reason is EndReason.NODE_LOST
    if (is_lost and task.free_restarts < MAX_FREE_RESTARTS) or _was_free(task, job):
        # It ended well, but what it made is lost; or it ended badly, as something of its node's was lost.
        fields: dict[str, object] = {
            "end_reason": EndReason.NODE_LOST,
            "free_restarts": task.free_restarts + 1,
        }
        return [_move(task, State.RECOVERING, EndReason.NODE_LOST, job.error or job.message, fields)]
    return _finish(task, seen, job, now)


def _was_free(task: Task, job: Job) -> bool:
    """Whether a failure of the script was found to be none of its own."""
    return (
        _reason(task) is EndReason.USER_ERROR
        and job.reason is EndReason.NODE_LOST
        and task.free_restarts < MAX_FREE_RESTARTS
    )


def _stopping(task: Task, seen: Seen, policy: Policy, now: float) -> list[Step]:
    match seen.gang.phase:
        case Phase.QUEUED | Phase.GRANTED | Phase.RUNNING:
            return [_effect(task, EffectKind.STOP, 0.0 if seen.hurry else policy.grace_s)]
        case Phase.UNKNOWN:  # nothing of it ever ran, or nothing is left to save
            return _finish(task, seen, Job(done=True), now)
        case Phase.EXITED:
            pass
    # It may have ended well in the moment before it was asked to stop: then its work is kept.
    won = classify(seen.gang, policy.timeout_s, policy.helpers).reason is EndReason.SUCCEEDED
    kind = EffectKind.SAVE if won else EffectKind.RECOVER
    job = _last_job(seen, kind)
    if job is None:
        return [_effect(task, kind)]
    return _finish(task, seen, job, now, EndReason.SUCCEEDED if won else None) if job.done else []


def _last_job(seen: Seen, kind: EffectKind) -> Job | None:
    # A checkpoint that is still being published would otherwise end up newer than the last one.
    checkpoint = seen.jobs.get(EffectKind.CHECKPOINT)
    return checkpoint if checkpoint is not None and not checkpoint.done else seen.jobs.get(kind)


def _end_unbegun(task: Task, reason: EndReason, now: float) -> list[Step]:
    """Nothing of it is under way; an attempt it had before `resume` is closed and stays as it is."""
    stopping = _move(task, State.STOPPING, reason, fields={"end_reason": reason})
    done = replace(stopping, before=State.STOPPING, after=State.DONE, fields={"ended_at": now})
    return [stopping, done]


def _finish(task: Task, seen: Seen, job: Job, now: float, reason: EndReason | None = None) -> list[Step]:
    reason = reason or _reason(task)
    # How a pruned task's members died tells nothing: they were told to.
    message = task.message if reason is EndReason.PRUNED else job.message or task.message
    if job.error and reason is EndReason.SUCCEEDED:
        reason = EndReason.USER_ERROR if job.users_fault else EndReason.INTERNAL
        message = job.error
    elif job.reason is not None and reason is EndReason.USER_ERROR:
        reason = job.reason
    fields = {**job.fields, "ended_at": now}
    if reason is EndReason.SUCCEEDED:
        message = ""
    else:
        fields.pop("model_uri", None)  # published, but something else failed: it is no model of ours
    steps: list[Step] = [
        TaskChange(
            task.experiment,
            task.number,
            task.attempt,
            task.state,
            State.DONE,
            reason,
            message,
            fields,
            closes=_closed(task, seen, job, reason, now, message) if task.attempt else None,
        )
    ]
    return [*steps, _forget(task)] if task.attempt else steps


def _next_attempt(
    task: Task, fields: Mapping[str, object] | None = None, closes: ClosedAttempt | None = None
) -> TaskChange:
    return TaskChange(
        task.experiment,
        task.number,
        task.attempt + 1,
        task.state,
        State.ACQUIRING,
        fields={**(fields or {}), "restored": None, "end_reason": None},
        opens=True,
        closes=closes,
    )


def _closed(
    task: Task, seen: Seen, job: Job, reason: EndReason, now: float, message: str | None = None
) -> ClosedAttempt:
    if job.reason is not None and reason is EndReason.USER_ERROR:
        reason = job.reason
    return ClosedAttempt(
        number=task.attempt,
        reason=reason,
        message=message if message is not None else job.message or task.message,
        started_at=seen.gang.started_at,
        ended_at=seen.gang.ended_at or now,
        restored=task.restored,
        members=exit_records(seen.gang),
    )


def _reason(task: Task) -> EndReason:
    return task.end_reason or EndReason.INTERNAL


def _move(
    task: Task,
    after: State,
    reason: EndReason | None = None,
    message: str = "",
    fields: Mapping[str, object] | None = None,
) -> TaskChange:
    return TaskChange(
        task.experiment, task.number, task.attempt, task.state, after, reason, message, fields or {}
    )


def _effect(task: Task, kind: EffectKind, grace_s: float = 0.0) -> Effect:
    return Effect(kind, task.experiment, task.number, task.attempt, grace_s)


def _forget(task: Task) -> Effect:
    return _effect(task, EffectKind.FORGET)
