"""Several processes on one database: what one does, no other does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.db import Database, Note, queries, run_rows, tables

# Each process takes the lease of every run whenever it can get it, a dozen times, and gives it up again. With
# the lease in hand it reads, waits and writes: a second holder would show as a lost update.
RACER = """
import sys, time
from trainmaster.db import Database, run_rows, tables
url, runs = sys.argv[1], sys.argv[2:]
store, look, taken = Database(url), run_rows.run_row, 0


def slow_look(connection, run):
    row = look(connection, run)
    time.sleep(0.002)  # the gap that a comparison must close
    return row


run_rows.run_row = slow_look
print("ready", flush=True)
sys.stdin.readline()
while taken < 12:
    for run in runs:
        lease = store.acquire(run, time.time())
        if lease is None:
            continue
        held = store.run_row(run)["cost_usd"]
        time.sleep(0.001)
        with store.engine.begin() as connection:
            connection.execute(tables.run.update().where(tables.run.c.id == run).values(cost_usd=held + 1))
        taken += 1
        store.release(lease, time.time())
print(taken)
"""


def test_a_lease_has_one_holder(database, url):
    runs = [f"r-{number}" for number in range(2)]
    for run in runs:
        database.release(database.create_run(new_run(run), NOW), NOW)
    command = [sys.executable, "-c", RACER, url, *runs]
    racers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 3
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        taken = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
            for pipe in (racer.stdin, racer.stdout):
                pipe.close()
    assert min(taken) >= 12
    with database.engine.connect() as connection:
        found = connection.execute(sa.select(tables.run.c.cost_usd, tables.run.c.lease_token)).all()
    assert sum(cost for cost, _ in found) == sum(taken)
    assert sum(token - 1 for _, token in found) == sum(taken)


@pytest.mark.parametrize("engine_name", ["postgresql"])  # on SQLite the look has locked it already
@pytest.mark.parametrize("meanwhile", ["taken", "renewed", "released", "committed"])
def test_a_lease_that_changes_between_the_look_and_the_write(database, lease, monkeypatch, meanwhile):
    other = {"lease_owner": "other/boot:1:1", "lease_expires_at": NOW}
    with database.engine.begin() as connection:
        connection.execute(tables.run.update().values(other))
    acts = {
        "taken": {**other, "lease_token": 2, "lease_expires_at": NOW + 99},
        "renewed": {**other, "lease_expires_at": NOW + 99},
        "released": {**other, "lease_owner": None},
        "committed": {**other, "turn": 1},
    }
    look = run_rows.run_row
    looks = []

    def looked(connection, run):
        row = look(connection, run)
        looks.append(row)
        if len(looks) == 1:
            with database.engine.begin() as other_connection:
                other_connection.execute(tables.run.update().values(acts[meanwhile]))
        return row

    monkeypatch.setattr(run_rows, "run_row", looked)
    taken = database.acquire("r-1", NOW + 1)
    assert len(looks) == 2
    if meanwhile in ("taken", "renewed"):
        assert taken is None
        assert database.run_row("r-1")["lease_owner"] == "other/boot:1:1"
    else:
        assert (taken.token, taken.turn) == (2, acts[meanwhile].get("turn", 0))


def test_two_processes_open_a_new_database_at_once(url):
    code = (
        "import sys; from trainmaster.db import Database; print('ready', flush=True); "
        "sys.stdin.readline(); Database(sys.argv[1]).close()"
    )
    openers = [
        subprocess.Popen(
            [sys.executable, "-c", code, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [opener.stdout.readline() for opener in openers] == ["ready\n"] * 2
    for opener in openers:
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        _, errors = opener.communicate(timeout=60)
        assert opener.returncode == 0, errors
    database = Database(url)
    assert queries.runs(database) == []
    database.close()


@pytest.mark.parametrize("text", ["caf\udce9", "nul \0 here", "\U0001f600"])
def test_whatever_a_task_prints_can_be_stored(database, lease, text):
    database.commit(lease, [Note(text)], NOW)
    assert len(queries.events(database, "r-1")) == 2
