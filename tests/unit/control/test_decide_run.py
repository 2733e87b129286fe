"""Experiments and the run: what begins, what is skipped, how it ends."""

from __future__ import annotations

from control_nouns import experiment, run_state

from trainmaster.control.decide_run import decide_run, run_reason, stop_reason
from trainmaster.control.run_state import FirstBad, Task
from trainmaster.db.changes import ExperimentChange, RunChange, TaskChange
from trainmaster.spec.states import EndReason, State


def turn(whole, wanted=None):
    changes = []
    for change in decide_run(whole, wanted, lambda name, number: {"parameters": {"lr": number}}):
        whole.apply(change)
        changes.append(change)
    return changes


def ended(whole, name, reason):
    found = whole.experiments[name]
    found.state, found.reason, found.created = State.DONE, reason, found.total
    found.ended[reason] += found.total


def test_a_run_begins_with_what_depends_on_nothing_and_fills_its_window():
    whole = run_state(experiment("a", total=5, window=2), experiment("b", after=("a",)))
    changes = turn(whole)
    assert changes[0] == RunChange(State.WAITING, State.RUNNING)
    assert changes[1] == ExperimentChange("a", State.WAITING, State.RUNNING)
    tasks = [change for change in changes if isinstance(change, TaskChange)]
    assert [(t.task, t.creates, t.fields["parameters"]) for t in tasks] == [
        (0, True, {"lr": 0}),
        (1, True, {"lr": 1}),
    ]
    assert whole.experiments["b"].state is State.WAITING
    assert turn(whole) == []  # nothing new follows


def test_tasks_that_wait_again_count_for_the_window():
    whole = run_state(experiment("a", total=9, window=2, state=State.RUNNING, created=3))
    whole.state = State.RUNNING
    whole.experiments["a"].live = {
        0: Task("a", 0, State.RUNNING, 1),
        1: Task("a", 1, State.WAITING, 1),
        2: Task("a", 2, State.WAITING, 1),
    }
    (change,) = turn(whole)
    assert (change.task, change.before, change.after, change.creates) == (
        1,
        State.WAITING,
        State.PLANNED,
        False,
    )


def test_a_failed_experiment_skips_its_dependants_and_nothing_else():
    whole = run_state(
        experiment("a"), experiment("b", after=("a",)), experiment("c", after=("b",)), experiment("d")
    )
    turn(whole)
    ended(whole, "a", EndReason.OOM)
    turn(whole)
    found = whole.experiments
    assert [found[name].reason for name in "abc"] == [EndReason.OOM, EndReason.SKIPPED, EndReason.SKIPPED]
    assert found["b"].message == "a ended as OOM"
    assert found["b"].tally()["skipped"] == 1
    assert found["d"].state is State.RUNNING


def test_the_first_bad_task_names_the_reason():
    whole = run_state(experiment(total=3, state=State.RUNNING, created=3))
    whole.state = State.RUNNING
    found = whole.experiments["e"]
    found.ended.update({EndReason.SUCCEEDED: 1, EndReason.TIMEOUT: 1, EndReason.OOM: 1})
    found.first_bad = FirstBad(1, EndReason.TIMEOUT, "too slow")
    of_experiment, of_run = turn(whole)
    assert of_experiment.reason is EndReason.TIMEOUT
    assert of_experiment.message == "2 of 3 tasks did not succeed, the first is task 1: too slow"
    assert (of_run.reason, of_run.message) == (EndReason.TIMEOUT, of_experiment.message)


def test_a_single_bad_task_speaks_for_itself():
    whole = run_state(experiment(state=State.RUNNING, created=1, first_bad=FirstBad(0, EndReason.OOM, "oom")))
    whole.state = State.RUNNING
    whole.experiments["e"].ended[EndReason.OOM] = 1
    assert turn(whole)[0].message == "oom"


def test_a_cancelled_run_ends_what_has_no_row_too():
    whole = run_state(experiment("a", total=3, window=1), experiment("b", after=("a",)))
    turn(whole)
    turn(whole, EndReason.CANCELLED)
    a, b = whole.experiments.values()
    assert (whole.state, a.state, a.rest_reason) == (State.STOPPING, State.STOPPING, EndReason.CANCELLED)
    assert (b.state, b.reason) == (State.DONE, EndReason.CANCELLED)
    assert stop_reason(whole, "a", None) is EndReason.CANCELLED
    a.live.clear()
    a.ended[EndReason.CANCELLED] = 1
    turn(whole, EndReason.CANCELLED)
    assert (a.state, whole.state, whole.reason) == (State.DONE, State.DONE, EndReason.CANCELLED)
    assert a.tally()["cancelled"] == 3


def test_an_experiment_whose_tasks_all_ended_well_while_it_was_stopped_succeeded():
    whole = run_state(experiment(total=1, state=State.STOPPING, reason=EndReason.CANCELLED, created=1))
    whole.state = State.STOPPING
    whole.experiments["e"].ended[EndReason.SUCCEEDED] = 1
    turn(whole, EndReason.CANCELLED)
    assert whole.experiments["e"].reason is EndReason.SUCCEEDED
    assert whole.reason is EndReason.SUCCEEDED


def test_a_skip_is_never_the_reason_of_a_run():
    whole = run_state(experiment("a"), experiment("b"), experiment("c"))
    for name, reason in zip("abc", (EndReason.SKIPPED, EndReason.SUCCEEDED, EndReason.OOM), strict=True):
        ended(whole, name, reason)
    assert run_reason(whole) is EndReason.OOM
