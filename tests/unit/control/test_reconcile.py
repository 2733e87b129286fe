"""A turn of the loop: the order of what is to be done."""

from __future__ import annotations

import pytest
from control_nouns import NOW, experiment, gang, run_state, seen

from trainmaster.control.decide.task import EffectKind, Policy
from trainmaster.control.loop.reconcile import reconcile
from trainmaster.control.loop.run_state import Task
from trainmaster.executors.base import Phase
from trainmaster.spec.states import EndReason, State


@pytest.mark.parametrize(
    ("state", "phase"), [(State.ACQUIRING, Phase.QUEUED), (State.STAGING, Phase.GRANTED)]
)
def test_what_waits_for_slots_is_stopped_before_what_runs(state, phase):
    whole = run_state(experiment(total=3, window=3, state=State.RUNNING, created=3))
    whole.state = State.RUNNING
    whole.experiments["e"].live = {
        0: Task("e", 0, State.RUNNING, 1),
        1: Task("e", 1, state, 1),
        2: Task("e", 2, State.RUNNING, 1),
    }

    def look(task, wanted):
        return seen(gang(phase if task.number == 1 else Phase.RUNNING), wanted=wanted)

    turn = reconcile(whole, look, {"e": Policy()}, lambda *_: {}, EndReason.CANCELLED, NOW)
    assert [each.task for each in turn.effects if each.kind is EffectKind.STOP] == [1, 0, 2]
