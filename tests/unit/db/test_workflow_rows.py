"""Starts of workflows on both engines: whatever looks, of a cause one run begins, and one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from database_nouns import NOW, new_run

from trainmaster.db import Submission, queries
from trainmaster.db import workflow_rows as rows
from trainmaster.db.retry_policy import Try
from trainmaster.db.workflow_starts import StartTakenError

VOLUME = "volume pets"


@pytest.fixture
def workflow(database):
    return rows.put(database, row(), [trigger()])


def row(name="nightly", **changed):
    found = {
        "id": f"wf-{name}",
        "team": "",
        "name": name,
        "request": '{"recipe": "x", "code": null}',
        "concurrency": "wait",
        "pushes": "[]",
        "state": rows.ENABLED,
        "revision": 1,
        "registered_by": "anna",
        "account": None,
        "token": None,
        "secret": b"s",
        "created_at": NOW,
        "changed_at": NOW,
    }
    return found | changed


def trigger(key=VOLUME, seen=0.0):
    return {"key": key, "ordinal": 0, "data": "{}", "seen": seen}


def sent(run, firing):
    return replace(new_run(run), submission=Submission("anna", firing=firing))


def version(number):
    return rows.Cause(VOLUME, f"pets@{number}")


def test_a_start_whose_answer_was_lost_is_told_as_one(database, workflow, monkeypatch):
    write = database.write

    def twice(work, **how):
        write(work, **how)
        return write(lambda connection, _: work(connection, Try(again=True)), **how)

    monkeypatch.setattr(database, "write", twice)
    assert rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))
    assert not rows.fire(database, workflow, version(1), NOW + 1.0)
    assert len(rows.waiting(database)) == 1


def test_of_many_who_see_a_version_one_writes_it_down(database, workflow):
    def see(_):
        return rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(see, range(8))) == 1
    assert not rows.fire(database, workflow, version(1), NOW, (1.0, 1.0))
    assert rows.fire(database, workflow, version(2), NOW, (1.0, 2.0))
    assert [each["cause"] for each in rows.waiting(database)] == ["pets@1", "pets@2"]


def test_of_many_who_start_it_one_run_is_written(database, workflow):
    rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))
    rows.fire(database, workflow, rows.Cause("webhook", "m-1"), NOW)
    firings = [each["id"] for each in rows.waiting(database)]

    def start(number):
        try:
            database.create_run(sent(f"r-{number}", firings[number % 2]), NOW)
        except StartTakenError:
            return None
        return f"r-{number}"

    with ThreadPoolExecutor(8) as pool:
        (run,) = [found for found in pool.map(start, range(8)) if found]
    assert rows.under_way(database, [workflow]) == {workflow: [run]}
    assert len(database.read(queries.sa.select(queries.t.run.c.id))) == 1
    told = [event["message"] for event in queries.events(database, run, 0)]
    assert any(text.startswith("started by workflow nightly: ") for text in told)
    found = rows.start_of(database, run)
    assert (found["name"], found["state"]) == ("nightly", "STARTED")


def test_one_claims_a_start_and_it_comes_back_when_that_one_is_gone(database, workflow):
    rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))
    (found,) = rows.waiting(database)
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda at: rows.claim(database, found, NOW + 60 + at), range(4)))
    assert sum(claims) == 1
    (later,) = rows.waiting(database)
    assert (later["due_at"] >= NOW + 60, later["tries"]) == (True, 1)
    assert rows.claim(database, later, NOW + 200)


def test_a_new_revision_keeps_what_was_seen_and_the_secret(database, workflow):
    rows.fire(database, workflow, version(7), NOW, (0.0, 7.0))
    new = row(id="wf-other", request='{"recipe": "y", "code": null}', secret=b"t")
    assert rows.put(database, new, [trigger(), trigger("webhook")]) == workflow
    found = rows.named(database, "", "nightly")
    assert (found["revision"], found["secret"]) == (2, b"s")
    seen = {each["key"]: each["seen"] for each in rows.triggers(database, [workflow])[workflow]}
    assert seen == {VOLUME: 7.0, "webhook": 0.0}
    rows.put(database, new, [trigger("webhook")])
    assert len(rows.triggers(database, [workflow])[workflow]) == 1
    assert rows.named(database, "", "nightly")["revision"] == 2, "it is the same"


def test_what_is_paused_starts_nothing_but_by_hand(database, workflow):
    rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))
    rows.change_state(database, workflow, rows.PAUSED, NOW)
    assert not rows.waiting(database)
    assert rows.history(database, workflow, 9)[0]["message"] == "the workflow was paused"
    assert not rows.fire(database, workflow, version(2), NOW, (1.0, 2.0))
    assert rows.fire(database, workflow, rows.Cause("by hand", "x"), NOW)


def test_what_is_removed_leaves_its_runs(database, workflow):
    rows.fire(database, workflow, version(1), NOW, (0.0, 1.0))
    (found,) = rows.waiting(database)
    database.create_run(sent("r-1", found["id"]), NOW)
    rows.remove(database, workflow)
    assert (rows.find(database, workflow), rows.start_of(database, "r-1")) == (None, None)
    assert database.run_row("r-1")["id"] == "r-1"
    with pytest.raises(StartTakenError, match="was removed"):
        database.create_run(sent("r-2", found["id"]), NOW)
    assert not database.has_run("r-2")


def test_what_is_refused_is_told_to_webhooks_of_the_team_that_want_it(database, workflow):
    from trainmaster.db import webhook_rows

    hook = {
        "id": "hook-1",
        "team": "",
        "kind": "webhook",
        "target": "https://x",
        "secrets": b"",
        "created_at": NOW,
    }
    webhook_rows.add_hook(database, {**hook, "topics": '["workflow.refused"]'})
    webhook_rows.add_hook(database, {**hook, "id": "hook-2", "topics": '["run.ended"]'})
    rows.fire(database, workflow, rows.Cause(VOLUME, "pets@1", refused="a loop"), NOW, (0.0, 1.0))
    rows.fire(database, workflow, version(2), NOW, (1.0, 2.0))
    (found,) = rows.waiting(database)
    rows.end(database, found["id"], rows.REFUSED, "over budget", NOW)
    rows.end(database, found["id"], rows.REFUSED, "over budget", NOW)
    told = database.read(webhook_rows.deliveries_query("hook-1", 9))
    assert sorted("loop" in each["body"] for each in told) == [False, True]
    assert not database.read(webhook_rows.deliveries_query("hook-2", 9))
