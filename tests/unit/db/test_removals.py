"""Runs that are removed, on both engines: their rows go, and what others hold is waited for."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.db import Note, RunChange, TaskChange, queries, registry, removals, run_files, tables
from trainmaster.db.queries import ALL_RUNS
from trainmaster.db.registry_rows import NewVersionRow, RunModel
from trainmaster.spec.errors import NotFoundError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def run(database):
    """A run that has ended, with a model, events and pieces of files."""
    lease = database.create_run(new_run("r-1"), NOW)
    experiment = database.experiment_rows("r-1")[0]["name"]
    fields = {"model_uri": "file:///m/0"}
    changes = [
        TaskChange(experiment, 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=fields),
        Note("told"),
        RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED),
    ]
    run_files.put_pieces(database, lease, [run_files.Piece("a.log", 0, b"1")])
    database.commit(lease, changes, NOW + 1)
    database.release(lease, NOW + 1)
    return RunModel("r-1", experiment, 0, "file:///m/0")


def count(database, table):
    return database.read(sa.select(sa.func.count().label("rows")).select_from(table))[0]["rows"]


def test_a_run_is_gone_at_once_and_its_rows_a_few_at_a_time(database, run, monkeypatch):
    monkeypatch.setattr(removals, "_AT_ONCE", 1)
    assert removals.mark(database, run.run, "ann") == removals.Needed()
    for look in (database.run_row, lambda name: database.acquire(name, NOW)):
        with pytest.raises(NotFoundError):
            look(run.run)
    assert queries.run_ids(database) == []
    assert [row["id"] for row in removals.half_removed(database)] == [run.run]
    removals.empty(database, run.run)
    removals.empty(database, run.run)
    assert removals.half_removed(database) == []
    left = {table.name: count(database, table) for table in tables.metadata.sorted_tables}
    assert {name for name, rows in left.items() if rows} == {"run", "experiment"}
    assert database.has_run(run.run)


def test_a_name_and_a_removal_never_both_win(database, run):
    new = NewVersionRow("", "digits", run, "ann")
    registry.register(database, new, None, NOW)
    found = removals.mark(database, run.run, "ann")
    assert list(found.models) == [run.uri]
    assert [row["uri"] for row in queries.models(database, run.run)] == [run.uri]
    assert [row["id"] for row in removals.trimmed(database)] == [run.run]
    registry.remove_version(database, "", "digits", 1)
    assert not removals.mark(database, run.run, "ann").is_trimmed
    with pytest.raises(NotFoundError, match="no model any more"):
        registry.register(database, new, None, NOW)


def test_which_runs_ended_before(database, run):
    assert removals.ended_before(database, NOW + 2, ALL_RUNS) == [run.run]
    assert removals.ended_before(database, NOW, ALL_RUNS) == []
    assert [row["id"] for row in removals.settled(database, ALL_RUNS)] == [run.run]
    assert removals.whole_tasks(database, run.run) == set()
