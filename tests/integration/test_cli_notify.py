"""Who is told what happens to a run: at least once, with the same id, though drivers are killed."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing


def told(tm):
    return [json.loads(line) for line in tm.marks("told")]


def events(tm, run, *kinds):
    """What was to be told: id of the message, kind, state."""
    query = "SELECT id, kind, after FROM event WHERE run_id = ? ORDER BY id"
    with closing(sqlite3.connect(tm.home / "trainmaster.db")) as database:
        rows = database.execute(query, (run,)).fetchall()
    return [(f"{run}.{number}.0", kind, after) for number, kind, after in rows if kind in kinds]


def recipe(tm, command, notify):
    return tm.recipe({"name": "job", "experiments": {"main": {"command": command}}, "notify": notify})


def test_each_event_is_told_at_least_once_though_its_driver_is_killed(tm):
    # It has taken a message before it says so: what is killed then must send it again.
    notify = [{"to": "cat >> $NOTES/told; sleep 0.5", "events": ["run", "experiment", "task"]}]
    command = "echo x >> $NOTES/begun; until test -e $NOTES/go; do sleep 0.1; done"
    call = tm.start("run", recipe(tm, command, notify), "--json")
    run = call.run_id()
    for count in (1, 3):
        tm.until(lambda count=count: len(tm.marks("told")) >= count, "messages")
        call.kill()
        call = tm.start("resume", run, "--json")
    tm.until_marks("begun")
    (tm.notes / "go").touch()
    assert tm.summary(call.wait(0))["reason"] == "SUCCEEDED"
    expected = events(tm, run, "run", "experiment", "task")
    assert {(one["id"], one["kind"], one["after"]) for one in told(tm)} == set(expected)
    assert len(tm.marks("told")) > len(expected), "one was told twice: it was taken, but not written down"
    assert ("run", "DONE") in {(kind, after) for _, kind, after in expected}
    assert tm.marks("begun") == ["x"]


def test_what_nobody_took_is_sent_by_the_next_resume(tm):
    notify = [{"to": 'test -e "$NOTES/open" || { echo "closed: $0" >&2; exit 7; }; cat >> $NOTES/told'}]
    result = tm.call("run", recipe(tm, "true", notify))
    run = tm.runs()[0]["run"]
    expected = events(tm, run, "run")
    assert (
        f"notify: {len(expected)} messages are not sent yet (the command ended with code 7: closed"
        in result.err
    )
    assert f"`trainmaster resume {run}`" in result.err
    (tm.notes / "open").touch()
    before = tm.status(run)
    assert tm.resume(run) == before
    assert sorted((one["id"], one["kind"], one["after"]) for one in told(tm)) == sorted(expected)
    assert {one["reason"] for one in told(tm) if one["after"] == "DONE"} == {"SUCCEEDED"}
    tm.resume(run)
    assert len(told(tm)) == len(expected)


def test_the_end_of_an_interrupted_run_is_told_and_holds_up_nobody(tm):
    """While its receiver is slow, somebody else may resume it."""
    told_slowly = "cat > $NOTES/last; cat $NOTES/last >> $NOTES/told"
    notify = [{"to": f"{told_slowly}; ! grep -q CANCELLED $NOTES/last || sleep 8"}]
    command = "echo x >> $NOTES/up; until test -e $NOTES/go; do sleep 0.05; done"
    call = tm.start("run", recipe(tm, command, notify))
    run = call.run_id()
    tm.until_marks("up")
    call.send(signal.SIGINT)
    tm.until(lambda: any(one["reason"] == "CANCELLED" for one in told(tm)), "its end")
    assert call.process.poll() is None, "it still tells"
    (tm.notes / "go").touch()
    assert tm.resume(run)["reason"] == "SUCCEEDED"
    call.wait()


def test_a_notifier_that_nobody_knows_is_refused_before_anything_starts(tm):
    said = tm.refused(recipe(tm, "true", [{"by": "comand", "to": "cat"}]))
    assert "notify.0.by: there is no notifier 'comand'" in said
    assert "did you mean 'command'?" in said
