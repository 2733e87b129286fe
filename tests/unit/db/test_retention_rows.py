"""What is old is removed, and nothing else, by one server at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.db import RunChange, removals, run_files, tables
from trainmaster.spec.states import EndReason, State


def insert(database, table, *rows):
    database.write(lambda connection, _: connection.execute(table.insert(), list(rows)))


def left(database, table):
    return {row["id"] for row in database.read(sa.select(table.c.id))}


def test_old_rows_go_a_few_at_a_time(database, monkeypatch):
    monkeypatch.setattr(removals, "_MOST_AT_ONCE", 3)
    insert(database, tables.login_attempt, *({"id": n, "address": "", "at": NOW + n} for n in range(1, 10)))
    assert removals.remove_older(database, "login_attempts", NOW + 8) == 7
    assert left(database, tables.login_attempt) == {8, 9}
    assert removals.remove_older(database, "login_attempts", NOW + 8) == 0


def test_what_is_not_over_has_no_age(database):
    asked = {
        "kind": "quote", "team": "", "asked_by": "ann", "request": "{}", "state": "DONE", "attempts": 1,
        "told": "[]", "created_at": 0.0,
    }  # fmt: skip
    rows = [("goes-on", None), ("old", NOW - 1), ("new", NOW + 1)]
    insert(database, tables.quote_request, *({**asked, "id": n, "ended_at": at} for n, at in rows))
    assert removals.remove_older(database, "quotes", NOW) == 1
    assert left(database, tables.quote_request) == {"goes-on", "new"}


def test_what_is_sealed_of_a_run_goes_when_its_end_is_long_ago(database):
    leases = {name: database.create_run(new_run(name), NOW) for name in ("goes-on", "old", "new", "driven")}
    for name, lease in leases.items():
        run_files.put_private(database, lease, {"secrets": b"1", "clusters/c/key": b"2"})
        if name != "goes-on":
            at = NOW + (100 if name == "new" else 0)
            database.commit(lease, [RunChange(State.WAITING, State.DONE, EndReason.CANCELLED)], at)
        if name != "driven":
            database.release(lease, NOW)
    assert removals.remove_older(database, "sealed", NOW + 1) == 2
    kept = {name for name in leases if run_files.private(database, name)}
    assert kept == {"goes-on", "new", "driven"}
    assert removals.remove_older(database, "sealed", NOW + 1000) == 4
    assert run_files.private(database, "goes-on")


def test_every_kind_can_be_removed(database):
    for kind in removals.KINDS:
        assert removals.remove_older(database, kind, NOW) == 0


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_one_server_at_a_time(database):
    insert(database, tables.login_attempt, {"address": "", "at": 0.0})
    with database.engine.begin() as other:
        other.execute(sa.select(sa.func.pg_advisory_xact_lock(removals._LOCK)))
        assert removals.remove_older(database, "login_attempts", NOW) == 0
    assert removals.remove_older(database, "login_attempts", NOW) == 1


def test_code_that_runs_name_is_known(database):
    database.create_run(replace(new_run("a"), code_path="/home/ann/snapshots/1f", can_move=True), NOW)
    database.create_run(replace(new_run("b"), code_path="/home/ann/snapshots/2f"), NOW)
    assert removals.named_code(database) == {"1f"}
