"""What gates have decided, and what became of promotions, is told with a run."""

from __future__ import annotations

import pytest

from trainmaster.cli.output import verdict_lines
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ExperimentChange
from trainmaster.db.changes import Note, Promotion
from trainmaster.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State
from trainmaster.spec.topics import GATE_SAID

RECIPE = """name: job
experiments:
  train:
    command: x
    require: {metric: accuracy, at_least: 0.5}
    promote: digits@production
"""


@pytest.fixture
def service(tmp_path):
    found = Service(Home.from_environment({"TRAINMASTER_HOME": str(tmp_path)}))
    yield found
    found.close()


def told(service, tmp_path, *changes):
    recipe = Recipe.from_text(RECIPE, directory=tmp_path).model_dump_json()
    new = AcceptedRun("job-1", "job", recipe, "", "local", "", "file:///x", [("train", 1)])
    lease = service.database.create_run(new, 1e9)
    begun = ExperimentChange("train", State.WAITING, State.RUNNING)
    service.database.commit(lease, [begun, *changes], 1e9)
    experiment = service.status("job-1")["experiments"]["train"]
    return experiment, verdict_lines("train", experiment)


def test_a_gate_that_holds_and_why_nothing_was_promoted(service, tmp_path):
    promotes = Promotion("digits", "production", "accuracy")
    done = ExperimentChange("train", State.RUNNING, State.DONE, EndReason.SUCCEEDED, promotes=promotes)
    note = Note("gate of train: accuracy 0.9 is at least 0.5", "train", topic=GATE_SAID)
    script = Note("gate of train: what a script says", "train")
    experiment, lines = told(service, tmp_path, note, script, done)
    assert experiment["gate"] == "accuracy 0.9 is at least 0.5"
    assert lines == [
        "gate of train: accuracy 0.9 is at least 0.5",
        "nothing becomes digits@production: it left no model",
    ]


@pytest.mark.parametrize(("count", "tasks"), [("1", "1 task"), ("8", "8 tasks")])
def test_where_a_search_goes_on(count, tasks):
    experiment = {"search": {"from": f"run-1/main@{count}"}, "reason": None}
    assert verdict_lines("train", experiment) == [f"the search of train goes on from run-1/main: {tasks}"]


def test_a_gate_that_refuses(service, tmp_path):
    why = "accuracy 0.4 is below 0.5 (require, line 5)"
    done = ExperimentChange("train", State.RUNNING, State.DONE, EndReason.GATE_REFUSED, why)
    experiment, lines = told(service, tmp_path, done)
    assert "promotion" not in experiment
    assert lines == [f"gate of train: {why}"]
