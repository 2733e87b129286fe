"""What a server's stream says of a run is told as its driver would tell it."""

from __future__ import annotations

import pytest

from trainmaster.api import Event
from trainmaster.api.remote import following
from trainmaster.api.remote.following import RunFollower
from trainmaster.api.remote.streaming import ServerMessage
from trainmaster.service.driving.run_watcher import AttemptEnded, RunNews
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason

RECIPE = Recipe.from_text("name: job\nexperiments: {main: {retries: 1, command: 'exit 3'}}")


def moved(number, attempt, before, after, reason=None):
    """An event of the only task."""
    at = {"id": number, "run": "job-1", "at": float(number), "experiment": "main", "task": 0}
    why = {"reason": reason, "message": "exit code 3" if reason else ""}
    return {**at, **why, "kind": "task", "attempt": attempt, "before": before, "after": after}


def test_an_attempt_ends_once_and_is_followed_by_another_one_only_where_there_is_one():
    events = [
        moved(1, 0, "WAITING", "PLANNED"),
        moved(2, 1, "RUNNING", "RECOVERING", "USER_ERROR"),
        moved(3, 2, "RECOVERING", "ACQUIRING"),
        moved(4, 2, "RUNNING", "SAVING", "USER_ERROR"),
        moved(5, 2, "SAVING", "DONE", "USER_ERROR"),
        {**moved(6, 0, "WAITING", "DONE", "SKIPPED"), "task": 1},
    ]
    told = RunFollower(RECIPE, dict, 60.0).follow(
        iter([ServerMessage("state", {"run": {"state": "DONE"}, "events": events})])
    )
    (news,) = (each for each in told if isinstance(each, RunNews))
    ended = [each for each in news.happened if isinstance(each, AttemptEnded)]
    assert [(each.attempt, each.reason, each.is_again) for each in ended] == [
        (1, EndReason.USER_ERROR, True),
        (2, EndReason.USER_ERROR, False),
    ]


def test_what_fails_of_a_grid_is_told_with_its_parameters():
    grid = Recipe.from_text("name: job\nexperiments: {main: {parameters: {a: [4, 5]}, command: 'exit 3'}}")
    event = {**moved(1, 1, "RUNNING", "DONE", "USER_ERROR"), "task": 1}
    (news,) = RunFollower(grid, dict, 60.0).follow(
        iter([ServerMessage("state", {"run": {"state": "DONE"}, "events": [event]})])
    )
    assert [each.parameters for each in news.happened] == [{"a": 5}]


def test_what_is_told_at_the_end_is_no_news_before():
    at = {"run": "job-1", "at": 1.0, "kind": "note", "experiment": "main", "message": "promoted: m@c"}
    at |= {"before": None, "after": None, "reason": None, "task": None, "attempt": None}
    events = [{**at, "id": 1, "topic": "model.promoted"}, {**at, "id": 2, "topic": None, "message": "a note"}]
    (news,) = RunFollower(RECIPE, dict, 60.0).follow(
        iter([ServerMessage("state", {"run": {"state": "DONE"}, "events": events})])
    )
    assert [each.message for each in news.happened] == ["a note"]


def test_of_a_run_that_was_resumed_only_what_is_new_is_told():
    rows = [
        moved(1, 0, "WAITING", "PLANNED"),
        moved(2, 1, "RUNNING", "DONE", "USER_ERROR"),
        moved(3, 2, "DONE", "RUNNING"),
        moved(4, 2, "RUNNING", "DONE", "USER_ERROR"),
    ]
    at = {"experiment": "main", "task": 0, "member": "worker-0"}
    said = [
        ServerMessage("log", {**at, "attempt": 1, "text": "old\n"}),
        ServerMessage("log", {**at, "attempt": 2, "text": "new\n"}),
        ServerMessage("state", {"run": {"state": "DONE"}, "events": rows}),
    ]
    before = [Event.of(row) for row in rows[:2]]
    line, news = RunFollower(RECIPE, dict, 60.0, before).follow(iter(said))
    assert line == "new"
    assert [(each.attempt, each.reason) for each in news.happened] == [(2, EndReason.USER_ERROR)]


@pytest.mark.parametrize(
    ("phase", "total", "left_s"),
    [
        ({"phase": "steps", "state": "now", "seconds": 5.0, "expected_s": {"p50": 17.0}}, 1, 12.0),
        ({"phase": "steps", "state": "now", "seconds": 5.0, "expected_s": {"p50": 17.0}}, 2, None),  # of all
        ({"phase": "steps", "state": "now", "seconds": 5.0, "expected_s": None}, 1, None),
        ({"phase": "steps", "state": "now", "seconds": 18.0, "expected_s": {"p50": 17.0}}, 1, None),
        ({"phase": "setup", "state": "now", "seconds": 5.0, "expected_s": {"p50": 17.0}}, 1, None),
        (None, 1, None),  # a server of before
    ],
)
def test_the_time_left_is_the_one_that_its_driver_expects(monkeypatch, phase, total, left_s):
    monkeypatch.setattr(following, "_VIEW_S", 0.0)
    found = {"tasks": {"total": total, "running": 1}, "state": "RUNNING", "reason": None}
    status = {"run": "job-1", "state": "RUNNING", "experiments": {"main": found}}
    status |= {"phases": {"main": [phase]}} if phase else {}
    point = {"experiment": "main", "task": 0, "points": [{"step": 100}]}
    follower = RunFollower(RECIPE, lambda: status, 0.0)
    (news,) = follower.follow(iter([ServerMessage("point", point)]))
    assert [task.eta_s for task in news.view.tasks] == [left_s]
