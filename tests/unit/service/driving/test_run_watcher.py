"""What is shown of a run while it is driven, as plain data."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from trainmaster.control.decide.effects import Effect, EffectKind
from trainmaster.control.loop.reconcile import Reconciliation
from trainmaster.control.loop.run_state import ExperimentState, RunState, Task
from trainmaster.control.task.layout import AttemptPlace
from trainmaster.db.changes import ClosedAttempt, ExperimentChange, Note, TaskChange
from trainmaster.executors.telemetry.logfile import SEGMENT_BYTES
from trainmaster.service.driving.run_watcher import (
    AttemptEnded,
    AttemptResumed,
    ExperimentMoved,
    LogTail,
    MoreFailures,
    RunWatcher,
    SetupBegun,
    is_lost,
)
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State


class Shown:
    """A display that remembers."""

    def __init__(self):
        self.happened, self.lines, self.views = [], [], []

    def show(self, news):
        self.happened += news.happened
        self.views.append((news.view, news.is_over))

    def say(self, line):
        self.lines.append(line)


def watched(tmp_path, **keys):
    recipe = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true", **keys}}})
    home = SimpleNamespace(
        attempt=lambda run, name, task, attempt: AttemptPlace(tmp_path / name / str(task) / str(attempt))
    )
    service = SimpleNamespace(home_of=lambda _: home, database=None)
    session = SimpleNamespace(run="r", recipe=recipe, lease=SimpleNamespace(token=1))
    shown = Shown()
    return RunWatcher(service, session, shown.say, shown.show, 0.0), shown


def failure(number, message="exit code 1"):
    closes = ClosedAttempt(1, EndReason.USER_ERROR, message, 1.0, 2.0, None, "[]")
    return TaskChange("main", number, 1, State.RUNNING, State.DONE, EndReason.USER_ERROR, closes=closes)


def test_a_turn_is_told_as_plain_data(tmp_path):
    watcher, shown = watched(tmp_path, setup="true")
    log = AttemptPlace(tmp_path / "main" / "0" / "1").log("worker-0")
    log.parent.mkdir(parents=True)
    log.write_text("one\r50%\nlast")
    state = RunState("r", {"main": ExperimentState("main", (), total=1, window=1, state=State.RUNNING)})
    note = Note("waits")
    turn = Reconciliation(
        [ExperimentChange("main", State.WAITING, State.RUNNING), note, failure(0)],
        [Effect(EffectKind.STAGE, "main", 0, 1)] * 2,
    )
    went_on = SimpleNamespace(
        from_step=2.0,
        came_to=3.0,
        has_checkpoint=False,
        directory=tmp_path,
        metrics={},
        steps_per_s=1.0,
        examples_per_s=None,
        eta_s=9.0,
    )
    watcher.turned(state, turn, {("main", 0): went_on})
    watcher.turned(state, Reconciliation(), {("main", 0): went_on})
    begun, moved, told, ended, goes_on = shown.happened
    assert (begun, told, goes_on) == (
        SetupBegun("main"),
        note,
        AttemptResumed("main", 0, 2.0, 3.0, has_checkpoint=False),
    )
    assert isinstance(moved, ExperimentMoved)
    assert (moved.state, moved.total, moved.tally["waiting"]) == (State.RUNNING, 1, 1)
    fields = (EndReason.USER_ERROR, "exit code 1", ("50%", "last"), False, False)
    assert ended == AttemptEnded("main", 0, 1, *fields)
    view, is_over = shown.views[0]
    assert (view.run, view.tasks[0].eta_s, is_over) == ("r", 9.0, False)


def test_only_the_first_five_failures_are_told(tmp_path):
    watcher, shown = watched(tmp_path, parameters={"a": [1, 2, 3, 4, 5, 6, 7]})
    state = RunState("r", {"main": ExperimentState("main", (), total=7, window=7)})
    watcher.turned(state, Reconciliation([failure(number) for number in range(7)]), {})
    assert [type(each) for each in shown.happened] == [AttemptEnded] * 5 + [MoreFailures]
    assert {each.message for each in shown.happened[:5]} == {"exit code 1"}
    assert [each.parameters for each in shown.happened[:2]] == [{"a": 1}, {"a": 2}]


def test_of_a_search_it_is_told_with_what_it_has_failed(tmp_path):
    watcher, shown = watched(tmp_path)
    state = RunState("r", {"main": ExperimentState("main", (), total=7, window=7, results={})})
    state.experiments["main"].results[0] = Task("main", 0, parameters={"lr": 0.5})
    watcher.turned(state, Reconciliation([failure(0)]), {})
    assert [each.parameters for each in shown.happened] == [{"lr": 0.5}]


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
    assert is_lost(change) is waits


@pytest.mark.parametrize(("known", "shown"), [("4", ["two", "three"]), ("", []), (None, [])])
def test_what_was_written_while_nothing_drove_it_is_shown(tmp_path, known, shown):
    place = AttemptPlace(tmp_path / "main" / "0" / "1")
    place.directory.mkdir(parents=True)
    place.log("worker-0").write_text("one\ntwo\nthree\n")
    if known is not None:
        place.shown.write_text(known)
    home = SimpleNamespace(attempt=lambda *_: place)
    rows = [{"experiment": "main", "number": 0, "attempt": 1}]
    database = SimpleNamespace(live_task_rows=lambda _: rows)
    recipe = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}})
    session = SimpleNamespace(run="r", recipe=recipe, lease=SimpleNamespace(token=2))
    service = SimpleNamespace(home_of=lambda _: home, database=database)
    assert LogTail(service, session).lines("main", 0, 1) == shown
    with place.log("worker-0").open("a") as log:
        log.write("four\nfi")
    assert LogTail(service, session).lines("main", 0, 1) == (["four"] if shown else [])
    assert LogTail(service, session).lines("main", 0, 1) == []


def test_output_that_was_dropped_before_it_was_shown_is_told(tmp_path):
    place = AttemptPlace(tmp_path / "main" / "0" / "1")
    place.directory.mkdir(parents=True)
    recipe = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}})
    session = SimpleNamespace(run="r", recipe=recipe, lease=SimpleNamespace(token=1))
    service = SimpleNamespace(home_of=lambda _: SimpleNamespace(attempt=lambda *_: place))
    tail = LogTail(service, session)
    with place.log("worker-0").open("wb") as first:
        first.write(b"begun\n")
        first.flush()
        assert tail.lines("main", 0, 1) == ["begun"]
        first.truncate(SEGMENT_BYTES)
    tail._offsets["main", 0, 1] = SEGMENT_BYTES  # the rest of it was shown
    place.log("worker-0").with_name("worker-0.log.3").write_bytes(b"of a line\nthe end\n")
    note = f"[trainmaster: {2 * SEGMENT_BYTES} bytes of log were dropped here]"
    assert tail.lines("main", 0, 1) == ["", note, "of a line", "the end"]


def test_the_end_of_a_long_output_is_shown_and_what_is_left_out_before_it_is_told(tmp_path):
    place = AttemptPlace(tmp_path / "main" / "0" / "1")
    place.directory.mkdir(parents=True)
    place.log("worker-0").write_text("a line\n" * 400_000 + "the end")
    recipe = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}})
    session = SimpleNamespace(run="r", recipe=recipe, lease=SimpleNamespace(token=1))
    service = SimpleNamespace(home_of=lambda _: SimpleNamespace(attempt=lambda *_: place))
    tail = LogTail(service, session)
    assert len(tail.lines("main", 0, 1)) == (1 << 20) // 7
    told, *lines, last = tail.lines("main", 0, 1, final=True)
    assert told == "... 1.7 MB of output are left out here: `trainmaster logs r` shows them"
    assert (set(lines), last) == ({"a line"}, "the end")
    assert tail.lines("main", 0, 1, final=True) == []
