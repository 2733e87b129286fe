"""Experiments and the run: what begins, what is skipped, how it ends."""

from __future__ import annotations

import pytest
from control_nouns import experiment, run_state

from trainmaster.control.decide.run import decide_run, run_reason, stop_reason
from trainmaster.control.loop.run_state import FirstBad, Task
from trainmaster.db.changes import ExperimentChange, Note, Promotion, RunChange, TaskChange
from trainmaster.spec.facts import Approval, AwaitedApproval
from trainmaster.spec.gate import Gate, GateResult, Requirement
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


def gated(state=State.RUNNING, verdict=None, **what):
    gate = Gate(Requirement(metric="accuracy", at_least=0.9, goal="max"), "accuracy")
    promotes = Promotion("digits", "production", "accuracy", gate=gate)
    found = experiment("a", state=state, created=1, gate=gate, verdict=verdict, promotes=promotes, **what)
    found.ended[EndReason.SUCCEEDED] = 1
    whole = run_state(found, experiment("b", after=("a",)))
    whole.state = state
    return whole


def test_nothing_goes_on_before_a_gate_has_said_something():
    whole = gated()
    assert turn(whole) == []
    assert whole.experiments["a"].awaits_verdict


def test_an_open_gate_promotes_and_lets_dependants_begin():
    whole = gated(verdict=GateResult(True, "0.95 is good"))
    note, end, begin, *_ = turn(whole)
    assert note == Note("gate of a: 0.95 is good", "a", topic="gate.said")
    assert (end.reason, end.promotes.alias) == (EndReason.SUCCEEDED, "production")
    assert (begin.experiment, begin.after) == ("b", State.RUNNING)


@pytest.mark.parametrize("state", [State.RUNNING, State.STOPPING])
def test_a_refusal_is_the_end_of_the_experiment_and_dependants_are_skipped(state):
    wanted = None if state is State.RUNNING else EndReason.CANCELLED
    whole = gated(state, GateResult(False, "0.85 is bad"), reason=wanted)
    end = turn(whole, wanted)[0]
    assert (end.reason, end.message, end.promotes) == (EndReason.GATE_REFUSED, "0.85 is bad", None)
    assert whole.experiments["b"].reason is (wanted or EndReason.SKIPPED)
    assert (whole.state, whole.reason, whole.message) == (State.DONE, EndReason.GATE_REFUSED, "0.85 is bad")


def test_a_gate_is_not_asked_of_tasks_that_failed():
    whole = gated(first_bad=FirstBad(0, EndReason.OOM, "oom"))
    assert not whole.experiments["a"].awaits_verdict
    assert turn(whole)[0].reason is EndReason.OOM


def asking():
    whole = run_state(
        experiment("a", total=1),
        experiment("b", after=("a",), needs_approval=True),
        experiment("c", after=("b",)),
    )
    turn(whole)
    assert whole.awaited_approval() is None
    ended(whole, "a", EndReason.SUCCEEDED)
    (asked,) = turn(whole)
    assert (asked.before, asked.after, asked.topic) == (State.WAITING, State.WAITING, "approval.wanted")
    assert f"trainmaster approve {whole.run} b" in asked.message
    assert turn(whole) == [], "it asks once"
    assert whole.held_by_people() == {"b", "c"}
    assert whole.awaited_approval() == AwaitedApproval(("b",))
    return whole


def test_an_experiment_that_needs_approval_begins_when_a_person_says_so():
    whole = asking()
    whole.experiments["b"].approval = Approval(True, "ada", 0.0)
    assert turn(whole)[0] == ExperimentChange("b", State.WAITING, State.RUNNING)
    assert whole.awaited_approval() is None


def test_what_a_person_denies_ends_so_and_nothing_of_it_ran():
    whole = asking()
    whole.experiments["b"].approval = Approval(False, "ada", 0.0, "too slow")
    turn(whole)
    found = whole.experiments
    assert (found["b"].reason, found["b"].message) == (EndReason.DENIED, "denied by ada: too slow")
    assert found["b"].tally()["skipped"] == 1
    assert found["c"].reason is EndReason.SKIPPED
    assert (whole.state, whole.reason) == (State.DONE, EndReason.DENIED)
