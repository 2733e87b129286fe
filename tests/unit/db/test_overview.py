"""What needs somebody, as the first page has it, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import json
from types import SimpleNamespace

from database_nouns import NOW, new_run

from trainmaster.db import endpoint_changes, queries, run_table
from trainmaster.db import tables as t
from trainmaster.db.changes import ReplicaChange
from trainmaster.db.endpoint_changes import NewEndpoint, ReplicaState
from trainmaster.service.runs import overview as overviews
from trainmaster.service.runs.overview import overview
from trainmaster.service.users.caller import Caller


def _run(database, run, metrics=None, **columns):
    experiment = database.experiment_rows(run)[0]["id"]
    row = {"experiment_id": experiment, "number": 0, "state": "RUNNING", "parameters": "{}"}

    def write(connection, _):
        connection.execute(
            t.run.update().where(t.run.c.id == run).values(recipe='{"experiments": {}}', **columns)
        )
        if metrics is not None:
            connection.execute(t.task.insert().values(**row, metrics=json.dumps(metrics)))

    database.write(write)


def test_losses_that_are_nan_and_services_without_replicas_need_somebody(database, monkeypatch):
    monkeypatch.setattr(type(database), "clock_s", lambda _: NOW + 5000.0)
    for run in ("fine", "nan", "over", "old"):
        database.create_run(new_run(run), NOW)
    _run(database, "fine", {"loss": 0.1, "note": "null"})
    _run(database, "nan", {"step": 3, "val": None, "loss": None})
    _run(database, "over", {"loss": None}, state="DONE", reason="SUCCEEDED", ended_at=NOW)
    _run(database, "old", {"loss": None}, state="DONE", reason="SUCCEEDED", ended_at=NOW - 90_000)
    for run in ("silent", "ready"):
        admit = endpoint_changes.registering([NewEndpoint("a", run)], run, None, NOW, lambda _: None)
        database.create_run(new_run(run), NOW, admit)
        _run(database, run)
    change = ReplicaChange("a", 0, {"state": ReplicaState.READY, "version": 1})
    database.write(lambda connection, _: endpoint_changes.write_replica(connection, "ready", change, NOW))
    home = SimpleNamespace(identity=lambda: "here")
    service = SimpleNamespace(database=database, home=home)
    found = overview(service, Caller("ann", None, frozenset({"read"})), queries.ALL_RUNS)
    needs = {each["run"]: each["why"] for each in found["needs_you"]["runs"]}
    assert needs == {
        "nan": "loss, val is NaN",
        "over": "loss is NaN",
        "silent": "service silent: no replica is ready",
    }
    assert found["needs_you"]["count"] == 3


def test_a_failure_needs_nobody_once_its_recipe_has_succeeded(database, monkeypatch):
    monkeypatch.setattr(type(database), "clock_s", lambda _: NOW + 500.0)
    ended = {"first": ("FAILED", 10.0), "other": ("FAILED", 20.0), "again": ("SUCCEEDED", 100.0)}
    for run, (reason, at) in ended.items():
        database.create_run(new_run(run), NOW + at - 5)
        name = "another" if run == "other" else "digits"
        _run(database, run, name=name, state="DONE", reason=reason, ended_at=NOW + at)
    assert run_table.failed_since(database, queries.ALL_RUNS, NOW, 10) == ["other"]
    _run(database, "again", ended_at=NOW + 100, reason="FAILED")
    assert run_table.failed_since(database, queries.ALL_RUNS, NOW, 10) == ["again", "other", "first"]


def test_of_a_sweep_whose_first_task_is_not_over_the_quote_says_how_far_it_is(database, monkeypatch):
    quote = {"time_s": {"p5": 30.0, "p50": 40.0, "p95": 60.0}}
    monkeypatch.setattr(overviews, "quote_summary", lambda *_: quote)
    found = overviews._how_far(database, "r", 10.0, (0, 4, 0.0))
    assert (found["left_s"], found["progress"]) == (30.0, 0.25)
    assert overviews._how_far(database, "r", 10.0, (1, 4, 0.25))["progress"] == 0.25
    monkeypatch.setattr(overviews, "quote_summary", lambda *_: None)
    assert "progress" not in overviews._how_far(database, "r", 10.0, (0, 4, 0.0)), "not yet known"
