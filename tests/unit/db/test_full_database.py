"""SQLite itself says that there is no room, as its connections may have no further page."""

from __future__ import annotations

import sqlite3
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run
from sqlalchemy import event

from trainmaster.db import Database, Note, RetryPolicy
from trainmaster.db.queries import events
from trainmaster.db.retry_policy import is_full
from trainmaster.spec.errors import FullDiskError

BIG = "x" * 60_000


class Disk:
    """Of a database: full, or not."""

    def __init__(self, database):
        self.pages = 1 << 30
        event.listen(database.engine, "checkout", self)

    def __call__(self, connection, *_):
        connection.execute(f"PRAGMA max_page_count = {self.pages}")


@pytest.fixture
def waits():
    return []


@pytest.fixture
def database(tmp_path, waits):
    time = [100.0]

    def sleep(seconds):
        waits.append(seconds)
        time[0] += seconds

    found = Database(f"sqlite:///{tmp_path}/t.db", RetryPolicy(60.0, clock=lambda: time[0], sleep=sleep))
    yield found
    found.close()


def notes(database):
    return [row["message"] for row in events(database, "r-1") if row["kind"] == "note"]


def test_what_drives_a_run_waits_for_room_and_nothing_is_lost(database, waits):
    lease = database.create_run(new_run("r-1", (("a", 1),)), NOW)
    disk = Disk(database)
    disk.pages = 1
    with pytest.raises(
        FullDiskError, match=r"^the database refused a write: .*database or disk is full"
    ) as found:
        database.commit(lease, [Note(BIG)], NOW)
    assert sum(waits) == pytest.approx(60)
    assert "Free some space on the file system of /" in found.value.hint
    assert "trainmaster resume RUN" in found.value.hint
    waits.clear()
    sleep = database.retry_policy.sleep

    def until_there_is_room(seconds):
        sleep(seconds)
        disk.pages = 1 << 30 if len(waits) == 5 else disk.pages

    database.retry_policy.sleep = until_there_is_room
    database.commit(lease, [Note(BIG)], NOW)
    assert len(waits) == 5
    assert [len(message) for message in notes(database)] == [len(notes(database)[0])], "written once"


def test_who_answers_somebody_does_not_wait_for_room(database, waits):
    lease = database.create_run(new_run("r-1", (("a", 1),)), NOW)
    disk = Disk(database)
    disk.pages = 1
    database.retry_policy.waits_for_room = False
    with pytest.raises(FullDiskError):
        database.commit(lease, [Note(BIG)], NOW)
    assert (waits, notes(database)) == ([], [])


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (SimpleNamespace(sqlstate="53100"), True),
        (SimpleNamespace(sqlstate="53300"), False),
        (SimpleNamespace(sqlite_errorcode=sqlite3.SQLITE_FULL), True),
        (SimpleNamespace(sqlite_errorcode=sqlite3.SQLITE_BUSY), False),
        (Exception("refused"), False),
    ],
)
def test_what_a_full_disk_is_to_a_database(cause, expected):
    assert is_full(sa.exc.OperationalError("INSERT", {}, cause)) == expected


def test_too_few_connections_are_no_full_disk():
    assert not is_full(sa.exc.TimeoutError())
