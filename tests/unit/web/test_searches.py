"""What the page of searches shows: dots, the best so far, slices, and recipes made of trials."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.web.searches import SearchPicture, again_from, narrowed

RECIPE = """\
name: rates
experiments:
  tune:
    # as wide as it may be
    parameters: {lr: {range: 0.001-0.5, sampling: log}, depth: [4, 6]}
    samples: 16
    search: {metric: loss, goal: min}
    command: python train.py {{lr}} {{depth}}
"""


def task(number, lr, loss, reason="SUCCEEDED"):
    fixed = {"experiment": "tune", "attempt": 1, "state": "DONE", "message": "", "has_model": False}
    times = {"started_at": 1.0, "ended_at": 2.0}
    values = {"parameters": {"lr": lr, "depth": 4 + 2 * (number % 2)}, "metrics": {"loss": loss, "step": 9}}
    return {**fixed, **times, **values, "task": number, "reason": reason}


TASKS = [
    task(0, 0.3, 0.5),
    task(1, 0.1, 0.1, "PRUNED"),
    task(2, 0.01, 0.2),
    task(3, 0.02, None, "USER_ERROR"),
    task(4, 0.002, 0.4),
]


def picture(tasks=TASKS, search=None):
    return SearchPicture.of("tune", tasks, len(tasks), search, 9.0)


def test_a_grid_is_shown_as_a_search_is_and_what_was_pruned_is_never_the_best():
    found = picture()
    assert (found.metric, found.goal, found.best.number) == ("loss", "min", 2)
    assert found.counts == "3 succeeded, 1 pruned, 1 failed"
    assert [dot["kind"] for dot in found.history["dots"]] == ["ok", "cut", "ok", "ok"]
    assert found.history["best"].count("H") == 2, "better once, and then to the right edge"
    lowest = max(found.history["dots"], key=lambda dot: dot["y"])
    assert lowest["task"] == 1, "the smallest loss lies lowest"
    assert {each["name"]: each["is_log"] for each in found.slices} == {"lr": True, "depth": False}
    assert found.shown == [0, 1, 2, 4]
    assert [line["index"] for line in found.lines["lines"]] == [0, 1, 2, 3]


def test_of_a_search_its_own_value_counts():
    trials = [{"task": number, "value": value} for number, value in ((0, 0.05), (2, 0.2), (4, 0.4))]
    search = {
        "metric": "loss",
        "goal": "min",
        "value": "min",
        "trials": trials,
        "measure": "x",
        "importance": {},
    }
    assert picture(search=search).best.number == 0
    assert picture(search=search).words == "its smallest value"


def test_tasks_that_do_not_differ_are_no_search():
    same = [{**each, "parameters": {"lr": 1}} for each in TASKS]
    assert picture(same) is None
    assert picture([TASKS[0]]) is None


def test_again_from_a_trial_runs_it_once_and_keeps_all_else():
    text = again_from(RECIPE, "tune", {"lr": 0.01, "depth": 6})
    recipe = Recipe.from_text(text)
    (only,) = recipe.experiments["tune"].tasks(0)
    assert only == {"lr": 0.01, "depth": 6}
    assert "# as wide as it may be" in text
    with pytest.raises(UsageError):
        again_from(RECIPE, "none", {})


def test_ranges_are_narrowed_to_those_of_good_trials():
    text = narrowed(RECIPE, "tune", [{"lr": 0.01, "depth": 4}, {"lr": 0.02, "depth": 4}])
    assert "range: [0.01, 0.02]" in text
    assert "depth: [4, 6]" in text
    Recipe.from_text(text)


def test_values_on_the_way_end_where_a_trial_was_pruned_and_the_best_is_drawn_last():
    curves = [
        {"task": n, "key": "loss", "axis": "step", "steps": [1, 2, last], "values": [1.0, None, at]}
        for n, last, at in ((0, 90, 0.5), (1, 30, 0.8), (2, 90, 0.2), (4, 90, 0.4))
    ]
    curves.append({**curves[0], "key": "accuracy"})
    found = SearchPicture.of("tune", TASKS, len(TASKS), None, 9.0, curves=curves).curves
    assert [(line["task"], line["kind"], line["step"]) for line in found["lines"]] == [
        (0, "ok", 90), (1, "cut", 30), (4, "ok", 90), (2, "ok", 90)
    ]  # fmt: skip
    assert [line["is_best"] for line in found["lines"]] == [False, False, False, True]
    assert found["lines"][1]["x"] < found["lines"][0]["x"]
    assert {line["path"].count("L") for line in found["lines"]} == {1}, "what is no number is left out"
    assert picture().curves is None
