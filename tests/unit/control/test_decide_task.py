"""One state after the other: what follows from what was observed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_nouns import NOW, exited, experiment, gang, member, run_state, seen, task

from trainmaster.control.decide.outcome import MAX_BACKOFF_S, backoff_s
from trainmaster.control.decide.saving import NOT_REACHED
from trainmaster.control.decide.task import DIED_AT_ONCE_S, Effect, EffectKind, Job, Policy, decide_task
from trainmaster.db.changes import Note, Progress, TaskChange
from trainmaster.executors.base import MemberStatus, Phase
from trainmaster.spec.states import MAX_FREE_RESTARTS, MAX_STAGE_TRIES, EndReason, Overuse, State
from trainmaster.spec.topics import OUTPUT_LOST
from trainmaster.spec.until import Until

POLICY = Policy(retries=1, timeout_s=100, grace_s=7, checkpoint_every_s=60)
DONE = Job(done=True)
FAILED = member(exit_code=3)


def decide(of, what, policy=POLICY, now=NOW):
    return decide_task(of, what, policy, now)


def kinds(steps):
    return [step.kind for step in steps if isinstance(step, Effect)]


def moves(steps):
    return [step for step in steps if isinstance(step, TaskChange)]


def only_move(steps) -> TaskChange:
    (move,) = moves(steps)
    return move


def test_a_planned_task_opens_its_first_attempt():
    move = only_move(decide(task(State.PLANNED, attempt=0), seen()))
    assert (move.after, move.attempt, move.opens, move.closes) == (State.ACQUIRING, 1, True, None)


@pytest.mark.parametrize("state", [State.ACQUIRING, State.STAGING])
def test_an_attempt_that_the_node_does_not_know_is_submitted(state):
    assert kinds(decide(task(state), seen())) == [EffectKind.SUBMIT]


@pytest.mark.parametrize("member_", [member(exit_code=0), FAILED])
def test_output_that_was_lost_is_told(member_):
    of = replace(exited(member_), addresses={"worker-0": "10.0.0.7"})
    assert not any(isinstance(step, Note) for step in decide(task(State.RUNNING), seen(of)))
    lost = replace(of, members=(replace(of.members[0], lost_log_bytes=5000),))
    (note, _) = decide(task(State.RUNNING), seen(lost))
    assert isinstance(note, Note)
    assert "worker-0: the last 5,000 bytes" in note.message
    assert "the disk of 10.0.0.7" in note.message
    assert note.topic == OUTPUT_LOST


@pytest.mark.parametrize("state", [State.ACQUIRING, State.STAGING])
def test_a_queued_attempt_waits(state):
    assert decide(task(state), seen(gang(Phase.QUEUED))) == []


@pytest.mark.parametrize("phase", [Phase.GRANTED, Phase.RUNNING, Phase.EXITED])
def test_a_granted_attempt_is_staged_also_if_it_is_further_than_that(phase):
    assert only_move(decide(task(State.ACQUIRING), seen(gang(phase)))).after is State.STAGING


def test_staging_begins_a_job_waits_for_it_launches_once():
    granted = gang(Phase.GRANTED)
    assert kinds(decide(task(State.STAGING), seen(granted))) == [EffectKind.STAGE]
    assert decide(task(State.STAGING), seen(granted, {EffectKind.STAGE: Job()})) == []
    staged = {EffectKind.STAGE: Job(done=True, fields={"restored": 4})}
    steps = decide(task(State.STAGING), seen(granted, staged))
    assert steps[0] == Progress("e", 0, {"restored": 4})
    assert kinds(steps) == [EffectKind.LAUNCH]
    assert decide(task(State.STAGING), seen(granted, staged, launched=True)) == []
    told = {EffectKind.STAGE: Job(done=True, fields={"restored": 3}, note="4 is damaged")}
    assert decide(task(State.STAGING), seen(granted, told))[0] == Note("4 is damaged", "e", 0, 1)


@pytest.mark.parametrize(
    ("users_fault", "reason"), [(True, EndReason.USER_ERROR), (False, EndReason.INTERNAL)]
)
def test_a_failed_stage_ends_the_task(users_fault, reason):
    job = Job(done=True, error="setup failed", users_fault=users_fault)
    move = only_move(decide(task(State.STAGING), seen(gang(Phase.GRANTED), {EffectKind.STAGE: job})))
    assert (move.after, move.reason, move.message) == (State.STOPPING, reason, "setup failed")
    assert move.fields["end_reason"] is reason


def test_a_stage_that_a_node_made_fail_begins_anew_but_not_for_ever():
    job = Job(done=True, error="h0: nothing answers", reason=EndReason.NODE_LOST)
    failed = seen(gang(Phase.GRANTED), {EffectKind.STAGE: job})
    no_retries = Policy(retries=0)
    now, waited_s = NOW, []
    of = task(State.STAGING)
    for count in range(1, MAX_STAGE_TRIES + 1):
        (counted,) = decide(of, failed, no_retries, now)
        assert counted.fields["tries"] == count
        of = replace(of, **counted.fields)
        waited_s.append(of.try_at - now)
        if waited_s[-1]:
            assert decide(of, failed, no_retries, of.try_at - 0.1) == []
        now = of.try_at
        steps = decide(of, failed, no_retries, now)
        assert kinds(steps) == [EffectKind.STAGE]
        of = replace(of, **steps[0].fields)
        assert decide(of, seen(gang(Phase.GRANTED), {EffectKind.STAGE: Job()}), no_retries, now) == []
    assert waited_s[:5] == [0, 1, 2, 4, 8]
    assert sum(waited_s) > 600, "beside the patience of each"
    move = only_move(decide(of, failed, no_retries, now))
    assert (move.after, move.reason, move.message) == (State.STOPPING, EndReason.INTERNAL, job.error)


def test_a_stage_that_has_no_room_here_begins_anew_for_as_long_as_it_takes():
    job = Job(done=True, error="No space left on device", lacks_room=True)
    full = seen(gang(Phase.GRANTED), {EffectKind.STAGE: job})
    now, of = NOW, task(State.STAGING)
    for _ in range(5 * MAX_STAGE_TRIES):
        (counted,) = decide(of, full, Policy(retries=0), now)
        of = replace(of, **counted.fields)
        now = of.try_at
        steps = decide(of, full, Policy(retries=0), now)
        assert kinds(steps) == [EffectKind.STAGE]
        of = replace(of, **steps[0].fields)
    assert of.retries_used == of.free_restarts == 0
    staged = seen(gang(Phase.GRANTED), {EffectKind.STAGE: Job(done=True)})
    steps = decide(of, staged, Policy(), now)
    assert (steps[0].fields, kinds(steps)) == ({"tries": 0}, [EffectKind.LAUNCH])


@pytest.mark.parametrize(
    ("state", "kind", "status"),
    [
        (State.STAGING, EffectKind.STAGE, gang(Phase.GRANTED)),
        (State.SAVING, EffectKind.SAVE, exited()),
    ],
)
def test_a_control_process_that_comes_anew_keeps_to_the_pause(state, kind, status):
    of = task(state, tries=9, try_at=NOW + 60, end_reason=EndReason.SUCCEEDED)
    assert decide(of, seen(status)) == []
    steps = decide(of, seen(status), now=NOW + 60)
    assert steps[0] == Progress("e", 0, {"try_at": 0.0})
    assert kinds(steps) == [kind]


def test_what_an_outage_used_is_given_back_once_the_attempt_is_staged():
    staged = seen(gang(Phase.GRANTED), {EffectKind.STAGE: Job(done=True, fields={"restored": 4})})
    steps = decide(task(State.STAGING, tries=7, free_restarts=3), staged)
    assert steps[0] == Progress("e", 0, {"restored": 4, "tries": 0})


def test_a_checkpoint_is_not_blamed_for_what_its_node_lost():
    exited = gang(Phase.EXITED, FAILED)
    of = task(State.RECOVERING, end_reason=EndReason.USER_ERROR, retries_used=1, restored=7)
    lost = Job(done=True, reason=EndReason.NODE_LOST, message="data.x was no longer there")
    (move,) = moves(decide(of, seen(exited, {EffectKind.RECOVER: lost})))
    assert "bad_checkpoints" not in move.fields
    assert (move.fields["retries_used"], move.fields["free_restarts"]) == (0, 1)
    (move,) = moves(decide(of, seen(exited, {EffectKind.RECOVER: DONE})))
    assert move.fields["bad_checkpoints"] == (7,), "its own fault"


def test_a_running_attempt_is_left_alone():
    assert decide(task(State.RUNNING), seen(gang(Phase.RUNNING))) == []


def test_a_checkpoint_is_due_every_so_often_but_one_at_a_time():
    running, long_ago = gang(Phase.RUNNING), NOW - 60
    due = seen(running, last_checkpoint_at=long_ago)
    assert kinds(decide(task(State.RUNNING), due)) == [EffectKind.CHECKPOINT]
    slow = seen(running, {EffectKind.CHECKPOINT: Job()}, last_checkpoint_at=long_ago)
    assert decide(task(State.RUNNING), slow) == []
    again = seen(running, {EffectKind.CHECKPOINT: DONE}, last_checkpoint_at=long_ago)
    assert kinds(decide(task(State.RUNNING), again)) == [EffectKind.CHECKPOINT]


def test_a_timeout_stops_the_members_with_grace():
    (effect,) = decide(task(State.RUNNING), seen(gang(Phase.RUNNING), running_since=NOW - 100))
    assert (effect.kind, effect.grace_s) == (EffectKind.STOP, 7)


def test_a_timeout_goes_by_our_clock_whatever_the_nodes_say():
    """A node's clock may be hours ahead or behind, and be set while an attempt runs."""
    ahead = replace(gang(Phase.RUNNING), started_at=NOW + 3600)
    behind = replace(gang(Phase.RUNNING), started_at=NOW - 3600)
    assert decide(task(State.RUNNING), seen(behind, running_since=NOW - 99)) == []
    assert kinds(decide(task(State.RUNNING), seen(ahead, running_since=NOW - 100))) == [EffectKind.STOP]


def test_success_is_saved():
    move = only_move(decide(task(State.RUNNING), seen(exited())))
    assert (move.after, move.fields["end_reason"]) == (State.SAVING, EndReason.SUCCEEDED)


def test_a_user_error_uses_a_retry_then_none_are_left():
    first = only_move(decide(task(State.RUNNING), seen(exited(FAILED))))
    assert first.after is State.RECOVERING
    assert first.fields == {"end_reason": EndReason.USER_ERROR, "retries_used": 1, "not_before": NOW}
    last = only_move(decide(task(State.RUNNING, retries_used=1), seen(exited(FAILED))))
    assert (last.after, last.reason) == (State.SAVING, EndReason.USER_ERROR)
    assert "retries_used" not in last.fields


@pytest.mark.parametrize("phase", [Phase.UNKNOWN, Phase.QUEUED, Phase.GRANTED])
def test_an_attempt_that_ran_and_is_unknown_now_is_lost_for_free(phase):
    move = only_move(decide(task(State.RUNNING), seen(gang(phase))))
    assert (move.after, move.reason) == (State.RECOVERING, EndReason.NODE_LOST)
    assert move.fields == {"end_reason": EndReason.NODE_LOST, "free_restarts": 1}


def test_free_restarts_have_a_cap():
    tired = task(State.RUNNING, free_restarts=MAX_FREE_RESTARTS)
    assert only_move(decide(tired, seen())).after is State.SAVING


def test_recovering_runs_its_job_waits_its_turn_and_opens_the_next_attempt():
    of = task(State.RECOVERING, end_reason=EndReason.USER_ERROR, not_before=NOW + 4, message="exit code 3")
    assert kinds(decide(of, seen(exited(FAILED)))) == [EffectKind.RECOVER]
    assert decide(of, seen(exited(FAILED), {EffectKind.RECOVER: Job()})) == []
    job = Job(done=True, progressed=True, last_errors={FAILED.name: "KeyError: 'lr'"})
    recovered = seen(exited(FAILED), {EffectKind.RECOVER: job})
    assert decide(of, recovered) == []
    steps = decide(of, recovered, now=NOW + 4)
    move = only_move(steps)
    assert (move.after, move.attempt, move.opens) == (State.ACQUIRING, 2, True)
    assert (move.closes.number, move.closes.reason) == (1, EndReason.USER_ERROR)
    assert move.closes.message == "exit code 3 (KeyError: 'lr')"
    assert steps[-1] == Effect(EffectKind.FORGET, "e", 0, 1)


def test_the_reason_of_the_last_attempt_is_what_the_log_says():
    of = task(State.SAVING, end_reason=EndReason.USER_ERROR, message="exit code 3")
    job = Job(done=True, last_errors={FAILED.name: "KeyError: 'lr'"})
    move = only_move(decide(of, seen(exited(FAILED), {EffectKind.RECOVER: job})))
    assert move.message == move.closes.message == "exit code 3 (KeyError: 'lr')"
    known = replace(job, message="NCCL is missing")
    move = only_move(decide(of, seen(exited(FAILED), {EffectKind.RECOVER: known})))
    assert move.message == "NCCL is missing"


def test_the_log_may_know_a_better_reason():
    job = Job(done=True, reason=EndReason.OOM, message="worker-0 ran out of memory")
    of = task(State.RECOVERING, end_reason=EndReason.USER_ERROR)
    closes = only_move(decide(of, seen(exited(FAILED), {EffectKind.RECOVER: job}))).closes
    assert (closes.reason, closes.message) == (EndReason.OOM, "worker-0 ran out of memory")


def test_whoever_ran_out_of_memory_for_good_is_told_what_helps():
    killed = task(State.SAVING, end_reason=EndReason.OOM, message="killed: out of memory")
    read = Job(done=True, reason=EndReason.OOM, message="worker-0 ran out of memory")
    failed = task(State.SAVING, end_reason=EndReason.USER_ERROR)
    for of, job in ((killed, Job(done=True)), (failed, read)):
        end = only_move(decide(of, seen(exited(FAILED), {EffectKind.RECOVER: job})))
        assert end.reason is EndReason.OOM
        assert "out of memory" in end.message
        assert "smaller batch" in end.message
        assert "hardware.memory" in end.message


@pytest.mark.parametrize(
    ("progressed", "seconds", "reason", "bad"),
    [
        (False, 1, EndReason.USER_ERROR, (2, 3)),
        (True, 1, EndReason.USER_ERROR, None),
        (False, DIED_AT_ONCE_S, EndReason.USER_ERROR, None),
        (False, 1, EndReason.NODE_LOST, None),
    ],
)
def test_a_checkpoint_from_which_an_attempt_died_at_once_is_not_used_again(progressed, seconds, reason, bad):
    of = task(State.RECOVERING, end_reason=reason, restored=3, bad_checkpoints=(2,))
    job = Job(done=True, progressed=progressed)
    move = only_move(decide(of, seen(exited(FAILED, seconds=seconds), {EffectKind.RECOVER: job})))
    assert move.fields.get("bad_checkpoints") == bad
    assert move.fields["restored"] is None


def test_saving_publishes_then_ends():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED, message="old news")
    assert kinds(decide(of, seen(exited()))) == [EffectKind.SAVE]
    job = Job(done=True, fields={"model_uri": "file:///m", "metrics": {"a": 1}})
    steps = decide(of, seen(exited(), {EffectKind.SAVE: job}))
    move = only_move(steps)
    assert (move.after, move.reason, move.message) == (State.DONE, EndReason.SUCCEEDED, "")
    assert move.fields == {"model_uri": "file:///m", "metrics": {"a": 1}, "ended_at": NOW}
    assert kinds(steps) == [EffectKind.FORGET]


def test_a_model_that_cannot_be_saved_fails_the_task_and_is_no_model():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    job = Job(done=True, error="disk full", fields={"model_uri": "file:///m"})
    move = only_move(decide(of, seen(exited(), {EffectKind.SAVE: job})))
    assert (move.reason, move.message) == (EndReason.INTERNAL, "disk full")
    assert (move.closes.reason, move.closes.message) == (EndReason.INTERNAL, "disk full")
    assert "model_uri" not in move.fields


def test_what_failed_for_good_is_recovered_not_saved():
    of = task(State.SAVING, end_reason=EndReason.USER_ERROR)
    assert kinds(decide(of, seen(exited(FAILED)))) == [EffectKind.RECOVER]


def test_a_finished_attempt_is_saved_also_if_the_run_is_to_end():
    of = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    assert kinds(decide(of, seen(exited(), wanted=EndReason.CANCELLED))) == [EffectKind.SAVE]


@pytest.mark.parametrize("state", [State.RECOVERING, State.SAVING, State.STOPPING])
def test_the_end_waits_for_a_checkpoint_that_is_being_published(state):
    of = task(state, end_reason=EndReason.USER_ERROR)
    assert decide(of, seen(exited(FAILED), {EffectKind.CHECKPOINT: Job()})) == []
    assert kinds(decide(of, seen(exited(FAILED), {EffectKind.CHECKPOINT: DONE}))) == [EffectKind.RECOVER]


@pytest.mark.parametrize("state", [State.ACQUIRING, State.STAGING, State.RUNNING, State.RECOVERING])
def test_what_is_under_way_is_stopped_on_demand(state):
    move = only_move(decide(task(state), seen(gang(Phase.RUNNING), wanted=EndReason.BUDGET)))
    assert (move.after, move.reason, move.closes) == (State.STOPPING, EndReason.BUDGET, None)
    assert move.fields == {"end_reason": EndReason.BUDGET}


@pytest.mark.parametrize(("state", "attempt"), [(State.WAITING, 0), (State.PLANNED, 0), (State.WAITING, 2)])
def test_what_has_not_begun_ends_at_once_and_closes_nothing(state, attempt):
    ended = replace(seen(exited(), wanted=EndReason.CANCELLED), why="ann has ended it")
    steps = decide(task(state, attempt=attempt), ended)
    assert [(step.before, step.after) for step in steps] == [
        (state, State.STOPPING),
        (State.STOPPING, State.DONE),
    ]
    assert [step.closes for step in steps] == [None, None]
    assert steps[-1].reason is EndReason.CANCELLED
    assert steps[-1].message == "ann has ended it"


@pytest.mark.parametrize("phase", [Phase.QUEUED, Phase.GRANTED, Phase.RUNNING])
@pytest.mark.parametrize(("hurry", "grace_s"), [(False, 7), (True, 0)])
def test_stopping_asks_the_node(phase, hurry, grace_s):
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED)
    (effect,) = decide(of, seen(gang(phase), wanted=EndReason.CANCELLED, hurry=hurry))
    assert (effect.kind, effect.grace_s) == (EffectKind.STOP, grace_s)


def test_stopping_ends_when_nothing_is_there():
    steps = decide(task(State.STOPPING, end_reason=EndReason.CANCELLED), seen())
    move = only_move(steps)
    assert (move.after, move.reason, move.closes.reason) == (
        State.DONE,
        EndReason.CANCELLED,
        EndReason.CANCELLED,
    )
    assert kinds(steps) == [EffectKind.FORGET]


def test_an_attempt_whose_machines_are_out_of_reach_at_its_end_keeps_its_reason():
    ran = {"attempt": 2, "started_at": NOW - 60.0, "message": "worker-0: exit code 1"}
    cancelled = task(State.STOPPING, end_reason=EndReason.CANCELLED, **ran)
    assert only_move(decide(cancelled, seen(wanted=EndReason.CANCELLED))).message == NOT_REACHED
    dear = replace(seen(wanted=EndReason.BUDGET), why="it may cost $5.00")
    move = only_move(decide(task(State.STOPPING, end_reason=EndReason.BUDGET, **ran), dear))
    assert move.message == move.closes.message == f"it may cost $5.00; {NOT_REACHED}"
    of = task(State.STOPPING, end_reason=EndReason.OOM, **ran)
    assert only_move(decide(of, seen(wanted=EndReason.CANCELLED))).message.startswith(
        "worker-0: exit code 1; "
    )


def test_a_task_that_is_cancelled_after_a_loss_says_nothing_of_that():
    lost = "worker-0: its machine, or what watched it there, died, so how it ended is not known"
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED, attempt=1, message=lost)
    recovered = {EffectKind.RECOVER: DONE}
    move = only_move(decide(of, seen(exited(FAILED), recovered, wanted=EndReason.CANCELLED)))
    assert (move.reason, move.message, move.closes.message) == (EndReason.CANCELLED, "", "")
    dear = replace(seen(exited(FAILED), recovered, wanted=EndReason.BUDGET), why="it may cost $5.00")
    move = only_move(decide(replace(of, end_reason=EndReason.BUDGET), dear))
    assert move.message == move.closes.message == "it may cost $5.00"
    failed = replace(of, end_reason=EndReason.USER_ERROR, message="worker-0: exit code 1")
    move = only_move(decide(failed, seen(exited(FAILED), recovered, wanted=EndReason.CANCELLED)))
    assert move.message.startswith("worker-0: exit code 1")


def test_of_an_attempt_that_never_began_nothing_is_out_of_reach():
    of = task(State.RECOVERING, end_reason=EndReason.USER_ERROR, started_at=NOW - 60.0)
    recovered = seen(exited(FAILED), {EffectKind.RECOVER: DONE})
    opened = only_move(decide(of, recovered))
    whole = run_state(experiment(state=State.RUNNING, created=1))
    whole.experiments["e"].live[0] = of
    whole.apply(opened)
    whole.apply(TaskChange("e", 0, 2, State.ACQUIRING, State.STAGING))
    words = {"end_reason": EndReason.INTERNAL}
    whole.apply(
        TaskChange("e", 0, 2, State.STAGING, State.STOPPING, EndReason.INTERNAL, "setup failed", words)
    )
    move = only_move(decide(of, seen()))
    assert (move.reason, move.message, move.closes.message) == (
        EndReason.INTERNAL,
        "setup failed",
        "setup failed",
    )


def test_stopped_members_leave_their_checkpoint():
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED)
    stopped = exited(member(exit_code=143, stopped=True))
    assert kinds(decide(of, seen(stopped))) == [EffectKind.RECOVER]
    assert only_move(decide(of, seen(stopped, {EffectKind.RECOVER: DONE}))).reason is EndReason.CANCELLED


def test_what_ended_well_before_it_was_stopped_is_kept():
    of = task(State.STOPPING, end_reason=EndReason.CANCELLED)
    assert kinds(decide(of, seen(exited()))) == [EffectKind.SAVE]
    saved = Job(done=True, fields={"model_uri": "file:///m"})
    move = only_move(decide(of, seen(exited(), {EffectKind.SAVE: saved})))
    assert (move.reason, move.fields["model_uri"]) == (EndReason.SUCCEEDED, "file:///m")


def test_half_a_gang_that_ended_well_is_no_success():
    of = task(State.RUNNING)
    half = exited(
        member("worker-0", exit_code=0), member("worker-1", exit_code=143, stopped=True), seconds=100
    )
    assert only_move(decide(of, seen(half))).reason is EndReason.TIMEOUT


def test_nothing_follows_the_end():
    assert decide(task(State.DONE), seen()) == []


def test_backoff_begins_at_once_doubles_and_has_a_limit():
    waits = [backoff_s(retry) for retry in range(1, 40)]
    assert waits[:5] == [0, 1, 2, 4, 8]
    assert waits == sorted(waits)
    assert waits[-1] == MAX_BACKOFF_S


@pytest.mark.parametrize("retries", [0, 1])
def test_a_script_that_failed_as_its_node_lost_its_data_goes_on_for_free(retries):
    policy = Policy(retries=retries)
    failed = gang(Phase.EXITED, FAILED)
    of = only_move(decide(task(State.RUNNING), seen(failed), policy))
    assert of.after is (State.RECOVERING if retries else State.SAVING)
    lost = Job(done=True, reason=EndReason.NODE_LOST, message="data.x was no longer there")
    after = task(of.after, **of.fields)
    job = seen(failed, jobs={EffectKind.RECOVER: lost})
    move = only_move(decide(after, job, policy, now=NOW + 60))
    if not retries:
        assert (move.after, move.reason, move.message) == (
            State.RECOVERING,
            EndReason.NODE_LOST,
            lost.message,
        )
        move = only_move(decide(task(State.RECOVERING, **move.fields), job, policy))
        assert move.closes.reason is EndReason.NODE_LOST
    else:
        assert (move.fields["retries_used"], move.fields["free_restarts"]) == (0, 1)
    assert (move.after, move.attempt) == (State.ACQUIRING, 2)
    # not for ever
    often = task(State.SAVING, end_reason=EndReason.USER_ERROR, free_restarts=MAX_FREE_RESTARTS)
    assert only_move(decide(often, job, policy)).after is State.DONE


@pytest.mark.parametrize("overuse", Overuse)
def test_what_used_up_its_machine_has_its_retries_and_no_others(overuse):
    """Whatever is found where the machine is gone."""
    failed = replace(exited(member(lost=True)), lost_nodes=("machine p was ended: full",), overused=overuse)
    move = only_move(decide(task(State.RUNNING), seen(failed), Policy(retries=1)))
    assert (move.after, move.message) == (State.RECOVERING, "machine p was ended: full")
    assert move.fields["retries_used"] == 1
    gone = seen(failed, jobs={EffectKind.RECOVER: Job(done=True, reason=EndReason.NODE_LOST)})
    again = only_move(decide(task(State.RECOVERING, **move.fields), gone, Policy(retries=1), now=NOW + 60))
    assert "free_restarts" not in again.fields
    last = only_move(decide(task(State.RUNNING, **move.fields), seen(failed), Policy(retries=1)))
    over = only_move(decide(task(State.SAVING, message=last.message, **last.fields), gone, Policy(retries=1)))
    assert (over.after, over.reason) == (State.DONE, move.reason)
    assert over.message.startswith("machine p was ended: full")


UNTIL = Policy(timeout_s=100, grace_s=7, until=Until("accuracy", ">=", 0.9))
STOPPED = (member(signal=15, stopped=True), member("worker-1", exit_code=0, stopped=True))


def test_until_is_recorded_before_the_members_are_stopped():
    running = replace(seen(gang(Phase.RUNNING)), reached="it held")
    assert decide(task(State.RUNNING), running, UNTIL) == [Progress("e", 0, {"end_reason": EndReason.UNTIL})]
    recorded = task(State.RUNNING, end_reason=EndReason.UNTIL)
    # A driver that came later has not read what was reported.
    assert decide(recorded, seen(gang(Phase.RUNNING)), UNTIL) == [
        Effect(EffectKind.STOP, "e", 0, 1, grace_s=7)
    ]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (STOPPED, EndReason.UNTIL),
        ((member(exit_code=0), member("worker-1", exit_code=0)), EndReason.SUCCEEDED),
        ((member(exit_code=3), STOPPED[1]), EndReason.USER_ERROR),
        ((member(lost=True), STOPPED[1]), EndReason.NODE_LOST),
    ],
)
def test_only_what_we_stopped_ended_early(members, reason):
    recorded = task(State.RUNNING, end_reason=EndReason.UNTIL)
    move = only_move(decide(recorded, seen(exited(*members, seconds=200)), UNTIL))
    assert move.reason is reason
    assert move.fields["end_reason"] is reason


def test_what_ended_early_leaves_its_model_and_is_a_success():
    saved = task(State.SAVING, end_reason=EndReason.UNTIL, message="it held")
    assert kinds(decide(saved, seen(exited(*STOPPED)), UNTIL)) == [EffectKind.SAVE]
    job = Job(done=True, fields={"model_uri": "file:///m"})
    move = only_move(decide(saved, seen(exited(*STOPPED), {EffectKind.SAVE: job}), UNTIL))
    assert (move.after, move.reason, move.message) == (State.DONE, EndReason.UNTIL, "it held")
    assert move.fields["model_uri"] == "file:///m"
    assert move.reason.is_success


def test_what_ended_by_itself_says_why_until_did_not_end_it():
    saved = task(State.SAVING, end_reason=EndReason.SUCCEEDED)
    job = Job(done=True, fields={"metrics": {"accuracy": 0.5}})
    move = only_move(decide(saved, seen(exited(), {EffectKind.SAVE: job}), UNTIL))
    assert move.reason is EndReason.SUCCEEDED
    assert move.message == "until accuracy >= 0.9 was not reached: the last accuracy is 0.5"


@pytest.mark.parametrize(
    ("still_s", "longest_pause_s", "is_lost", "stops"),
    [
        (89, 1, True, False),
        (90, 1, True, True),
        (90, 1, False, False),
        (299, 100, True, False),
        (300, 100, True, True),
        (9000, None, True, False),
    ],
)
def test_what_waits_in_vain_for_a_lost_member_is_stopped(still_s, longest_pause_s, is_lost, stops):
    lives = MemberStatus("chief-0", 7, NOW - 500, None)
    status = gang(Phase.RUNNING, lives, member("worker-1", lost=is_lost))
    found = replace(seen(status), moved_at=NOW - still_s, longest_pause_s=longest_pause_s)
    steps = decide(task(State.RUNNING), found, replace(POLICY, timeout_s=None))
    assert kinds(steps) == [EffectKind.STOP] * stops
    assert not kinds(
        decide(task(State.RUNNING), replace(found, moved_at=None), replace(POLICY, timeout_s=None))
    )


def test_what_waited_in_vain_goes_on_from_its_checkpoint_and_says_why():
    members = member("chief-0", signal=15, stopped=True), member("worker-1", lost=True)
    found = replace(seen(exited(*members)), moved_at=NOW - 97, longest_pause_s=1.0)
    move = only_move(decide(task(State.RUNNING), found))
    assert (move.after, move.reason) == (State.RECOVERING, EndReason.NODE_LOST)
    assert move.message == "worker-1 was lost with its machine, and the others reported nothing more for 97 s"
    assert move.fields["free_restarts"] == 1


def test_one_that_shows_no_sign_of_work_is_recorded_then_stopped_and_ends_as_timeout():
    policy = replace(POLICY, timeout_s=None, silence_s=600.0, retries=0)
    running = seen(gang(Phase.RUNNING, MemberStatus("worker-0", 7, NOW - 900, None)))
    assert kinds(decide(task(State.RUNNING), replace(running, silent_s=599.0), policy)) == []
    silent = replace(running, silent_s=600.0)
    assert not kinds(decide(task(State.RUNNING), silent, replace(policy, silence_s=None)))
    assert decide(task(State.RUNNING), silent, policy) == [
        Progress("e", 0, {"end_reason": EndReason.TIMEOUT})
    ]
    recorded = task(State.RUNNING, end_reason=EndReason.TIMEOUT)
    (stop,) = decide(recorded, running, policy)  # also by a driver that has not seen the silence
    assert (stop.kind, stop.grace_s, stop.stacks) == (EffectKind.STOP, 7, True)
    move = only_move(decide(recorded, seen(exited(member(exit_code=134))), policy))
    assert (move.after, move.reason) == (State.SAVING, EndReason.TIMEOUT)
    assert move.message.startswith("stopped after 10 min without a sign of work (silence)")
    assert only_move(decide(recorded, seen(exited()), policy)).reason is EndReason.SUCCEEDED
