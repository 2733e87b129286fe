"""Gates by what is recorded: of the best model, and of what an alias means at that moment."""

from __future__ import annotations

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import ExperimentChange, TaskChange, queries, registry
from trainmaster.db.changes import Promotion
from trainmaster.db.registry_rows import NewVersionRow, RunModel
from trainmaster.spec.gate import Gate, Requirement
from trainmaster.spec.states import EndReason, State

TARGET = "digits@production"


def gate(metric="accuracy", ranked_by=None, goal="max", **bounds):
    wanted = Requirement(metric=metric, goal=goal, line=7, **bounds)
    return Gate(wanted, ranked_by or metric, smallest=ranked_by == "loss" or goal == "min")


@pytest.fixture
def tasks(database, lease):
    """Writes tasks of experiment ``a`` that have succeeded, with their metrics."""

    def write(*metrics, models=True):
        changes = []
        for number, found in enumerate(metrics):
            uri = {"model_uri": f"file:///{number}"} if models else {}
            changes.append(
                TaskChange("a", number, 0, State.WAITING, State.DONE, EndReason.SUCCEEDED, creates=True,
                           fields={**uri, "metrics": found})
            )  # fmt: skip
        database.commit(lease, changes, NOW)

    return write


def production(database, task):
    new = NewVersionRow("", "digits", RunModel("r-1", "a", task, f"file:///{task}"), "anna")
    registry.register(database, new, "production", NOW)


def test_the_best_model_counts_or_without_models_the_best_report(database, tasks):
    tasks({"accuracy": 0.5, "loss": 1}, {"accuracy": 0.9, "loss": 3}, {"loss": 2})
    assert database.verdict("r-1", "a", gate(at_least=0.9)).message == (
        "accuracy 0.9 is at least 0.9 (require, line 7)"
    )
    by_search = database.verdict("r-1", "a", gate(ranked_by="loss", at_least=0.9))
    assert not by_search.holds
    assert by_search.message.startswith("accuracy 0.5 is below 0.9")
    missing = database.verdict("r-1", "a", gate("f1", at_least=0.9))
    assert (missing.holds, missing.message) == (
        False, "f1 was not reported; metrics seen: accuracy, loss (require, line 7)",
    )  # fmt: skip


def test_reports_of_tasks_without_models_count(database, tasks):
    assert "none at all" in database.verdict("r-1", "a", gate(at_least=0.9)).message
    tasks({"loss": 2}, {"loss": 1.5}, models=False)
    assert database.verdict("r-1", "a", gate("loss", goal="min", at_most=1.5)).holds


def test_the_rival_is_what_the_alias_means_at_that_moment(database, tasks):
    tasks({"accuracy": 0.9}, {"accuracy": 0.95}, {"accuracy": 0.5})
    better = gate(better_than=TARGET)
    assert "there is no digits@production yet" in database.verdict("r-1", "a", better).message
    production(database, 2)
    assert "better than 0.5 of digits@production (version 1)" in database.verdict("r-1", "a", better).message
    production(database, 1)
    found = database.verdict("r-1", "a", better)
    assert (found.holds, found.message) == (
        True, "accuracy 0.95 is that of digits@production (version 2) itself (require, line 7)",
    )  # fmt: skip
    worst = gate(better_than=TARGET, goal="min")
    assert database.verdict("r-1", "a", worst).holds, "0.5 is the best of those that are to be small"


def test_an_alias_that_has_moved_to_a_better_model_since_is_not_moved(database, lease, tasks):
    tasks({"accuracy": 0.9})
    other = database.create_run(new_run("r-2"), NOW)
    best = TaskChange("a", 0, 0, State.WAITING, State.DONE, EndReason.SUCCEEDED, creates=True,
                      fields={"model_uri": "file:///b", "metrics": {"accuracy": 0.99}})  # fmt: skip
    database.commit(other, [best], NOW)
    wanted = gate(better_than=TARGET)
    assert database.verdict("r-1", "a", wanted).holds
    theirs = NewVersionRow("", "digits", RunModel("r-2", "a", 0, "file:///b"), "bob")
    registry.register(database, theirs, "production", NOW)
    promotes = Promotion("digits", "production", "accuracy", gate=wanted)
    done = ExperimentChange("a", State.RUNNING, State.DONE, EndReason.SUCCEEDED, promotes=promotes)
    database.commit(lease, [done], NOW)
    assert {row["alias"]: row["version"] for row in registry.aliases(database, "")} == {"production": 1}
    assert len(registry.versions(database, "", "digits")) == 1
    said = [row["message"] for row in queries.events(database, "r-1") if row["kind"] == "note"]
    assert said == [
        "nothing becomes digits@production: accuracy 0.9 is not better than 0.99 of digits@production "
        "(version 1) (require, line 7)"
    ]


def test_a_model_that_is_saved_later_does_not_pass_a_gate(database, lease, tasks):
    tasks({"accuracy": 0.9})
    ended = ExperimentChange("a", State.RUNNING, State.DONE, EndReason.INTERNAL, "not saved")
    database.commit(lease, [ended], NOW)
    database.record_saved(lease, "a", 0, "file:///0", NOW, gated=True)
    assert database.experiment_rows("r-1")[0]["reason"] == EndReason.INTERNAL
    database.record_saved(lease, "a", 0, "file:///0", NOW)
    assert database.experiment_rows("r-1")[0]["reason"] == EndReason.SUCCEEDED
