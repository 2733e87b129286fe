"""The writes of many threads in few transactions: in their order, and each whole or not at all."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from trainmaster.db.transactions import MOST, GroupCommit
from trainmaster.testing.waits import until

ROWS = sa.table("row", sa.column("name"))
LONG_S = 60.0


class Writers:
    """Threads that write rows by their name, together; and the transactions that were made of that.

    Attributes:
        said: what each was told: its result, or its error.
        commits: how many transactions there were.
        fails: names of rows whose work raises instead, and what.
    """

    def __init__(self, engine):
        self.engine = engine
        self.gate = threading.Event()
        self.group = GroupCommit(engine, self.open_gate())
        self.said: dict[str, object] = {}
        self.fails: dict[str, Exception] = {}
        self.commits = 0
        self._threads: list[threading.Thread] = []
        event.listen(engine, "commit", self._count)

    def open_gate(self):
        """The lock of the group: nobody writes before all are there."""
        writers = self

        class Gate:
            def __enter__(self):
                assert writers.gate.wait(LONG_S)

            def __exit__(self, *_):
                pass

        return Gate()

    def write(self, *names):
        """One after the other they come and wait; then all that is written is."""
        for number, name in enumerate(names):
            thread = threading.Thread(target=self._write, args=(name,))
            self._threads.append(thread)
            thread.start()
            # The first one leads, and takes nothing but its own.
            until(lambda: self.group._is_led and len(self.group._waiting) == number, "it waits")  # noqa: B023
        self.gate.set()
        for thread in self._threads:
            thread.join(LONG_S)
        assert len(self.said) == len(names)

    def rows(self):
        with self.engine.connect() as connection:
            return [row.name for row in connection.execute(sa.select(ROWS.c.name))]

    def _write(self, name):
        try:
            self.said[name] = self.group.write(lambda connection: self._insert(connection, name))
        except (sa.exc.DBAPIError, ValueError) as error:
            self.said[name] = error

    def _insert(self, connection, name):
        connection.execute(ROWS.insert().values(name=name))
        if name in self.fails:
            raise self.fails[name]
        return f"wrote {name}"

    def _count(self, _):
        self.commits += 1


@pytest.fixture
def writers(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/rows.db")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE row (name TEXT UNIQUE)")
    yield Writers(engine)
    engine.dispose()


def test_those_who_wait_are_written_together_in_their_order(writers):
    names = [f"{number:03}" for number in range(MOST + 8)]
    writers.write(*names)
    assert writers.rows() == names
    assert writers.said == {name: f"wrote {name}" for name in names}
    assert writers.commits == 3, "the first alone, then as many as there may be, then the rest"


def test_who_fails_disturbs_nobody_else(writers):
    writers.fails = {"b": ValueError("no")}
    writers.write("first", "a", "b", "c")
    assert writers.rows() == ["first", "a", "c"]


def test_a_database_that_is_away_is_told_to_all(writers):
    away = sa.exc.OperationalError("INSERT", {}, Exception("disk I/O error"))
    writers.fails = {"b": away}
    writers.write("first", "a", "b", "c")
    assert [writers.said[name] for name in "abc"] == [away] * 3, "each tries again as long as it may"
    assert writers.rows() == ["first"]


def test_a_commit_that_fails_is_told_to_all(writers):
    def refuse(connection):
        raise sa.exc.OperationalError("COMMIT", {}, Exception("database or disk is full"))

    event.listen(writers.engine, "commit", refuse)
    writers.write("first", "a", "b")
    assert all(isinstance(said, sa.exc.OperationalError) for said in writers.said.values())
    event.remove(writers.engine, "commit", refuse)
    assert writers.rows() == []


def test_there_is_a_next_one_after_an_error(writers):
    writers.gate.set()
    with pytest.raises(ZeroDivisionError):
        writers.group.write(lambda _: 1 / 0)
    assert writers.group.write(lambda _: "written") == "written"
