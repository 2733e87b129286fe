"""One turn of the loop: from what was observed to changes (to commit) and effects (to perform). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from trainmaster.control.decide.run import Plan, decide_run, stop_reason
from trainmaster.control.decide.task import Effect, EffectKind, ObservedTask, Policy, decide_task
from trainmaster.control.loop.run_state import RunState, Task
from trainmaster.dataclass import dataclass, field
from trainmaster.db.changes import Change
from trainmaster.executors.base import Phase
from trainmaster.spec.states import EndReason, State

_WAITS: Final = (Phase.QUEUED, Phase.GRANTED)


@dataclass(slots=True)
class Reconciliation:
    """Result of one reconciliation: commit all changes in one transaction, then perform the effects."""

    changes: list[Change] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)


#: What was observed of a task's present attempt: (task, why it must end) -> Seen.
Look = Callable[[Task, EndReason | None], ObservedTask]


def reconcile(
    run_state: RunState,
    look: Look,
    policies: Mapping[str, Policy],
    plan: Plan,
    wanted: EndReason | None,
    now: float,
) -> Reconciliation:
    """Decide until nothing more follows from what was observed.

    ``run_state`` is brought up to date with every change given; the caller must commit them all, or
    throw it away.

    Args:
        run_state: the run.
        look: what was observed of a task.
        policies: per experiment.
        plan: columns of a task that gets its row now.
        wanted: the whole run must end for this reason.
        now: Unix seconds.
    """
    turn = Reconciliation()
    settled: dict[tuple[str, int], tuple[int, State, EndReason | None]] = {}
    moved = True
    while moved:
        moved = False
        for change in decide_run(run_state, wanted, plan):
            run_state.apply(change)
            turn.changes.append(change)
            moved = True
        for experiment in run_state.experiments.values():
            if experiment.state is State.RUNNING or experiment.state is State.STOPPING:
                reason = stop_reason(run_state, experiment.name, wanted)
                for task in list(experiment.live.values()):
                    # Of what is as it was nothing new follows, and nothing is to be counted twice.
                    if settled.get(task.key) != (task.attempt, task.state, reason):
                        moved |= _settle(run_state, task, look, policies[experiment.name], reason, now, turn)
                        settled[task.key] = (task.attempt, task.state, reason)
    turn.effects = list(dict.fromkeys(turn.effects))
    return turn


def _settle(
    run_state: RunState,
    task: Task,
    look: Look,
    policy: Policy,
    reason: EndReason | None,
    now: float,
    turn: Reconciliation,
) -> bool:
    """Take one task as far as the observations carry it; True if its state changed."""
    if task.state is State.WAITING and reason is None:
        return False  # it begins when its experiment has room for it
    any_move = False
    while task.state is not State.DONE:
        attempt, state = task.attempt, task.state
        seen = look(task, reason)
        for step in decide_task(task, seen, policy, now):
            if isinstance(step, Effect):
                # What waits for slots is stopped first: else it would be given those of one that runs.
                is_first = step.kind is EffectKind.STOP and seen.gang.phase in _WAITS
                turn.effects.insert(0 if is_first else len(turn.effects), step)
            else:
                run_state.apply(step)
                turn.changes.append(step)
        if (task.attempt, task.state) == (attempt, state):
            break
        any_move = True
    return any_move
