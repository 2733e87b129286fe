"""The database goes away and comes back: nothing is lost, nothing is done twice."""

from __future__ import annotations

import random
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa
from cutting_proxy import CuttingProxy
from database_nouns import NOW, ended, everything, new_run, opened, planned

from trainmaster.db import Database, Note, RetryPolicy, RunChange, run_rows
from trainmaster.db.leases import LEASE_S
from trainmaster.spec.errors import LeaseLostError, StoreError
from trainmaster.spec.states import EndReason, State


def schedule(database: Database, seed: int) -> None:
    """What control processes write in two sessions, with sizes drawn by the seed."""
    rng = random.Random(seed)
    lease = database.create_run(new_run("r-1", (("a", 40),)), NOW)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    numbers = iter(range(40))
    for session in range(2):
        for _ in range(6):
            mine = [next(numbers) for _ in range(rng.randint(1, 3))]
            database.commit(lease, [change for n in mine for change in (planned(n), opened(n))], NOW)
            database.renew(lease, NOW)
            how = rng.choice([EndReason.SUCCEEDED, EndReason.OOM])
            database.commit(lease, [ended(n, how) for n in mine] + [Note(f"session {session}")], NOW)
        database.want_stop("r-1", EndReason.CANCELLED)
        assert database.stop_wanted("r-1") is EndReason.CANCELLED
        lease = database.acquire("r-1", NOW)
        database.requeue(lease, NOW)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)


def facts(database: Database) -> dict[str, list[dict]]:
    """All rows but for what tries leave: gaps in ids, leases that are taken again, and later."""
    found = everything(database)
    for rows in found.values():
        for row in rows:
            for name in ("id", "experiment_id", "lease_expires_at", "lease_token", "session_at", "earlier_s"):
                if name != "id" or row[name] != "r-1":
                    row.pop(name, None)
    return found


class Trouble:
    """Stands in for the driver's COMMIT, and fails as often as it is told to."""

    def __init__(self, database: Database, error: Callable[[], Exception]) -> None:
        self._commit = database.engine.dialect.do_commit
        self._error = error
        self.before: Callable[[], bool] = lambda: False
        self.after: Callable[[], bool] = lambda: False
        self.count = 0

    def __call__(self, raw: object) -> None:
        if self.before():
            self.count += 1
            raise self._error()
        self._commit(raw)
        if self.after():
            self.count += 1
            raise self._error()


@pytest.fixture
def trouble(database: Database, engine_name: str, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    def error() -> Exception:
        if engine_name == "sqlite":
            found = sqlite3.OperationalError("disk I/O error")
            found.sqlite_errorcode = sqlite3.SQLITE_IOERR
            return found
        import psycopg

        return psycopg.OperationalError("server closed the connection unexpectedly")

    found = Trouble(database, error)
    monkeypatch.setattr(database.engine.dialect, "do_commit", found)
    return found


@pytest.fixture
def calm(tmp_path) -> Iterator[Database]:
    """A database that nothing happens to."""
    found = Database(f"sqlite:///{tmp_path / 'calm.db'}")
    yield found
    found.close()


def patient(database: Database, seconds: float = 60.0) -> list[float]:
    """Waits that are only counted; gives them."""
    waits: list[float] = []
    database.retry_policy.seconds = seconds
    database.retry_policy.sleep = waits.append
    database.retry_policy.clock = lambda: sum(waits)
    return waits


@pytest.mark.parametrize("seed", range(2))
def test_a_commit_whose_answer_got_lost_is_not_written_twice(database, calm, trouble, seed):
    rng = random.Random(seed)
    patient(database)
    trouble.before = lambda: rng.random() < 0.2
    trouble.after = lambda: rng.random() < 0.3
    schedule(database, seed)
    trouble.before = trouble.after = lambda: False
    assert trouble.count > 5
    schedule(calm, seed)
    assert facts(database) == facts(calm)


def test_a_run_whose_commit_ends_after_the_next_try_has_looked_is_there_once(database, trouble, monkeypatch):
    looked = iter([False])  # PostgreSQL goes on with a commit whose connection was cut
    is_there = run_rows.was_inserted
    monkeypatch.setattr(run_rows, "was_inserted", lambda *where: next(looked, True) and is_there(*where))
    patient(database)
    answers = iter([True])
    trouble.after = lambda: next(answers, False)
    lease = database.create_run(new_run("r-1", (("a", 1),)), NOW)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    assert trouble.count == 1
    with pytest.raises(StoreError, match=r"(?i)unique"):
        database.create_run(new_run("r-1", (("a", 1),)), NOW)


def test_a_commit_is_not_taken_for_an_earlier_one(database, lease):
    database.commit(lease, [planned(0)], NOW)
    lease.turn -= 1  # a driver that is confused
    with pytest.raises(LeaseLostError):
        database.commit(lease, [planned(1)], NOW)
    assert len(database.live_task_rows("r-1")) == 1


def test_a_lease_that_was_taken_meanwhile_is_lost(database, lease, trouble):
    def sleep(_: float) -> None:
        trouble.after = lambda: False
        database.acquire("r-1", NOW)

    patient(database)
    database.retry_policy.sleep = sleep
    trouble.after = lambda: True
    with pytest.raises(LeaseLostError):
        database.commit(lease, [planned(0)], NOW)
    assert (
        len(database.live_task_rows("r-1")) == 1
    )  # the first try was written: the new driver goes on from it


def test_a_lease_is_renewed_from_when_it_worked(database, lease, trouble):
    waits = patient(database)
    failures = iter([True] * 8)
    trouble.before = lambda: next(failures, False)
    database.commit(lease, [], NOW)
    assert sum(waits) > 3
    assert database.run_row("r-1")["lease_expires_at"] == pytest.approx(NOW + sum(waits) + LEASE_S)


def test_patience_ends_with_what_to_do(database, lease, trouble):
    waits = patient(database)
    trouble.before = lambda: True
    with pytest.raises(StoreError, match="refused a write for 60 s: ") as caught:
        database.commit(lease, [planned(0)], NOW)
    assert sum(waits) == pytest.approx(60)
    assert "trainmaster resume RUN" in caught.value.hint
    trouble.before = lambda: False
    database.commit(lease, [planned(0)], NOW)  # nothing had been written
    assert len(database.live_task_rows("r-1")) == 1


def test_giving_up_a_lease_waits_for_nothing(database, lease, trouble):
    waits = patient(database)
    trouble.before = lambda: True
    with pytest.raises(StoreError):
        database.release(lease, NOW)
    assert waits == []


def test_a_run_that_exists_is_refused_even_after_trouble(database, lease, trouble):
    patient(database)
    failures = iter([True])
    trouble.before = lambda: next(failures, False)
    with pytest.raises(StoreError, match="refused"):
        database.create_run(new_run(), NOW + 1)


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_database_that_another_process_has_locked(database, lease, url):
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)

    @sa.event.listens_for(database.engine, "checkout")
    def impatient(raw, *_):
        raw.execute("PRAGMA busy_timeout=1")

    other.execute("BEGIN IMMEDIATE")
    waits = patient(database, 1.0)
    with pytest.raises(StoreError, match="for 1 s: database is locked") as caught:
        database.commit(lease, [planned(0)], NOW)
    assert "locked" in caught.value.hint
    waits.clear()
    database.retry_policy.sleep = lambda seconds: (waits.append(seconds), other.execute("COMMIT"))
    database.commit(lease, [planned(0)], NOW)
    assert len(waits) == 1
    other.close()


@pytest.mark.parametrize("engine_name", ["sqlite"])
def test_a_connection_that_other_threads_have_is_waited_for(database, lease, monkeypatch):
    monkeypatch.setattr(database.engine.pool, "_timeout", 0.0)
    in_use = []
    with suppress(sa.exc.TimeoutError):
        while True:
            in_use.append(database.engine.connect())
    waits = patient(database)
    with pytest.raises(StoreError, match="all connections of this process are in use"):
        database.run_row("r-1")
    with pytest.raises(StoreError, match="all connections of this process are in use"):
        database.commit(lease, [planned(0)], NOW)
    waits.clear()
    database.retry_policy.sleep = lambda seconds: (waits.append(seconds), in_use.pop().close())
    database.commit(lease, [planned(0)], NOW)
    assert len(waits) == 1
    assert len(database.live_task_rows("r-1")) == 1
    for connection in in_use:
        connection.close()


@pytest.mark.parametrize("engine_name", ["postgresql"])
@pytest.mark.parametrize("how", ["cut", "restart", "crash"])
def test_a_server_that_restarts_between_commits(database, lease, postgres, how):
    database.retry_policy.seconds = 30
    for number in range(3):
        database.commit(lease, [planned(number), opened(number)], NOW)
        if how == "cut":
            assert postgres.cut_connections() >= 1
        else:
            postgres.restart(signal.SIGINT if how == "restart" else signal.SIGQUIT)
    assert database.stop_wanted("r-1") is None
    database.commit(lease, [ended(number, EndReason.SUCCEEDED) for number in range(3)], NOW)
    assert len(everything(database)["attempt"]) == 3


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_a_server_that_is_down_for_a_while(database, lease, postgres):
    told: list[str] = []
    waits = patient(database)
    database.retry_policy.tell = told.append
    postgres.stop()
    try:
        database.retry_policy.sleep = lambda s: (waits.append(s), len(waits) == 5 and postgres.start())
        database.commit(lease, [planned(0)], NOW)
    finally:
        if not postgres.is_running:
            postgres.start()
    assert len(waits) == 5
    assert len(told) == 1
    assert "the database is away (" in told[0]


@pytest.mark.parametrize("engine_name", ["postgresql"])
@pytest.mark.parametrize("seed", range(2))
def test_connections_that_are_cut_anywhere(postgres, url, calm, tmp_path_factory, seed):
    with tempfile.TemporaryDirectory(prefix="tm-cut-", dir="/tmp") as directory:
        proxy = CuttingProxy(postgres.socket, Path(directory), seed, chance=0.03)
        proxy.calm = True
        database = Database(
            url.replace(str(postgres.directory), directory),
            RetryPolicy(300, sleep=lambda _: None),
        )
        proxy.calm = False
        schedule(database, seed)
        proxy.calm = True
        schedule(calm, seed)
        assert facts(database) == facts(calm)
        assert sum(proxy.cuts.values()) > 3, proxy.cuts
        database.close()
        proxy.close()
