"""The tasks of a run in rows."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from trainmaster.web.task_table import TaskTable


def task(number, state="DONE", reason="SUCCEEDED", lr=0.1, **metrics):
    times = {"started_at": 10.0, "ended_at": 14.0 if state == "DONE" else None}
    return {
        "experiment": "tune",
        "task": number,
        "attempt": 1,
        "state": state,
        "reason": reason,
        "message": "",
        "parameters": {"lr": lr, "seed": 3},
        "metrics": metrics,
        "has_model": False,
        **times,
    }


TASKS = [
    task(0, loss=0.3, step=9),
    task(1, loss=0.1, lr=0.2),
    task(2, reason="PRUNED", loss=None),
    task(3, "RUNNING", None, lr=0.4, loss=0.9),
    task(4, reason="USER_ERROR"),
]


def numbers(by="", most=None):
    return [row["task"] for row in TaskTable.of(TASKS, 9, 20.0, by, most).rows]


def test_what_failed_or_runs_comes_first_then_the_best():
    assert numbers() == [4, 3, 1, 0, 2]
    assert numbers(most=2) == [4, 3]


@pytest.mark.parametrize(
    ("by", "first"),
    [("loss", [1, 0, 3]), ("-loss", [3, 0, 1]), ("-lr", [3, 1, 4]), ("-took_s", [3]), ("task", [0, 1, 2])],
)
def test_it_is_sorted_by_any_column_and_what_has_no_value_is_last(by, first):
    assert numbers(by)[: len(first)] == first
    assert len(numbers(by)) == len(TASKS)


def test_its_columns_are_results_and_what_differs():
    assert not TaskTable.of(TASKS, 9, 20.0).has_places
    there = [{**task, "place": place} for task, place in zip(TASKS, ("slurm", "aws", ""), strict=False)]
    placed = TaskTable.of(there, 9, 20.0, "place")
    assert (placed.has_places, [row["place"] for row in placed.rows][-2:]) == (True, ["aws", "slurm"])
    found = TaskTable.of(TASKS, 9, 20.0, "loss")
    assert (found.metrics, found.parameters) == (["loss"], ["lr"])
    assert (found.link("loss"), found.link("lr")) == ("-loss", "lr")
    assert {row["task"]: row["took_s"] for row in found.rows}[3] == 10.0, "it goes on"
