"""What was made and cannot be saved: it waits, it is told, it is kept; nobody gives it up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_nouns import NOW, exited, gang, member, seen, task

from trainmaster.control.decide.effects import MoreMemory
from trainmaster.control.decide.saving import CHECKPOINT_TRIES
from trainmaster.control.decide.task import Effect, EffectKind, Job, Policy, decide_task
from trainmaster.db.changes import Note, Progress, TaskChange
from trainmaster.executors.base import Phase
from trainmaster.spec.states import MAX_FREE_RESTARTS, EndReason, State

WHY = "its model could not be saved: Cannot write s3://b/m: ExpiredToken."
UNSAVED = Job(done=True, error=WHY, unsaved=True)
KEPT = Job(done=True, error="It is kept in /home/me.", fields={"kept_model": 1})
NOT_KEPT = Job(done=True, error="It could not be fetched either: disk full", unsaved=True, place="on h0")
SAVED = Job(done=True, fields={"model_uri": "s3://b/m"})
FAILED = member(exit_code=3)


def decide(of, what, now=NOW):
    return decide_task(of, what, Policy(retries=1), now)


def kinds(steps):
    return [step.kind for step in steps if isinstance(step, Effect)]


def end_of(steps) -> TaskChange:
    (move,) = [step for step in steps if isinstance(step, TaskChange)]
    assert move.after is State.DONE
    return move


def ended(jobs, **fields):
    return seen(exited(), jobs, **fields)


@pytest.mark.parametrize("wanted", [None, EndReason.PRUNED])
@pytest.mark.parametrize("free_restarts", [0, MAX_FREE_RESTARTS])
def test_a_model_waits_for_as_long_as_it_takes(wanted, free_restarts):
    """However many nodes were lost before: what is there needs no further attempt."""
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED, free_restarts=free_restarts)
    away = ended({EffectKind.SAVE: UNSAVED}, wanted=wanted)
    now, waited_s = NOW, []
    for count in range(1, 201):
        (counted,) = decide(of, away, now)
        assert counted.fields["tries"] == count
        assert "free_restarts" not in counted.fields
        of = replace(of, **counted.fields)
        waited_s.append(of.try_at - now)
        if waited_s[-1]:
            assert decide(of, away, of.try_at - 0.1) == []
        now = of.try_at
        steps = decide(of, away, now)
        assert kinds(steps) == [EffectKind.SAVE]
        of = replace(of, **steps[0].fields)
        assert decide(of, ended({EffectKind.SAVE: Job()}, wanted=wanted), now) == []
    assert waited_s[:5] == [0, 1, 2, 4, 8]
    assert 30 <= max(waited_s) <= 120, "whoever has logged in again does not wait long"
    move = end_of(decide(of, ended({EffectKind.SAVE: SAVED}, wanted=wanted), now))
    assert move.reason is EndReason.SUCCEEDED
    assert (move.fields["tries"], move.fields["saving_usd"]) == (0, 0.0), "given back"


@pytest.mark.parametrize(
    "end",
    [
        {"is_wait_over": True},
        {"wanted": EndReason.CANCELLED},
        {"wanted": EndReason.BUDGET},
        {"wanted": EndReason.INTERNAL},
    ],
)
def test_when_waiting_must_end_it_is_kept_here_and_named(end):
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED, tries=5, try_at=NOW + 8)
    steps = decide(of, ended({EffectKind.SAVE: UNSAVED}, **end))
    assert steps[0] == Progress("e", 0, {"try_at": 0.0})
    assert kinds(steps) == [EffectKind.KEEP]
    of = replace(of, try_at=0.0)
    assert decide(of, ended({EffectKind.SAVE: UNSAVED, EffectKind.KEEP: Job()}, **end)) == []
    move = end_of(decide(of, ended({EffectKind.SAVE: UNSAVED, EffectKind.KEEP: KEPT}, **end)))
    assert (move.reason, move.fields["kept_model"]) == (EndReason.INTERNAL, 1)
    assert move.message == f"{WHY} It is kept in /home/me."
    move = end_of(decide(of, ended({EffectKind.SAVE: UNSAVED, EffectKind.KEEP: NOT_KEPT}, **end)))
    assert move.message == f"{WHY} It could not be fetched either: disk full"


def test_what_could_be_saved_at_last_is_no_failure():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED, tries=5)
    last = ended({EffectKind.SAVE: UNSAVED, EffectKind.KEEP: SAVED}, wanted=EndReason.CANCELLED)
    assert end_of(decide(of, last)).reason is EndReason.SUCCEEDED


@pytest.mark.parametrize("end", [EndReason.SUCCEEDED, EndReason.CANCELLED])
def test_a_metric_that_is_not_finite_is_told(end):
    kind = EffectKind.SAVE if end is EndReason.SUCCEEDED else EffectKind.RECOVER
    job = Job(done=True, note="loss is nan since step 3")
    steps = decide(task(State.SAVING, end_reason=end), ended({kind: job}))
    assert [step.message for step in steps if isinstance(step, Note)] == ["loss is nan since step 3"]
    assert end_of(steps).reason is end


def test_a_save_under_way_is_not_cut_short_by_a_cancel_but_by_the_cap():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    under_way = {EffectKind.SAVE: Job()}
    assert decide(of, ended(under_way, wanted=EndReason.CANCELLED, hurry=True)) == []
    assert decide(of, ended(under_way, wanted=EndReason.BUDGET, left_s=100.0)) == []
    assert kinds(decide(of, ended(under_way, wanted=EndReason.BUDGET, left_s=20.0))) == [EffectKind.KEEP]
    fetching = {**under_way, EffectKind.KEEP: Job()}
    assert decide(of, ended(fetching, wanted=EndReason.BUDGET, left_s=5.0)) == []
    assert (
        end_of(decide(of, ended(fetching, wanted=EndReason.BUDGET, left_s=0.0))).reason is EndReason.INTERNAL
    )
    kept = {**under_way, EffectKind.KEEP: KEPT}
    move = end_of(decide(of, ended(kept, wanted=EndReason.BUDGET, left_s=0.0)))
    assert move.fields["kept_model"] == 1


def test_who_cancels_does_not_wait_for_a_store_that_says_nothing():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    under_way = {EffectKind.SAVE: Job()}
    assert decide(of, ended(under_way, is_store_silent=True)) == []
    cancelled = ended(under_way, is_store_silent=True, wanted=EndReason.CANCELLED)
    assert kinds(decide(of, cancelled)) == [EffectKind.KEEP]


def test_a_model_that_came_to_this_machine_on_its_way_is_known_to_be_here():
    """From then on it does not matter what becomes of its nodes."""
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    relayed = replace(UNSAVED, fields={"kept_model": 1, "metrics": {}})
    (counted,) = decide(of, ended({EffectKind.SAVE: relayed}))
    assert counted.fields["kept_model"] == 1
    saved = ended({EffectKind.SAVE: SAVED})
    assert end_of(decide(replace(of, kept_model=1), saved)).fields["kept_model"] is None


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (Job(done=True, error="no metric", users_fault=True), EndReason.USER_ERROR),
        (Job(done=True, error="a link leads outside"), EndReason.INTERNAL),
    ],
)
def test_what_waiting_cannot_help_is_over_at_once(job, reason):
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    assert end_of(decide(of, ended({EffectKind.SAVE: job}))).reason is reason


def test_a_saved_model_is_not_failed_for_want_of_its_last_checkpoint():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    half = replace(UNSAVED, fields={"model_uri": "s3://b/m"})
    (counted,) = decide(of, ended({EffectKind.SAVE: half}))
    assert counted.fields["tries"] == 1, "it is tried for a while"
    for what in (
        decide(replace(of, tries=CHECKPOINT_TRIES), ended({EffectKind.SAVE: half})),
        decide(of, ended({EffectKind.SAVE: half}, wanted=EndReason.CANCELLED)),
    ):
        assert (end_of(what).reason, end_of(what).fields["model_uri"]) == (EndReason.SUCCEEDED, "s3://b/m")


def test_a_last_checkpoint_is_kept_here_before_long_and_the_next_attempt_goes_on():
    unsaved = replace(UNSAVED, error="its last checkpoint could not be saved: s3://b does not answer.")
    of = task(State.RECOVERING, end_reason=EndReason.PREEMPTED, not_before=NOW)
    jobs, now, tried = {EffectKind.RECOVER: unsaved}, NOW, 0
    while EffectKind.KEEP not in kinds(steps := decide(of, seen(exited(FAILED), jobs), now)):
        tried += kinds(steps) == [EffectKind.RECOVER]
        for step in steps:
            of = replace(of, **step.fields) if isinstance(step, Progress) else of
        now = max(now, of.try_at)
    assert tried == CHECKPOINT_TRIES - 1, "and once before"
    assert now - NOW < 60, "nobody waits for hours"
    kept = Job(done=True, error="It is kept in /home/me.", fields={"kept_checkpoint": 1})
    jobs[EffectKind.KEEP] = kept
    steps = decide(of, seen(exited(FAILED), jobs), now)
    note, move, forget = steps
    assert isinstance(note, Note)
    assert note.message == f"{unsaved.error} It is kept in /home/me."
    assert (move.after, move.attempt, move.fields["kept_checkpoint"]) == (State.ACQUIRING, 2, 1)
    assert (move.fields["tries"], forget.kind) == (0, EffectKind.FORGET)


def test_a_checkpoint_that_can_be_neither_published_nor_kept_is_not_given_up():
    of = task(State.RECOVERING, end_reason=EndReason.PREEMPTED, tries=CHECKPOINT_TRIES)
    jobs = {EffectKind.RECOVER: UNSAVED, EffectKind.KEEP: NOT_KEPT}
    (counted,) = decide(of, seen(exited(FAILED), jobs))
    assert counted.fields["tries"] == CHECKPOINT_TRIES + 1
    again = replace(of, **counted.fields)
    assert kinds(decide(again, seen(exited(FAILED), jobs), again.try_at)) == [EffectKind.KEEP]


def test_a_retry_waits_its_turn_whatever_saving_waited_for():
    of = task(State.RECOVERING, end_reason=EndReason.USER_ERROR, not_before=NOW + 100)
    (counted,) = decide(of, seen(exited(FAILED), {EffectKind.RECOVER: UNSAVED}))
    assert "not_before" not in counted.fields
    recovered = seen(exited(FAILED), {EffectKind.RECOVER: Job(done=True)})
    assert decide(replace(of, **counted.fields), recovered) == []


def test_a_published_checkpoint_makes_the_kept_one_needless():
    of = task(State.RUNNING, kept_checkpoint=1)

    published = seen(gang(Phase.RUNNING), {EffectKind.CHECKPOINT: Job(done=True, progressed=True)})
    assert decide(of, published) == [Progress("e", 0, {"kept_checkpoint": None})]


def test_a_model_that_was_lost_does_not_hide_the_checkpoint_that_is_left():
    """It ended well, its model went with a node, and is not asked for once more."""
    lost = Job(done=True, error="what its members made is lost", reason=EndReason.NODE_LOST)
    jobs = {EffectKind.SAVE: lost, EffectKind.RECOVER: UNSAVED}
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED)
    assert kinds(decide(of, ended(jobs, wanted=EndReason.CANCELLED))) == [EffectKind.KEEP]
    kept = Job(done=True, error="It is kept in /home/me.", fields={"kept_checkpoint": 1})
    move = end_of(decide(of, ended({**jobs, EffectKind.KEEP: kept}, wanted=EndReason.CANCELLED)))
    assert (move.reason, move.message) == (EndReason.INTERNAL, lost.error)
    assert move.fields["kept_checkpoint"] == 1


def test_who_is_cancelled_while_it_runs_loses_neither_model_nor_checkpoint():
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED)
    won = ended({EffectKind.SAVE: UNSAVED}, wanted=EndReason.CANCELLED)
    assert kinds(decide(of, won)) == [EffectKind.KEEP]
    stopped = seen(exited(FAILED), {EffectKind.RECOVER: UNSAVED}, wanted=EndReason.CANCELLED)
    assert kinds(decide(of, stopped)) == [EffectKind.KEEP]
    hopeless = seen(exited(FAILED), {EffectKind.RECOVER: UNSAVED}, wanted=EndReason.PRUNED)
    assert end_of(decide(replace(of, end_reason=EndReason.PRUNED), hopeless)).reason is EndReason.PRUNED


# --- out of memory -----------------------------------------------------------------------------------------

OOM = Job(done=True, reason=EndReason.OOM, message="worker-0 ran out of memory: MemoryError")


def out_of_memory(more, reason=EndReason.USER_ERROR, now=NOW):
    what = replace(ended({EffectKind.RECOVER: OOM}), more_memory=more)
    return decide(task(State.RECOVERING, end_reason=reason, retries_used=1), what, now)


@pytest.mark.parametrize("reason", [EndReason.USER_ERROR, EndReason.OOM])
def test_after_out_of_memory_larger_machines_are_asked_for_before_the_next_attempt(reason):
    assert kinds(out_of_memory(MoreMemory("larger ones"), reason)) == [EffectKind.ENLARGE]
    note, move, *_ = out_of_memory(MoreMemory("larger ones", is_planned=True), reason)
    assert note == Note("larger ones", "e", 0, 1), "told once, when it is so"
    assert (move.after, move.attempt, move.closes.reason) == (State.ACQUIRING, 2, EndReason.OOM)


def test_without_money_for_larger_machines_the_same_are_not_tried_in_vain():
    note, move = out_of_memory(MoreMemory("too dear", is_allowed=False))
    assert note == Note("too dear", "e", 0, 1)
    assert (move.after, move.reason) == (State.STOPPING, EndReason.OOM)
    of = task(State.STOPPING, end_reason=EndReason.OOM, retries_used=1)
    done = end_of(decide(of, seen(exited(FAILED), {EffectKind.RECOVER: OOM})))
    assert done.reason is EndReason.OOM
    assert "hardware.memory" in done.message


def test_where_nothing_larger_is_known_it_is_tried_again_as_the_recipe_says():
    (move,) = [step for step in out_of_memory(None) if isinstance(step, TaskChange)]
    assert move.after is State.ACQUIRING
