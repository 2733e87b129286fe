"""What to do about an attempt that has ended: what it left is saved, not given up while it exists. Pure.

What cannot be saved waits where it is, and is tried again. When that must end, and when a next attempt is to
go on with it, it is kept on the disk of this machine. See `trainmaster.control.decide.task`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from trainmaster.control.decide.effects import Effect, EffectKind, Job, MoreMemory, ObservedTask, Policy, Step
from trainmaster.control.decide.outcome import (
    LONGEST_PAUSE_S,
    classify,
    exit_records,
    loss_words,
    pause_s,
    with_last_error,
)
from trainmaster.control.loop.run_state import Task
from trainmaster.db.changes import ClosedAttempt, Note, Progress, TaskChange
from trainmaster.executors.base import Phase
from trainmaster.spec.states import MAX_FREE_RESTARTS, EndReason, State
from trainmaster.spec.until import Until

#: An attempt that ends sooner than this without having shown any progress "died at once".
DIED_AT_ONCE_S = 60.0
#: So often a last checkpoint is tried before it is kept here: the next attempt is not to wait for hours.
CHECKPOINT_TRIES: Final = 5
#: So long before the machines must go what is not saved by then is fetched.
FETCH_S: Final = 30.0
#: What helps a task that ran out of memory in all its attempts.
MORE_MEMORY: Final = (
    "Take a smaller batch or fewer workers per node, or machines with more memory (hardware.memory, or "
    "larger types in hardware.instance)."
)
#: Of an attempt that ran and whose run had to end before its machines were found again.
NOT_REACHED: Final = "its machines could not be reached before the end: what it left there goes with them"


def recovering(task: Task, seen: ObservedTask, now: float) -> list[Step]:
    """The last checkpoint of an attempt that ended badly is saved; then the next attempt begins."""
    job = _last_word(task, seen, EffectKind.RECOVER, now)
    if isinstance(job, list):
        return job
    job = _without_loss(seen, job)
    if now < task.not_before:
        return []
    more = seen.more_memory
    if more is not None and not more.is_planned:
        return _without_memory(task, job, more)
    fields = dict(job.fields)
    duration_s = (seen.gang.ended_at or now) - (seen.gang.started_at or now)
    was_free = _was_free(task, seen, job)
    is_own_fault = not was_free and not reason_of(task).is_free_retry
    stillborn = is_own_fault and not job.progressed and duration_s < DIED_AT_ONCE_S
    if stillborn and task.restored is not None:
        fields["bad_checkpoints"] = (*task.bad_checkpoints, task.restored)
    if was_free and task.retries_used:
        fields |= {"retries_used": task.retries_used - 1, "free_restarts": task.free_restarts + 1}
    reason = EndReason.NODE_LOST if was_free else reason_of(task)
    closes = _closed(task, seen, job, reason, now)
    told = _told(task, job) + ([] if more is None else [_note(task, more.words)])
    return [*told, next_attempt(task, fields, closes), forget(task)]


def saving(task: Task, seen: ObservedTask, policy: Policy, now: float) -> list[Step]:
    """What the last attempt left is saved: its model if it ended well, else its last checkpoint."""
    kind = EffectKind.SAVE if reason_of(task).is_whole else EffectKind.RECOVER
    job = _last_word(task, seen, kind, now)
    if isinstance(job, list):
        return job
    job = _without_loss(seen, job)
    is_lost = kind is EffectKind.SAVE and job.error and job.reason is EndReason.NODE_LOST
    if (is_lost and task.free_restarts < MAX_FREE_RESTARTS) or _was_free(task, seen, job):
        # It ended well, but what it made is lost; or it ended badly, as something of its node's was lost.
        fields: dict[str, object] = {
            "end_reason": EndReason.NODE_LOST,
            "free_restarts": task.free_restarts + 1,
        }
        why = loss_words(seen.gang) or job.error or job.message
        return [move(task, State.RECOVERING, EndReason.NODE_LOST, why, fields)]
    return finish(task, seen, job, now, until=policy.until)


def stopping(task: Task, seen: ObservedTask, policy: Policy, now: float) -> list[Step]:
    """Its members are stopped; what they left is saved."""
    match seen.gang.phase:
        case Phase.QUEUED | Phase.GRANTED | Phase.RUNNING:
            return [effect(task, EffectKind.STOP, 0.0 if seen.hurry else policy.grace_s)]
        case (
            Phase.UNKNOWN
        ):  # nothing of it ever ran, nothing is left to save, or there is no time to wait for its nodes
            words = [_said(task, seen), NOT_REACHED if task.started_at is not None else ""]
            return finish(task, seen, Job(done=True, message="; ".join(filter(None, words))), now)
        case Phase.EXITED:
            pass
    # It may have ended well in the moment before it was asked to stop: then its work is kept.
    won = classify(seen.gang, policy.timeout_s, policy.helpers).reason is EndReason.SUCCEEDED
    # A model that was lost with its node is not saved any more; what was saved of its training still is.
    lost = seen.jobs.get(EffectKind.SAVE) if EffectKind.RECOVER in seen.jobs else None
    job = _last_word(task, seen, EffectKind.SAVE if won and lost is None else EffectKind.RECOVER, now)
    if isinstance(job, list):
        return job
    if won and lost is not None:
        job = replace(job, error=lost.error)
    return finish(task, seen, job, now, EndReason.SUCCEEDED if won else None)


def begin(task: Task, kind: EffectKind, now: float) -> list[Step]:
    """Begin a job, for the first time or when the pause after its failure is over."""
    # An earlier driver may have written it with a clock that was ahead.
    if now < task.try_at <= now + LONGEST_PAUSE_S:
        return []
    return _begun(task, kind)


def finish(
    task: Task,
    seen: ObservedTask,
    job: Job,
    now: float,
    reason: EndReason | None = None,
    until: Until | None = None,
) -> list[Step]:
    """The task is DONE."""
    reason = reason or reason_of(task)
    # How the members of an unneeded one died tells nothing: they were told to.
    message = task.message if reason.is_of_no_use else _why(task, seen, job, reason)
    told = noted(task, job) if reason.is_whole else _told(task, job)
    if job.error and reason.is_whole:
        reason = EndReason.USER_ERROR if job.users_fault else EndReason.INTERNAL
        message = job.error
    elif job.reason is not None and reason is EndReason.USER_ERROR:
        reason = job.reason
    if reason is EndReason.OOM:
        message = f"{message}. {MORE_MEMORY}"
    fields = {**job.fields, **_no_more_tries(task), "ended_at": now}
    if reason.is_whole:
        if reason is EndReason.SUCCEEDED:
            message = until.missed({**task.metrics, **_metrics(job)}) if until is not None else ""
        if task.kept_model is not None:
            fields["kept_model"] = None
    else:
        fields.pop("model_uri", None)  # published, but something else failed: it is no model of ours
    closes = _closed(task, seen, job, reason, now, message) if task.attempt else None
    done = replace(move(task, State.DONE, reason, message, fields), closes=closes)
    return [*told, done, forget(task)] if task.attempt else [*told, done]


def next_attempt(
    task: Task, fields: Mapping[str, object] | None = None, closes: ClosedAttempt | None = None
) -> TaskChange:
    """The next attempt is opened."""
    of_attempt = {"restored": None, "end_reason": None, "started_at": None}
    fresh = {**(fields or {}), **_no_more_tries(task), **of_attempt}
    opened = move(task, State.ACQUIRING, fields=fresh)
    return replace(opened, attempt=task.attempt + 1, opens=True, closes=closes)


def _metrics(job: Job) -> Mapping[str, object]:
    """The last values that an attempt has reported, where the job has read them."""
    found = job.fields.get("metrics")
    return found if isinstance(found, Mapping) else {}


def reason_of(task: Task) -> EndReason:
    """How its attempt ended."""
    return task.end_reason or EndReason.INTERNAL


def move(
    task: Task,
    after: State,
    reason: EndReason | None = None,
    message: str = "",
    fields: Mapping[str, object] | None = None,
) -> TaskChange:
    """A transition without more."""
    return TaskChange(
        task.experiment, task.number, task.attempt, task.state, after, reason, message, fields or {}
    )


def effect(task: Task, kind: EffectKind, grace_s: float = 0.0) -> Effect:
    """An effect for its present attempt."""
    return Effect(kind, task.experiment, task.number, task.attempt, grace_s)


def forget(task: Task) -> Effect:
    """Clean up behind its present attempt."""
    return effect(task, EffectKind.FORGET)


def _last_word(task: Task, seen: ObservedTask, kind: EffectKind, now: float) -> Job | list[Step]:
    """How the saving of an attempt has ended, or what is to be done until it has."""
    last = seen.jobs.get(kind)
    kept = seen.jobs.get(EffectKind.KEEP)
    job = kept or last
    must_end = task.state is State.STOPPING or seen.is_wait_over or _is_stopped(seen)
    must_keep = seen.left_s <= FETCH_S or (must_end and seen.is_store_silent)
    if job is None:
        # A checkpoint that is still being published would otherwise end up newer than the last one.
        checkpoint = seen.jobs.get(EffectKind.CHECKPOINT)
        if checkpoint is not None and not checkpoint.done and not must_keep:
            return []
        return begin(task, kind, max(now, task.try_at) if must_end else now)
    if seen.left_s <= 0 and not (job.done and not job.unsaved):  # the cap wins
        words = job.error or (last.error if last else "") or "there was no money left to wait for it"
        return Job(done=True, error=words, fields=job.fields, unsaved=True, place=job.place)
    if not job.done:
        return _begun(task, EffectKind.KEEP) if kept is None and must_keep else []
    if not job.unsaved:
        return _with_reason(job, last) if kept is not None else job
    is_side = kind is EffectKind.RECOVER or "model_uri" in job.fields
    if "model_uri" in job.fields and (must_end or task.tries >= CHECKPOINT_TRIES):
        return replace(job, error="", unsaved=False)  # it is saved; but for a checkpoint that is not needed
    if kept is None:
        if seen.wanted is not None and seen.wanted.is_of_no_use and kind is EffectKind.RECOVER:
            return job
        if must_end or (is_side and task.tries >= CHECKPOINT_TRIES):
            return _begun(task, EffectKind.KEEP)
        return _again(task, kind, job, seen, now)
    if must_end:
        return _with_reason(job, last)
    return _again(task, EffectKind.KEEP, job, seen, now)


def _without_memory(task: Task, job: Job, more: MoreMemory) -> list[Step]:
    """Larger machines are asked for; without money for them the same would only fail again."""
    if more.is_allowed:
        return [effect(task, EffectKind.ENLARGE)]
    fields: dict[str, object] = {"end_reason": EndReason.OOM}
    message = job.message or task.message
    return [_note(task, more.words), move(task, State.STOPPING, EndReason.OOM, message, fields)]


def _note(task: Task, words: str) -> Note:
    return Note(words, task.experiment, task.number, task.attempt)


def _is_stopped(seen: ObservedTask) -> bool:
    """Whether the task must end: one that is only found hopeless has ended already."""
    return seen.wanted is not None and not seen.wanted.is_of_no_use


def _begun(task: Task, kind: EffectKind) -> list[Step]:
    """Begin a job now."""
    # While it is set, a job that has failed is counted, and waits its turn: the next one is not yet.
    cleared = [Progress(task.experiment, task.number, {"try_at": 0.0})] if task.try_at else []
    return [*cleared, effect(task, kind)]


def _again(task: Task, kind: EffectKind, job: Job, seen: ObservedTask, now: float) -> list[Step]:
    """Count a job that has failed, or begin it again when its turn comes."""
    if task.try_at:  # it is counted
        return begin(task, kind, now)
    count = task.tries + 1
    counted: dict[str, object] = {
        "tries": count,
        "try_at": now + pause_s(count),
        "saving_usd": seen.saving_usd,
    }
    if "kept_model" in job.fields:  # it came this far: from now on it is safe from its nodes' end
        counted["kept_model"] = job.fields["kept_model"]
    return [Progress(task.experiment, task.number, counted)]


def _with_reason(kept: Job, last: Job | None) -> Job:
    """What became of it, with why it could not be saved."""
    if last is not None:
        kept = replace(kept, note=kept.note or last.note, last_errors=kept.last_errors or last.last_errors)
    if not kept.error or last is None or not last.error:
        return kept
    message, reason = kept.message or last.message, kept.reason or last.reason
    return replace(
        kept,
        error=f"{last.error} {kept.error}",
        fields={**last.fields, **kept.fields},
        message=message,
        reason=reason,
        progressed=kept.progressed or last.progressed,
    )


def noted(task: Task, job: Job) -> list[Step]:
    """What a job has to tell the user."""
    return [_note(task, job.note)] if job.note else []


def _told(task: Task, job: Job) -> list[Step]:
    """What is said of what the machines said, and of a last checkpoint that was not saved: where it is."""
    said = noted(task, job)
    if not job.unsaved and "kept_checkpoint" not in job.fields:
        return said
    if not job.error or job.reason is EndReason.NODE_LOST:
        return said
    return [*said, _note(task, job.error)]


def _no_more_tries(task: Task) -> dict[str, object]:
    return {"tries": 0, "try_at": 0.0, "saving_usd": 0.0} if task.tries else {}


def _without_loss(seen: ObservedTask, job: Job) -> Job:
    """What went with a machine that its own gang has used up is no reason for the end of that."""
    if seen.gang.overused is None or job.reason is not EndReason.NODE_LOST:
        return job
    return replace(job, reason=None, message="")


def _was_free(task: Task, seen: ObservedTask, job: Job) -> bool:
    """Whether a failure of the script was found to be none of its own, also after it was judged."""
    return (
        reason_of(task) is EndReason.USER_ERROR
        and seen.gang.overused is None
        and (job.reason is EndReason.NODE_LOST or bool(seen.gang.lost_nodes))
        and task.free_restarts < MAX_FREE_RESTARTS
    )


def _why(task: Task, seen: ObservedTask, job: Job, reason: EndReason) -> str:
    """Why an attempt ended. What a member says of another one's end is no reason beside a machine's loss."""
    if reason is EndReason.NODE_LOST and job.reason is None:
        return loss_words(seen.gang) or task.message
    if job.message or reason is not EndReason.USER_ERROR:
        return job.message or _said(task, seen)
    return with_last_error(task.message, seen.gang, job.last_errors)


def _said(task: Task, seen: ObservedTask) -> str:
    """What was said of its end. Where the run ends it, what its message says may be of an earlier one."""
    return seen.why if seen.wanted is reason_of(task) else task.message


def _closed(
    task: Task, seen: ObservedTask, job: Job, reason: EndReason, now: float, message: str | None = None
) -> ClosedAttempt:
    if job.reason is not None and reason is EndReason.USER_ERROR:
        reason = job.reason
    return ClosedAttempt(
        number=task.attempt,
        reason=reason,
        message=_why(task, seen, job, reason) if message is None else message,
        started_at=seen.gang.started_at,
        ended_at=seen.gang.ended_at or now,
        restored=task.restored,
        members=exit_records(seen.gang),
    )
