"""Whatever is observed, in whatever order: only what the table allows, and it always goes on."""

from __future__ import annotations

from control_nouns import NOW, experiment, run_state
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.decide.task import Effect, EffectKind, Job, ObservedTask, Policy, decide_task
from trainmaster.db.changes import TaskChange
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.spec.states import TRANSITIONS, EndReason, State, may_follow

ALLOWED = {
    State.PLANNED: set(),
    State.ACQUIRING: {EffectKind.SUBMIT},
    State.STAGING: {EffectKind.SUBMIT, EffectKind.STAGE, EffectKind.LAUNCH},
    State.RUNNING: {EffectKind.STOP, EffectKind.CHECKPOINT},
    State.RECOVERING: {EffectKind.RECOVER, EffectKind.KEEP, EffectKind.FORGET},
    State.SAVING: {EffectKind.SAVE, EffectKind.RECOVER, EffectKind.KEEP, EffectKind.FORGET},
    State.STOPPING: {
        EffectKind.STOP,
        EffectKind.SAVE,
        EffectKind.RECOVER,
        EffectKind.KEEP,
        EffectKind.FORGET,
    },
}

members = st.builds(
    MemberStatus,
    name=st.sampled_from(["worker-0", "worker-1", "ps-0"]),
    started_at=st.just(NOW),
    ended_at=st.just(NOW + 1),
    exit_code=st.sampled_from([None, 0, 1, 137]),
    signal=st.sampled_from([None, 9, 99]),
    stopped=st.booleans(),
    lost=st.booleans(),
    oom=st.booleans(),
    error=st.sampled_from(["", "no such file"]),
)
gangs = st.builds(
    GangStatus,
    attempt=st.just("r/e/0/1"),
    phase=st.sampled_from(Phase),
    members=st.lists(members, max_size=3).map(tuple),
    started_at=st.sampled_from([None, NOW]),
    ended_at=st.sampled_from([None, NOW + 1]),
)
jobs = st.builds(
    Job,
    done=st.booleans(),
    error=st.sampled_from(["", "disk full"]),
    users_fault=st.booleans(),
    reason=st.sampled_from([None, EndReason.OOM, EndReason.NODE_LOST]),
    progressed=st.booleans(),
    unsaved=st.booleans(),
    fields=st.sampled_from([{}, {"kept_model": 1}, {"kept_checkpoint": 1}, {"model_uri": "s3://b/m"}]),
)
observations = st.builds(
    ObservedTask,
    gang=gangs,
    jobs=st.dictionaries(
        st.sampled_from(
            [EffectKind.STAGE, EffectKind.SAVE, EffectKind.RECOVER, EffectKind.CHECKPOINT, EffectKind.KEEP]
        ),
        jobs,
    ),
    wanted=st.sampled_from([None, None, None, EndReason.CANCELLED, EndReason.BUDGET]),
    hurry=st.booleans(),
    launched=st.booleans(),
    last_checkpoint_at=st.just(NOW),
    is_wait_over=st.booleans(),
    left_s=st.sampled_from([float("inf"), 20.0, 0.0]),
)
policies = st.builds(
    Policy,
    retries=st.integers(0, 3),
    timeout_s=st.sampled_from([None, 1.0]),
    helpers=st.just(frozenset({"ps-0"})),
)


@given(policies, st.lists(observations, min_size=1, max_size=30))
def test_any_observations_lead_only_where_the_table_allows(policy, seens):
    whole = run_state(experiment())
    whole.apply(TaskChange("e", 0, 0, State.WAITING, State.PLANNED, creates=True))
    task = whole.experiments["e"].live[0]
    opened: list[int] = []
    closed: list[int] = []
    for number, seen in enumerate(seens):
        if task.state is State.DONE:
            break
        before, wanted = task.state, seen.wanted
        for step in decide_task(task, seen, policy, NOW + 1000 * number):
            if isinstance(step, Effect):
                assert step.kind in ALLOWED[before]
                assert step.kind is not EffectKind.FORGET or step.attempt in closed
                continue
            whole.apply(step)  # asserts the table
            if isinstance(step, TaskChange):
                assert may_follow(step.before, step.after)
                if step.closes:
                    closed.append(step.closes.number)
                if step.opens:
                    opened.append(step.attempt)
        if wanted and before not in (State.SAVING, State.STOPPING, State.DONE):
            assert task.state in (State.STOPPING, State.DONE)
    assert opened == list(range(1, task.attempt + 1))
    assert closed == opened[: len(closed)]
    assert len(opened) - len(closed) == (0 if task.state in (State.DONE, State.PLANNED) else 1)
    counts = whole.experiments["e"].tally()
    assert counts.pop("total") == sum(counts.values()) == 1


def test_every_state_leads_to_the_end():
    for state in State:
        reached = {state}
        while True:
            more = {after for before in reached for after in TRANSITIONS[before]} - reached
            if not more:
                break
            reached |= more
        assert State.DONE in reached
