import json
from collections import Counter
from types import SimpleNamespace

import pytest

from trainmaster.cli import watching
from trainmaster.cli.watching import Losses, fresh, progress_lines
from trainmaster.control.run_state import tally
from trainmaster.db.changes import ClosedAttempt, TaskChange
from trainmaster.spec.states import EndReason, State


def test_tasks_that_failed_are_not_done():
    ended = Counter({EndReason.SUCCEEDED: 1, EndReason.USER_ERROR: 1})
    counts = tally(4, ended, running=2, rest_reason=None, created=4)
    sweep = SimpleNamespace(state=State.RUNNING, total=4, ended=ended, tally=lambda: counts)
    run_state = SimpleNamespace(experiments={"sweep": sweep})
    standings = SimpleNamespace(left_s=lambda *_: 80.0, best_lines=lambda _: ["best sweep/0"])
    assert list(progress_lines(run_state, {}, standings)) == [
        "sweep: 1/4 tasks done, 2 running, 1 failed, about 1m20s left",
        "best sweep/0",
    ]


def test_attempts_that_end_with_their_machine_have_no_line_of_their_own():
    losses = Losses(waits=True)
    assert losses.attempt("train/0 is lost", 100.0) == []
    losses.machine(105.0)
    assert losses.attempt("train/1 is lost", 107.0) == []
    assert losses.due(200.0) == []


def test_an_attempt_that_is_lost_alone_is_told_a_little_later():
    losses = Losses(waits=True)
    assert losses.attempt("train/0 is lost", 100.0) == []
    assert losses.due(105.0) == []
    assert losses.due(111.0) == ["train/0 is lost"]
    assert losses.due(112.0) == []
    losses.attempt("train/0 is lost again", 113.0)
    assert losses.due(113.5, is_over=True) == ["train/0 is lost again"], "nothing is kept back at the end"
    assert losses.due(200.0) == []


def test_on_this_machine_nothing_waits_for_what_a_machine_says():
    assert Losses(waits=False).attempt("train/0 is lost", 100.0) == ["train/0 is lost"]


def test_the_very_same_line_is_said_once_a_minute():
    said = {}
    assert list(fresh(["1/4 done", "loss 3"], said, 10.0)) == ["1/4 done", "loss 3"]
    assert list(fresh(["1/4 done", "loss 2"], said, 20.0)) == ["loss 2"]
    assert list(fresh(["1/4 done", "loss 2"], said, 70.0)) == ["1/4 done"]
    assert set(said) == {"1/4 done", "loss 2"}


@pytest.mark.parametrize(
    ("reason", "lost", "waits"),
    [
        ("NODE_LOST", True, True),
        ("NODE_LOST", False, False),
        ("PREEMPTED", False, True),
        ("OOM", True, False),
    ],
)
def test_only_what_ended_with_its_machine_waits_for_what_that_says(reason, lost, waits):
    members = json.dumps([{"name": "worker-0", "lost": lost}, {"name": "worker-1", "lost": False}])
    closes = ClosedAttempt(1, EndReason(reason), "data.v was no longer there", 1.0, 2.0, None, members)
    change = TaskChange("a", 0, 2, State.RECOVERING, State.ACQUIRING, opens=True, closes=closes)
    assert watching._is_lost(change) is waits
