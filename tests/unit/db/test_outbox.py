"""Who is to be told is written with the event; only the holder of the lease may claim, one of several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from database_nouns import NOW, ToldStore, ended, new_run, opened, planned

from trainmaster.db import Note, RunChange, queries
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.states import EndReason, State


@pytest.fixture
def lease(database):
    return database.create_run(replace(new_run(), notify=[("run",), ("run", "task")]), NOW)


def told(database, run="r-1", **page):
    return [(row["subscription"], row["kind"], row["after"]) for row in database.messages(run, **page)]


def test_each_subscription_gets_the_kinds_that_it_wants(database, lease):
    change = [RunChange(State.WAITING, State.RUNNING), planned(0), Note("nobody wants this")]
    database.commit(lease, change, NOW)
    expected = [(0, "run", "WAITING"), (1, "run", "WAITING"), (0, "run", "RUNNING"), (1, "run", "RUNNING")]
    assert told(database) == [*expected, (1, "task", "PLANNED")]
    assert told(database, without=[0]) == [row for row in told(database) if row[0] == 1]
    assert told(database, limit=2) == told(database)[:2]
    events = {event["id"]: event for event in queries.events(database, "r-1")}
    for row in database.messages("r-1"):
        event = events[row["event_id"]]
        assert {name: row[name] for name in event if name not in ("id", "run_id")} == {
            name: value for name, value in event.items() if name not in ("id", "run_id")
        }


def test_many_events_at_once_have_their_own_messages(database, lease):
    database.commit(lease, [planned(number) for number in range(2)] * 400, NOW)
    rows = database.messages("r-1", without=[0], limit=10_000)[1:]
    assert [row["task"] for row in rows] == [0, 1] * 400
    assert [row["event_id"] for row in rows] == sorted({row["event_id"] for row in rows})


def test_what_resume_and_a_late_save_change_is_told_too(database, lease):
    database.commit(lease, [planned(0), opened(0), ended(0, EndReason.SUCCEEDED)], NOW)
    database.requeue(lease, NOW)
    assert (1, "run", "WAITING") in told(database)[2:]
    before = len(told(database))
    database.record_saved(lease, "a", 0, "file:///m", NOW)
    assert told(database)[before:] == [(1, "task", "DONE")]


def test_nothing_is_written_with_a_stale_lease(database, lease):
    stale = replace(lease)
    lease = database.acquire("r-1", NOW + 1000)
    before = told(database)
    with pytest.raises(LeaseLostError):
        database.commit(stale, [RunChange(State.WAITING, State.RUNNING)], NOW)
    (row, *_) = database.messages("r-1")
    assert not database.claim_message(stale, row["id"], 0)
    database.end_message(stale, row["id"], NOW)
    assert told(database) == before
    database.release(lease, NOW + 1001)
    assert database.claim_message(lease, row["id"], 0), "its driver tells the end of a run after that"
    database.acquire("r-1", NOW + 1002)
    assert not database.claim_message(lease, row["id"], 1), "others drive it"


def test_one_of_two_claims(database, lease, url):
    (row, *_) = database.messages("r-1")
    other = ToldStore(url)
    assert other.claim_message(lease, row["id"], 0)
    assert not database.claim_message(lease, row["id"], 0)
    assert database.claim_message(lease, row["id"], 1)
    assert [row["tries"] for row in database.messages("r-1")] == [0, 2], "what was tried least comes first"
    other.close()


def test_what_was_taken_is_gone_and_what_is_given_up_is_an_event(database, lease):
    first, second = database.messages("r-1")
    database.end_message(lease, first["id"], NOW)
    database.end_message(lease, first["id"], NOW, "twice")
    assert not database.claim_message(lease, first["id"], 0)
    database.end_message(lease, second["id"], NOW + 5, "nobody took it: https://me:pw@host/x")
    assert told(database) == []
    notes = [event for event in queries.events(database, "r-1") if event["kind"] == "note"]
    assert [(note["message"], note["at"]) for note in notes] == [
        ("nobody took it: https://***@host/x", NOW + 5)
    ]


def test_a_run_that_tells_nobody_has_no_messages(database):
    lease = database.create_run(new_run("r-2"), NOW)
    database.commit(lease, [RunChange(State.WAITING, State.RUNNING)], NOW)
    assert told(database, "r-2") == []
