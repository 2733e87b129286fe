"""What people are shown of a run beside its summary."""

from __future__ import annotations

import pytest

from trainmaster.db import AcceptedRun, ClosedAttempt, Database, Note, RunChange, TaskChange
from trainmaster.service.runs.highlights import Highlights, NoteLine, TaskLine
from trainmaster.service.runs.summary import highlights
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def database(tmp_path):
    found = Database(f"sqlite:///{tmp_path / 'trainmaster.db'}")
    yield found
    found.close()


def begun(number, **fields):
    metrics = {"metrics": {"loss": 0.5}}
    first = TaskChange("main", number, 1, State.WAITING, State.ACQUIRING, creates=True, opens=True)
    return [first, TaskChange("main", number, 1, State.ACQUIRING, State.RUNNING, fields=metrics | fields)]


def failed(number, message):
    closes = ClosedAttempt(1, EndReason.USER_ERROR, message, 1.0, 2.0, None, "[]")
    ends = (State.RUNNING, State.DONE, EndReason.USER_ERROR, message)
    return TaskChange("main", number, 1, *ends, closes=closes)


def test_of_a_run_that_goes_on_what_runs_what_failed_and_what_it_has_said(database):
    new = AcceptedRun("r", "r", "{}", "r.yaml", "local", "code", "file:///s", [("main", 3)])
    lease = database.create_run(new, 1.0)
    notes = [Note(f"note {number}", "main", 0) for number in range(5)]
    database.commit(lease, [*begun(0), *begun(1), failed(1, "exit code 3"), *notes], 7.0)
    assert highlights(database, "r") == Highlights(
        running=(TaskLine("main", 0, 1, None, "", {"loss": 0.5}),),
        bad=(TaskLine("main", 1, 1, "USER_ERROR", "exit code 3", {"loss": 0.5}),),
        notes=tuple(NoteLine(7.0, "main", 0, f"note {number}") for number in range(1, 5)),
    )
    database.commit(lease, [RunChange(State.WAITING, State.STOPPING)], 8.0)
    database.commit(lease, [RunChange(State.STOPPING, State.DONE, EndReason.CANCELLED)], 8.0)
    assert highlights(database, "r").notes == (), "it says nothing more"
