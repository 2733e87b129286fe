"""What a run says while other runs hold what it needs, and what it counts."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.control.decide.queue_wait import TOLD_AFTER_S, QueueWait
from trainmaster.db.changes import Note, QueueChange
from trainmaster.executors.base import QueuePlace
from trainmaster.spec.facts import AwaitedApproval

NEXT = QueuePlace(1, 0, 1, {"a-1": 2})
LATER = QueuePlace(1, 0, 2, {"a-1": 1, "b-2": 1})


def notes(changes) -> list[str]:
    return [change.message for change in changes if isinstance(change, Note)]


def written(changes) -> list[QueueChange]:
    return [change for change in changes if isinstance(change, QueueChange)]


def test_a_wait_is_told_once_with_who_holds_what_and_its_end():
    queue = QueueWait()
    assert queue.look(LATER, 100.0) == []
    changes = queue.look(LATER, 101.0)
    assert notes(changes) == ["waits for 1 core: a-1 holds 1, b-2 holds 1; 1 run waits before it"]
    assert json.loads(written(changes)[0].waits_for) == {
        "slots": 1, "gpus": 0, "place": 2, "held": {"a-1": 1, "b-2": 1}, "teams": {}, "of": 0
    }  # fmt: skip
    assert queue.look(LATER, 105.0) == []
    changes = queue.look(NEXT, 110.0)
    assert notes(changes) == []
    assert json.loads(written(changes)[0].waits_for)["place"] == 1
    assert queue.waited_s(141.0) == 41.0
    changes = queue.look(None, 141.0)
    assert notes(changes) == ["goes on after waiting 41 s"]
    assert written(changes) == [QueueChange(None, 41.0)]
    assert queue.look(None, 142.0) == []
    assert queue.waited_s(200.0) == 41.0


def test_what_nothing_drove_counts_as_waiting_and_a_wait_only_once():
    queue = QueueWait()
    assert queue.undriven(0.5) == []
    changes = queue.undriven(40.0)
    assert notes(changes) == ["nothing drove it for 40 s, which counts as waiting"]
    assert written(changes) == [QueueChange(None, 40.0, is_undriven=True)]
    assert queue.waited_s(99.0) == 40.0
    queue.look(NEXT, 100.0)
    queue.look(NEXT, 102.0)
    assert queue.undriven(40.0) == []
    assert queue.waited_s(142.0) == 82.0


def test_who_was_denied_does_not_go_on():
    queue = QueueWait()
    queue.look(AwaitedApproval(("deploy",)), 0.0)
    queue.look(AwaitedApproval(("deploy",)), 2.0)
    assert notes(queue.look(None, 12.0)) == ["waited 12 s for a person's approval of deploy"]
    assert queue.waited_s(99.0) == 12.0


def test_who_ends_while_it_waits_does_not_go_on():
    queue = QueueWait()
    queue.look(NEXT, 0.0)
    queue.look(NEXT, 2.0)
    assert notes(queue.look(None, 12.0, works=False)) == ["waited 12 s"]
    assert queue.waited_s(99.0) == 12.0


def test_taking_turns_is_no_wait():
    queue = QueueWait()
    for second in range(10):
        assert queue.look(NEXT, second) == []
        assert queue.look(None, second + 0.9 * TOLD_AFTER_S) == []
    assert queue.waited_s(20.0) == 0.0


def test_what_was_waited_before_is_counted():
    queue = QueueWait(earlier_s=30.0)
    queue.look(NEXT, 0.0)
    queue.look(NEXT, 10.0)
    queue.look(None, 12.0)
    assert queue.waited_s(99.0) == 42.0


@given(st.lists(st.tuples(st.sampled_from([None, NEXT, LATER]), st.floats(0, 5)), max_size=40))
def test_what_is_written_adds_up_to_what_was_waited(steps):
    queue, now, total, waits = QueueWait(), 0.0, 0.0, False
    for place, pause_s in steps:
        now += pause_s
        for change in written(queue.look(place, now)):
            assert waits or change.waits_for is not None
            waits = change.waits_for is not None
            total += change.waited_s
        assert waits == queue.is_told
    for change in written(queue.look(None, now)):
        total += change.waited_s
    assert abs(total - queue.waited_s(now)) < 1e-6
    assert total <= now
