"""What to do next about one task: pure, without a clock or a cluster.

`decide_task` looks at a task, at what was observed of it, and at the recipe's policy, and gives
the next step: transitions to commit, then effects to perform. It is called again with the
result, so each state needs to know only what may follow it. Every effect may be repeated.
"""

from __future__ import annotations

from dataclasses import replace

from trainmaster.control.decide.effects import (
    Effect,
    EffectKind,
    Job,
    ObservedTask,
    PhaseDuration,
    Policy,
    Step,
)
from trainmaster.control.decide.outcome import Outcome, backoff_s, classify, lost_output, pause_s
from trainmaster.control.decide.saving import (
    DIED_AT_ONCE_S,
    begin,
    effect,
    move,
    next_attempt,
    noted,
    recovering,
    saving,
    stopping,
)
from trainmaster.control.loop.run_state import Task
from trainmaster.db.changes import Note, Progress
from trainmaster.executors.base import Phase
from trainmaster.spec.states import MAX_FREE_RESTARTS, MAX_STAGE_TRIES, EndReason, State
from trainmaster.spec.topics import OUTPUT_LOST
from trainmaster.spec.units import format_duration

__all__ = [
    "DIED_AT_ONCE_S",
    "Effect",
    "EffectKind",
    "Job",
    "ObservedTask",
    "PhaseDuration",
    "Policy",
    "Step",
    "decide_task",
]

#: What goes on without a lost member hangs if it reports nothing for so long, and for so many times
#: its longest pause between two reports.
HANGS_S = 90.0
HANGS_PAUSES = 3


def decide_task(task: Task, seen: ObservedTask, policy: Policy, now: float) -> list[Step]:
    """The next step of a task that is not DONE: transitions, then effects.

    Args:
        task: as recorded.
        seen: as observed.
        policy: from the recipe.
        now: Unix seconds.
    """
    if seen.wanted is not None and task.state in (State.WAITING, State.PLANNED):
        return _end_unbegun(task, seen.wanted, seen.why, now)
    # A finished attempt is kept, not thrown away.
    stoppable = task.state not in (State.SAVING, State.STOPPING)
    if seen.wanted is not None and stoppable:
        return [move(task, State.STOPPING, seen.wanted, seen.why, {"end_reason": seen.wanted})]
    match task.state:
        case State.WAITING:
            return [move(task, State.PLANNED)]
        case State.PLANNED:
            return [next_attempt(task)]
        case State.ACQUIRING:
            if seen.gang.phase is Phase.UNKNOWN:
                return [effect(task, EffectKind.SUBMIT)]
            return [] if seen.gang.phase is Phase.QUEUED else [move(task, State.STAGING)]
        case State.STAGING:
            return _staging(task, seen, now)
        case State.RUNNING:
            return _running(task, seen, policy, now)
        case State.RECOVERING:
            return recovering(task, seen, now)
        case State.SAVING:
            return saving(task, seen, policy, now)
        case State.STOPPING:
            return stopping(task, seen, policy, now)
        case State.DONE:
            return []


def _staging(task: Task, seen: ObservedTask, now: float) -> list[Step]:
    match seen.gang.phase:
        case Phase.UNKNOWN:  # the control process that held the slots is gone, and they with it
            return [effect(task, EffectKind.SUBMIT)]
        case Phase.QUEUED:
            return []
        case Phase.GRANTED:
            job = seen.jobs.get(EffectKind.STAGE)
            if job is None:
                return begin(task, EffectKind.STAGE, now)
            if not job.done or seen.launched:
                return []
            if job.error and (job.lacks_room or job.reason is EndReason.NODE_LOST):
                again = _stage_again(task, now, is_bounded=not job.lacks_room)
                if again is not None:
                    return again
            if job.error:
                reason = EndReason.USER_ERROR if job.users_fault else EndReason.INTERNAL
                return [move(task, State.STOPPING, reason, job.error, fields={"end_reason": reason})]
            fields = {**job.fields, "tries": 0} if task.tries else job.fields
            told = noted(task, job)
            return [*told, Progress(task.experiment, task.number, fields), effect(task, EffectKind.LAUNCH)]
        case Phase.RUNNING | Phase.EXITED:
            started_at = seen.gang.started_at
            return [move(task, State.RUNNING, fields={"started_at": started_at} if started_at else {})]


def _stage_again(task: Task, now: float, *, is_bounded: bool) -> list[Step] | None:
    """Count a stage that has failed, or begin it again when its turn comes; None if it failed too often."""
    if task.try_at:  # it is counted
        return begin(task, EffectKind.STAGE, now)
    if is_bounded and task.tries >= MAX_STAGE_TRIES:
        return None
    count = task.tries + 1
    counted = {"tries": count, "try_at": now + pause_s(count)}
    return [Progress(task.experiment, task.number, counted)]


def _running(task: Task, seen: ObservedTask, policy: Policy, now: float) -> list[Step]:
    match seen.gang.phase:
        case Phase.RUNNING:
            if task.end_reason is EndReason.UNTIL:  # it is recorded: whoever drives it from now on knows
                return [effect(task, EffectKind.STOP, policy.grace_s)]
            if task.end_reason is EndReason.TIMEOUT:  # recorded, too: it is stopped for its silence
                return [replace(effect(task, EffectKind.STOP, policy.grace_s), stacks=True)]
            if policy.silence_s is not None and seen.silent_s >= policy.silence_s:
                return [Progress(task.experiment, task.number, {"end_reason": EndReason.TIMEOUT})]
            if seen.reached:
                return [Progress(task.experiment, task.number, {"end_reason": EndReason.UNTIL})]
            if _hangs_without_a_member(seen, now):
                return [effect(task, EffectKind.STOP, policy.grace_s)]
            since = now if seen.running_since is None else seen.running_since
            if policy.timeout_s is not None and now - since >= policy.timeout_s:
                return [effect(task, EffectKind.STOP, policy.grace_s)]
            checkpoint = seen.jobs.get(EffectKind.CHECKPOINT)
            if task.kept_checkpoint is not None and checkpoint is not None and checkpoint.progressed:
                # There is a newer one: what could not be saved of an earlier attempt is needed no more.
                return [Progress(task.experiment, task.number, {"kept_checkpoint": None})]
            if now - seen.last_checkpoint_at >= policy.checkpoint_every_s and (
                checkpoint is None or checkpoint.done
            ):
                return [effect(task, EffectKind.CHECKPOINT)]
            return []
        case Phase.EXITED:
            has_reached = task.end_reason is EndReason.UNTIL
            timeout_s = None if has_reached else policy.timeout_s
            outcome = classify(seen.gang, timeout_s, policy.helpers, policy.timeout_name, policy.memory_bytes)
            if has_reached and outcome.reason is EndReason.PREEMPTED:  # it was we who stopped it
                found = policy.until.reached({}) if policy.until is not None else ""
                outcome = Outcome(EndReason.UNTIL, seen.reached or found)
            elif task.end_reason is EndReason.TIMEOUT and outcome.reason is not EndReason.SUCCEEDED:
                what = f"stopped after {format_duration(policy.silence_s or 0.0)} without a sign of work"
                outcome = Outcome(
                    EndReason.TIMEOUT, f"{what} (silence); its log has the stacks of its Pythons"
                )
            elif outcome.reason is EndReason.NODE_LOST and _hangs_without_a_member(seen, now):
                name = next(member.name for member in seen.gang.members if member.lost)
                what = f"{name} was lost with its machine, and the others reported nothing more"
                outcome = Outcome(EndReason.NODE_LOST, f"{what} for {now - (seen.moved_at or now):.0f} s")
        case _:  # it ran, and its node knows nothing of it any more
            outcome = Outcome(EndReason.NODE_LOST, "its node lost all trace of it")
    which = (task.experiment, task.number, task.attempt)
    told = [Note(words, *which, topic=OUTPUT_LOST) for words in lost_output(seen.gang)]
    fields: dict[str, object] = {"end_reason": outcome.reason}
    if outcome.reason.uses_retry and task.retries_used < policy.retries:
        fields["retries_used"] = task.retries_used + 1
        fields["not_before"] = now + backoff_s(task.retries_used + 1)
        return [*told, move(task, State.RECOVERING, outcome.reason, outcome.message, fields)]
    if outcome.reason.is_free_retry and task.free_restarts < MAX_FREE_RESTARTS:
        fields["free_restarts"] = task.free_restarts + 1
        return [*told, move(task, State.RECOVERING, outcome.reason, outcome.message, fields)]
    return [*told, move(task, State.SAVING, outcome.reason, outcome.message, fields)]


def _hangs_without_a_member(seen: ObservedTask, now: float) -> bool:
    """Whether what is left of a gang that goes on without a lost member waits for that in vain.

    Who waits for the answer of a machine that is cut off, with nothing left to send, is never told that it is
    gone: TCP notices only what is sent, and that after a quarter of an hour.
    """
    if seen.moved_at is None or seen.longest_pause_s is None:  # it does not report how far it is
        return False
    patience_s = max(HANGS_S, HANGS_PAUSES * seen.longest_pause_s)
    return any(member.lost for member in seen.gang.members) and now - seen.moved_at >= patience_s


def _end_unbegun(task: Task, reason: EndReason, why: str, now: float) -> list[Step]:
    """Nothing of it is under way; an attempt it had before `resume` is closed and stays as it is."""
    ended = move(task, State.STOPPING, reason, why, {"end_reason": reason})
    done = replace(ended, before=State.STOPPING, after=State.DONE, fields={"ended_at": now})
    return [ended, done]
