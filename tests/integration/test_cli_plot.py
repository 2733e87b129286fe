"""`status RUN --plot` of runs without a search: the metrics of their tasks."""

from __future__ import annotations

import re

import pytest

TRAIN = """
import json, os, sys
with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
    for step in range(1, int(sys.argv[2]) + 1):
        row = {"step": step, "loss": float(sys.argv[1]) / step, "accuracy": 1 - 1 / step, "note": "text"}
        file.write(json.dumps(row) + "\\n")
"""


@pytest.fixture(autouse=True)
def needs_matplotlib():
    pytest.importorskip("matplotlib")


def texts(tm, run: str) -> list[str]:
    """What stands in the picture; matplotlib leaves the words beside their shapes."""
    path = tm.root / "curves.svg"
    tm.call("status", run, "--plot", path)
    return re.findall(r"<!-- (.*?) -->", path.read_text())


def test_every_metric_has_a_panel_and_every_task_a_line(tm):
    tm.write("train.py", TRAIN)
    recipe = tm.recipe(
        {
            "name": "curves",
            "experiments": {
                "few": {"parameters": {"lr": [0.1, 0.5]}, "command": "python train.py {{lr}} 300"},
                "many": {
                    "parameters": {"n": {"range": "1-12", "step": 1}},
                    "command": "python train.py {{n}} 5",
                },
            },
        }
    )
    run = tm.run(recipe)["run"]
    found = texts(tm, run)
    assert {run, "few: 2 tasks", "many: 12 tasks", "loss", "accuracy", "step"} <= set(found)
    assert {"task 0: lr=0.1", "task 1: lr=0.5"} <= set(found)
    assert not [text for text in found if "note" in text]
    tm.call("status", run, "--plot", tm.root / "curves.png")
    assert (tm.root / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tm.root / "curves.png").stat().st_size > 10_000


def test_a_failed_task_is_drawn_and_attempts_are_joined(tm):
    tm.write("train.py", TRAIN)
    run = tm.run(tm.task("python train.py 1 $((TRAINMASTER_ATTEMPT * 10)); exit 3", retries=1), code=1)["run"]
    assert "main: 1 task; grey or dashed: did not succeed" in texts(tm, run)


def test_single_values_are_drawn_by_task(tm):
    recipe = tm.task('echo "accuracy: 0.$TRAINMASTER_PARAM_N"', parameters={"n": {"range": "1-4", "step": 1}})
    found = texts(tm, tm.run(recipe)["run"])
    assert {"main: 4 tasks", "accuracy", "task"} <= set(found)


def test_a_run_without_metrics_says_so(tm):
    run = tm.run(tm.task("echo nothing"))["run"]
    result = tm.call("status", run, "--plot", tm.root / "none.svg", code=2)
    assert "none of its tasks has reported a metric" in result.err
    assert "trainmaster.report(" in result.err
    assert not (tm.root / "none.svg").exists()


def test_a_folder_that_is_not_there_is_named(tm):
    run = tm.run(tm.task("echo loss: 0.5"))["run"]
    assert "No such file" in tm.call("status", run, "--plot", tm.root / "no" / "where.svg", code=2).err
