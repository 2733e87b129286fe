"""The board: counters that add up, and changes that must be allowed."""

from __future__ import annotations

import pytest
from control_nouns import experiment, run_state, task
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.loop.run_state import FirstBad, tally
from trainmaster.db.changes import Progress, TaskChange
from trainmaster.spec.states import EndReason, State


@given(
    st.dictionaries(st.sampled_from(EndReason), st.integers(0, 50)),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 100),
    st.sampled_from([None, *EndReason]),
)
def test_counters_sum_to_total(ended, running, waiting_rows, without_row, rest_reason):
    created = sum(ended.values()) + running + waiting_rows
    counts = tally(created + without_row, ended, running=running, rest_reason=rest_reason, created=created)
    assert counts.pop("total") == sum(counts.values())
    assert min(counts.values()) >= 0
    assert counts["waiting"] == waiting_rows + (0 if rest_reason else without_row)


def test_what_failed_by_itself_is_told_before_what_a_person_has_ended():
    found = run_state(experiment(total=3)).experiments["e"]
    told = []
    for number, reason in enumerate((EndReason.CANCELLED, EndReason.OOM, EndReason.USER_ERROR)):
        found.note_bad(FirstBad(number, reason))
        told.append(found.first_bad.reason)
    assert told == [EndReason.CANCELLED, EndReason.OOM, EndReason.OOM]


def test_a_done_task_is_counted_and_forgotten():
    whole = run_state(experiment(total=2))
    for number, reason in ((0, EndReason.SUCCEEDED), (1, EndReason.OOM)):
        whole.apply(TaskChange("e", number, 0, State.WAITING, State.PLANNED, creates=True))
        whole.apply(TaskChange("e", number, 0, State.PLANNED, State.STOPPING))
        whole.apply(TaskChange("e", number, 0, State.STOPPING, State.DONE, reason, "why"))
    found = whole.experiments["e"]
    assert (found.live, found.is_exhausted) == ({}, True)
    assert (found.first_bad.task, found.first_bad.reason, found.first_bad.message) == (
        1,
        EndReason.OOM,
        "why",
    )
    assert found.tally() == {
        "total": 2, "succeeded": 1, "failed": 1, "running": 0, "waiting": 0, "pruned": 0, "skipped": 0,
        "cancelled": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        TaskChange("e", 0, 1, State.RUNNING, State.DONE, EndReason.OOM),
        TaskChange("e", 0, 1, State.SAVING, State.DONE, EndReason.OOM),
        TaskChange("e", 0, 1, State.RUNNING, State.WAITING),
        TaskChange("e", 5, 0, State.WAITING, State.PLANNED, creates=True),
    ],
)
def test_what_the_table_does_not_allow_is_a_bug(change):
    whole = run_state(experiment(created=1, live={0: task(State.RUNNING)}))
    with pytest.raises(AssertionError):
        whole.apply(change)


def test_the_end_needs_a_reason():
    whole = run_state(experiment(created=1, live={0: task(State.SAVING)}))
    with pytest.raises(AssertionError, match="without a reason"):
        whole.apply(TaskChange("e", 0, 1, State.SAVING, State.DONE))


def test_progress_sets_what_a_task_mirrors_and_nothing_else():
    whole = run_state(experiment(created=1, live={0: task(State.RUNNING)}))
    whole.apply(Progress("e", 0, {"metrics": {"loss": 1}, "model_uri": "file:///m"}))
    assert whole.experiments["e"].live[0].metrics == {"loss": 1}
