"""A database that cannot be used says so, as a `StoreError` with a hint."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from database_nouns import NOW, new_run

from trainmaster.db import Database, RunChange, TaskChange, queries
from trainmaster.db.engine import SCHEMA_REVISION, make_engine, open_database
from trainmaster.spec.errors import StoreError
from trainmaster.spec.states import EndReason, State


def stamp(url: str, revision: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = :to"), {"to": revision})
    engine.dispose()


def test_a_new_database_has_the_newest_schema(database, url):
    with database.engine.connect() as connection:
        assert (
            connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == SCHEMA_REVISION
        )
        if connection.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    again = Database(url)  # opening it once more changes nothing
    assert queries.runs(again) == []
    again.close()


def test_a_database_of_a_newer_version_is_refused(database, url):
    stamp(url, "9999")
    with pytest.raises(StoreError, match=r"has schema 9999, this Trainmaster knows up to") as caught:
        Database(url)
    assert "update this one" in caught.value.hint


def test_a_database_of_a_build_before_the_first_release_is_refused(database, url):
    stamp(url, "0010")
    with pytest.raises(StoreError, match=r"has schema 0010, of a build before 0\.2\.0") as caught:
        Database(url)
    assert "TRAINMASTER_HOME" in caught.value.hint


def test_a_place_that_is_not_there(tmp_path: Path):
    with pytest.raises(StoreError, match="cannot use the database"):
        Database(f"sqlite:///{tmp_path / 'none' / 'trainmaster.db'}")


def test_a_file_system_without_locks_is_named_at_once(tmp_path: Path, monkeypatch):
    """SQLite then says that the database is locked, and would be asked for as long as another may write."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = tmp_path / "trainmaster.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode=EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(fcntl, "lockf", refuse)
        own = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waits"))
        monkeypatch.setattr("trainmaster.db.engine.time", own)  # `time.sleep` itself is of all threads
        with pytest.raises(StoreError, match="locked") as caught:
            Database(f"sqlite:///{path}")
    assert f"The file system of {tmp_path} has no locks" in caught.value.hint
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_file_that_is_no_database(tmp_path: Path):
    path = tmp_path / "trainmaster.db"
    path.write_bytes(b"no database at all, but long enough to be looked at\n" * 40)
    with pytest.raises(StoreError, match="not a database") as caught:
        Database(f"sqlite:///{path}")
    assert "trainmaster server restore" in caught.value.hint
    assert "disk" not in caught.value.hint


def test_a_database_that_is_damaged_while_it_is_open_leads_to_its_backup(tmp_path: Path):
    path = tmp_path / "trainmaster.db"
    database = Database(f"sqlite:///{path}")
    database.close()
    pages = bytearray(path.read_bytes())
    pages[4096:] = b"\xff" * (len(pages) - 4096)  # the first one says what the file is
    path.write_bytes(pages)
    with pytest.raises(StoreError, match="malformed") as caught:
        queries.runs(Database(f"sqlite:///{path}"))
    assert "trainmaster server restore" in caught.value.hint


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_read_only_database_can_be_read_and_refuses_writes(database, lease, url):
    path = url.removeprefix("sqlite:///")
    reader = Database(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert reader.run_row("r-1")["name"] == "r"
    with pytest.raises(StoreError, match="readonly") as caught:
        reader.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    assert "resume" in caught.value.hint
    with pytest.raises(StoreError, match="readonly"):
        reader.create_run(new_run("r-2"), NOW)
    reader.close()
    assert database.run_row("r-1")["state"] == "WAITING"


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_full_disk_refuses_a_commit_whole_and_later_ones_work(database, lease):
    with database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()

    limit = [pages]

    @sa.event.listens_for(database.engine, "begin")
    def full(connection):
        connection.exec_driver_sql(f"PRAGMA max_page_count={limit[0]}")

    big = [
        TaskChange("a", number, 0, State.WAITING, State.PLANNED, message="x" * 4000, creates=True)
        for number in range(3)
    ]
    with pytest.raises(StoreError, match="full"):
        database.commit(lease, big, NOW)
    assert database.live_task_rows("r-1") == []
    assert len(queries.events(database, "r-1")) == 1
    limit[0] = pages + 1000
    database.commit(lease, big, NOW)
    assert len(database.live_task_rows("r-1")) == 3


def test_a_run_is_not_created_twice(database, lease):
    with pytest.raises(StoreError, match="refused"):
        database.create_run(new_run(), NOW)


def test_a_database_that_lost_a_table_says_so(database, lease):
    with database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE run RENAME TO lost")
    for ask in (
        lambda: database.stop_wanted("r-1"),
        lambda: database.run_row("r-1"),
        lambda: queries.runs(database),
        lambda: database.want_stop("r-1", EndReason.CANCELLED),
    ):
        with pytest.raises(StoreError, match=r"no such table|does not exist"):
            ask()


def test_a_new_file_is_its_owners_and_one_that_is_shared_stays_so(tmp_path: Path):
    file = tmp_path / "t.db"
    before = os.umask(0)
    try:
        open_database(f"sqlite:///{file}").dispose()
    finally:
        os.umask(before)
    assert [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077] == []
    file.chmod(0o660)
    open_database(f"sqlite:///{file}").dispose()
    assert file.stat().st_mode & 0o777 == 0o660


def test_a_process_whose_tables_a_newer_version_has_changed_writes_nothing(database, url, lease, monkeypatch):
    """What the database refuses to read is explained by that, too."""
    stamp(url, "9999")
    monkeypatch.setattr("trainmaster.db.transactions._SCHEMA_LOOK_S", -1.0)
    other = database._transactions.sharing(database.retry_policy)
    for check in (
        database.check_schema,
        lambda: database.put_cost(lease, 1.0, NOW),
        lambda: other.write(lambda connection, _: connection.execute(sa.text("DELETE FROM event"))),
        lambda: database.read(sa.select(sa.text("no_such_column FROM run"))),
    ):
        with pytest.raises(StoreError, match="a newer Trainmaster has changed") as caught:
            check()
        assert "start it again" in caught.value.hint
    assert queries.events(database, "r-1")
