"""What to do next about a run and its experiments: pure, without a clock or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from trainmaster.control.loop.run_state import ExperimentState, RunState
from trainmaster.db.changes import Change, ExperimentChange, Note, RunChange, TaskChange
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import APPROVAL_WANTED, GATE_SAID

#: Gives the columns of a task when it is planned (its parameters): (experiment, number) -> columns.
#: None: it can only be planned when more of the experiment's tasks are DONE.
Plan = Callable[[ExperimentState, int], Mapping[str, object] | None]


def decide_run(run_state: RunState, wanted: EndReason | None, plan: Plan) -> Iterator[Change]:
    """The transitions of a run and its experiments that are due; also which tasks begin.

    The caller applies each change to ``run_state`` before it asks for the next one.

    Args:
        run_state: the run.
        wanted: the whole run must end for this reason (cancel, budget).
        plan: columns of a task that gets its row now.
    """
    if run_state.state is State.WAITING:
        yield RunChange(State.WAITING, State.RUNNING)
    if wanted is not None and run_state.state is State.RUNNING:
        yield RunChange(State.RUNNING, State.STOPPING, wanted)
    for experiment in run_state.experiments.values():
        yield from _decide_experiment(run_state, experiment, wanted)
        if experiment.state is State.RUNNING and wanted is None:
            yield from _begin_tasks(experiment, plan)
    if run_state.state is not State.DONE and all(
        e.state is State.DONE for e in run_state.experiments.values()
    ):
        reason = run_reason(run_state)
        first = next((e for e in run_state.experiments.values() if e.reason is reason), None)
        yield RunChange(run_state.state, State.DONE, reason, first.message if first else "")


def run_reason(run_state: RunState) -> EndReason:
    """SUCCEEDED if every experiment is, otherwise the first other reason (a skip is never first)."""
    reasons = [
        e.reason for e in run_state.experiments.values() if e.reason not in (None, EndReason.SUCCEEDED)
    ]
    causes = [reason for reason in reasons if reason is not EndReason.SKIPPED]
    return (causes or reasons or [EndReason.SUCCEEDED])[0] or EndReason.SUCCEEDED


def stop_reason(run_state: RunState, experiment: str, wanted: EndReason | None) -> EndReason | None:
    """Why the tasks of an experiment must end now, if they must."""
    state = run_state.experiments[experiment]
    return wanted or (state.reason if state.state is State.STOPPING else None)


def _decide_experiment(
    run_state: RunState, experiment: ExperimentState, wanted: EndReason | None
) -> Iterator[Change]:
    name = experiment.name
    if experiment.state is State.WAITING:
        reason = wanted
        message = ""
        before = [run_state.experiments[other] for other in experiment.after]
        failed = next(
            (e for e in before if e.state is State.DONE and e.reason is not EndReason.SUCCEEDED), None
        )
        if reason is None and failed is not None:
            reason, message = EndReason.SKIPPED, f"{failed.name} ended as {failed.reason}"
        if reason is not None:
            yield ExperimentChange(name, State.WAITING, State.STOPPING, reason, message, rest_reason=reason)
        elif all(e.state is State.DONE for e in before):
            yield from _begin(run_state.run, experiment)
    if experiment.state is State.RUNNING and wanted is not None:
        yield ExperimentChange(name, State.RUNNING, State.STOPPING, wanted, rest_reason=wanted)
    if experiment.awaits_verdict:
        return
    if experiment.state is State.RUNNING and experiment.is_exhausted:
        if experiment.first_bad is None:
            yield from _succeed(experiment, _until_words(experiment))
        else:
            reason = experiment.first_bad.reason
            yield ExperimentChange(name, State.RUNNING, State.DONE, reason, _message(experiment))
    if experiment.state is State.STOPPING and not experiment.live:
        # Its last tasks may have ended well while it was asked to stop.
        if experiment.is_exhausted and experiment.first_bad is None:
            yield from _succeed(experiment, experiment.message)
        else:
            reason = experiment.reason or EndReason.CANCELLED
            rest = experiment.rest_reason if experiment.created < experiment.total else None
            yield ExperimentChange(name, State.STOPPING, State.DONE, reason, experiment.message, rest)


def _begin(run: str, experiment: ExperimentState) -> Iterator[ExperimentChange]:
    """All before it has succeeded: it begins, if a person has approved that where it needs one."""
    name, said = experiment.name, experiment.approval
    if not experiment.needs_approval or (said is not None and said.is_given):
        yield ExperimentChange(name, State.WAITING, State.RUNNING)
    elif said is not None:
        rest = EndReason.SKIPPED
        yield ExperimentChange(
            name, State.WAITING, State.STOPPING, EndReason.DENIED, said.words, rest_reason=rest
        )
    elif not experiment.message:
        ask = f"waits for a person's approval: `trainmaster approve {run} {name}`, or that with --deny"
        yield ExperimentChange(name, State.WAITING, State.WAITING, message=ask, topic=APPROVAL_WANTED)


def _succeed(experiment: ExperimentState, message: str) -> Iterator[Change]:
    """All tasks have succeeded: so has the experiment, if its gate says so, too."""
    name, verdict = experiment.name, experiment.verdict
    if verdict is not None and not verdict.holds:
        yield ExperimentChange(name, experiment.state, State.DONE, EndReason.GATE_REFUSED, verdict.message)
        return
    if verdict is not None:
        yield Note(f"gate of {name}: {verdict.message}", name, topic=GATE_SAID)
    promotes = experiment.promotes
    yield ExperimentChange(
        name, experiment.state, State.DONE, EndReason.SUCCEEDED, message, promotes=promotes
    )


def _begin_tasks(experiment: ExperimentState, plan: Plan) -> Iterator[TaskChange]:
    active = sum(task.state is not State.WAITING for task in experiment.live.values())
    for task in list(experiment.live.values()):  # rows that `resume` made WAITING again
        if task.state is State.WAITING and active < experiment.window:
            active += 1
            yield TaskChange(experiment.name, task.number, task.attempt, State.WAITING, State.PLANNED)
    while active < experiment.window and experiment.created < experiment.total:
        active += 1
        number = experiment.created
        fields = plan(experiment, number)
        if fields is None:
            return
        yield TaskChange(
            experiment.name,
            number,
            0,
            State.WAITING,
            State.PLANNED,
            fields=fields,
            creates=True,
        )


def _until_words(experiment: ExperimentState) -> str:
    """What `until` or `target` has done for it; empty if it has none."""
    if experiment.total == 1 or not experiment.until_words:
        return experiment.until_words
    key = "target" if experiment.until_words.startswith("target ") else "until"
    return f"`{key}` ended {experiment.ended[EndReason.UNTIL]} of {experiment.total} tasks early"


def _message(experiment: ExperimentState) -> str:
    bad = experiment.first_bad
    if bad is None:
        return ""
    if experiment.total == 1:
        return bad.message
    count = experiment.total - sum(n for reason, n in experiment.ended.items() if reason.is_success)
    why = f": {bad.message}" if bad.message else ""  # not known of one that ended under an earlier controller
    return f"{count} of {experiment.total} tasks did not succeed, the first is task {bad.task}{why}"
