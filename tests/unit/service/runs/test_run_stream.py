"""The stream of a run: from any place on, nothing is missing and nothing comes twice."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, TaskChange, tables
from trainmaster.service import Service
from trainmaster.service.runs.run_stream import RunStream, StreamCursor
from trainmaster.spec import Recipe
from trainmaster.spec.errors import StoreError, UsageError
from trainmaster.spec.states import EndReason, State

NUMBERS = itertools.count()
RECIPE = Recipe.from_dict({"name": "r", "experiments": {"main": {"command": "true"}}}).model_dump_json()


class Written:
    """A run whose tasks write as a test says."""

    def __init__(self, service, run):
        self.service, self.run = service, run
        new = AcceptedRun(run, "r", RECIPE, "r.yaml", "local", "code", "file:///s", [("main", 100)])
        self.lease = self.service.database.create_run(new, 1.0)
        self.tasks = 0

    def begin(self):
        change = TaskChange("main", self.tasks, 1, State.WAITING, State.RUNNING, creates=True, opens=True)
        self.service.database.commit(self.lease, [change], 2.0)
        self.place(self.tasks).directory.mkdir(parents=True)
        self.tasks += 1

    def end(self, task):
        closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
        ends = (State.RUNNING, State.DONE, EndReason.SUCCEEDED, "")
        self.service.database.commit(self.lease, [TaskChange("main", task, 1, *ends, closes=closes)], 3.0)

    def place(self, task):
        return self.service.home.attempt(self.run, "main", task, 1)

    def write(self, task, text):
        with self.place(task).log("worker-0").open("a") as log:
            log.write(text)

    def report(self, task, **row):
        with self.place(task).metrics("worker-0").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def stream(self, cursor=None, **more):
        return RunStream(self.service, self.run, cursor, **more)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    root = tmp_path_factory.mktemp("home")
    found = Service(Home(root, root, "file:///s", f"sqlite:///{root / 'trainmaster.db'}"))
    yield found
    found.close()


@pytest.fixture
def written(service):
    return Written(service, f"r-{next(NUMBERS)}")


def told(messages):
    """Logs and points by task, and ids of events."""
    logs, points, events = {}, {}, []
    for message in messages:
        data = message.data
        if message.kind == "log":
            logs[data["task"]] = logs.get(data["task"], "") + data["text"]
        elif message.kind == "point":
            points.setdefault(data["task"], []).extend(row["step"] for row in data["points"])
        else:
            events += [event["id"] for event in data["events"]]
    return logs, points, events


def test_what_is_there_and_then_what_comes(written):
    written.begin()
    written.write(0, "a\nhalf")
    written.report(0, step=1, loss=0.5)
    stream = written.stream()
    logs, points, events = told(stream.read())
    assert (logs, points, len(events)) == ({0: "a\nhalf"}, {0: [1]}, 2)
    assert [message.kind for message in stream.read()] == []
    written.report(0, step=2, loss=math.nan)
    (point,) = stream.read()
    assert point.data["points"] == [{"step": 2, "loss": None}], "a browser reads no NaN"
    written.write(0, " b\n")
    assert told(stream.read())[0] == {0: " b\n"}


def test_a_run_that_is_over_is_told_whole(written):
    written.begin()
    written.write(0, "a\n")
    written.end(0)
    written.service.database.commit(
        written.lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], 4.0
    )
    stream = written.stream()
    found = list(stream.read())
    assert told(found)[0] == {0: "a\n"}
    assert found[-1].data["run"]["state"] == "DONE", "told last: a client that stops to listen there has all"
    assert stream.cursor.files == {}
    assert list(stream.read()) == []


def test_up_to_a_place_before_the_end_nobody_is_told_that_the_run_is_over(written):
    """Another listener is at that place: what follows comes to both, and the end of the run with it."""
    listening = written.stream()
    written.begin()
    written.write(0, "a\n")
    others = written.stream()
    list(others.read())
    written.write(0, "b\n")
    written.end(0)
    written.service.database.commit(
        written.lease, [RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED)], 4.0
    )
    missed = list(listening.read(others.cursor))
    assert told(missed)[0] == {0: "a\n"}
    assert [each.data["run"]["state"] for each in missed if each.kind == "state"] == []
    rest = list(listening.read())
    assert told(rest)[0] == {0: "b\n"}
    assert rest[-1].data["run"]["state"] == "DONE"


def test_with_a_tail_no_old_points_come_and_little_of_old_logs(written):
    written.begin()
    written.write(0, "".join(f"line {number}\n" for number in range(100)))
    for step in range(100):
        written.report(0, step=step)
    stream = written.stream(tail_bytes=16)
    logs, points, _ = told(stream.read())
    assert logs == {0: "line 98\nline 99\n"}
    assert points == {0: [99]}
    written.begin()
    written.write(1, "x" * 40 + "\n")
    written.report(1, step=0)
    assert told(stream.read())[:2] == ({1: "x" * 40 + "\n"}, {1: [0]})


@pytest.mark.parametrize("text", ["x", "!!!!", StreamCursor(1).encode()[:-3] + "AAA", "A" * 100_000])
def test_a_place_that_is_none_of_ours_is_refused(text):
    with pytest.raises(UsageError, match="no place in a stream"):
        StreamCursor.decode(text)


STEPS = st.lists(
    st.sampled_from(["begin", "end", "write", "part", "report", "read", "read", "again"]), max_size=25
)


@settings(max_examples=50, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_cut_anywhere_it_is_told_once(service, steps, random):
    """Whatever happens between the looks, and wherever a listener comes back, also behind another one."""
    written = Written(service, f"r-{next(NUMBERS)}")
    logs, points, messages, running = {}, {}, [], []
    stream, common = written.stream(), written.stream()
    for number, step in enumerate(steps):
        if step == "begin":
            written.begin()
            running.append(written.tasks - 1)
        elif step == "read":
            list(common.read())
            messages += stream.read(common.cursor)
        elif step == "again":
            found = list(stream.read(common.cursor))
            kept = found[: random.randint(0, len(found))]  # the connection was cut there
            cursor = kept[-1].cursor if kept else (messages[-1].cursor if messages else StreamCursor())
            messages += kept
            stream = written.stream(StreamCursor.decode(cursor.encode()))
        elif running:
            task = random.choice(running)
            if step == "end":
                written.end(task)
                running.remove(task)
            elif step == "report":
                written.report(task, step=number)
                points.setdefault(task, []).append(number)
            else:
                text = f"{number}" + "\n" * (step == "write")
                written.write(task, text)
                logs[task] = logs.get(task, "") + text
    messages += stream.read()
    found_logs, found_points, events = told(messages)
    assert found_logs == logs
    assert found_points == points
    assert events == sorted(set(events))
    assert (
        len(events)
        == service.database.read(
            sa.select(sa.func.count().label("n")).where(tables.event.c.run_id == written.run)
        )[0]["n"]
    )


def test_a_cursor_says_less_when_attempts_are_over():
    assert len(StreamCursor(10**9, 10**6, {f"{n}/log/worker-0": 10**6 for n in range(64)}).encode()) < 2000
    assert replace(StreamCursor(1), files={}) == StreamCursor.decode(StreamCursor(1).encode())


@contextmanager
def failing_at(database, statement):
    """The database goes away for one statement, counted from 0; tells how many there were."""
    seen = []

    def count(*_):
        seen.append(None)
        if len(seen) == statement + 1:
            raise sa.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("disk I/O error"))

    event.listen(database.engine, "before_cursor_execute", count)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", count)


def test_a_database_that_goes_away_at_any_statement_costs_no_message(written, monkeypatch):
    monkeypatch.setattr(written.service.database.retry_policy, "seconds", 0.0)
    for task in range(2):
        written.begin()
        written.write(task, f"line of {task}\n")
        written.report(task, step=1, loss=0.5)
    written.end(0)
    expected = told(written.stream().read())
    failed = 0
    for statement in itertools.count():
        stream, found, briefs = written.stream(), [], []
        with failing_at(written.service.database, statement) as seen:
            for _ in range(3):
                with suppress(StoreError):
                    found += stream.read()
        # Without an event it is also said that ten more seconds have gone by.
        briefs = [message for message in found if message.kind == "state" and message.data["events"]]
        assert told(found) == expected, f"statement {statement}"
        assert len(briefs) == 1, f"statement {statement}"
        assert told(written.stream(stream.cursor).read())[:2] == ({}, {}), "a client goes on there"
        failed += len(seen) > statement
        if len(seen) <= statement:
            break
    assert failed > 4


def test_a_line_of_the_run_is_told_although_the_database_went_away_just_then(written, monkeypatch):
    """As of what it has cost in the end, of which there is no event."""
    monkeypatch.setattr(written.service.database.retry_policy, "seconds", 0.0)
    stream = written.stream()
    list(stream.read())
    for statement in range(12):
        usd = {"cost_usd": 1.0 + statement}
        change = tables.run.update().where(tables.run.c.id == written.run).values(**usd)
        written.service.database.write(lambda connection, _, change=change: connection.execute(change))
        found = []
        with failing_at(written.service.database, statement):
            for _ in range(2):
                with suppress(StoreError):
                    found += stream.read()
        assert [message.data["run"]["cost_usd"] for message in found] == [1.0 + statement]
