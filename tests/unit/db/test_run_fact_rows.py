"""What was found out of a run is written once, by whoever drives it, and stays."""

from __future__ import annotations

import threading

import pytest
from database_nouns import NOW

from trainmaster.db import ExperimentChange
from trainmaster.db.run_facts import answer, cancel_tasks, check_asked, facts_of, put_fact
from trainmaster.spec.errors import LeaseLostError, UsageError
from trainmaster.spec.facts import Approval, Fact
from trainmaster.spec.states import State


def test_the_first_look_decides(database, lease):
    assert facts_of(database, lease.run) == {}
    assert put_fact(database, lease, Fact.VOLUME, "pets", "s3://b/volumes/pets@1") == "s3://b/volumes/pets@1"
    assert put_fact(database, lease, Fact.VOLUME, "pets", "s3://b/volumes/pets@2") == "s3://b/volumes/pets@1"
    put_fact(database, lease, Fact.ENVIRONMENT, "pets", "{}")
    assert facts_of(database, lease.run) == {
        (Fact.VOLUME, "pets"): "s3://b/volumes/pets@1",
        (Fact.ENVIRONMENT, "pets"): "{}",
    }


def test_who_has_lost_the_lease_writes_nothing(database, lease):
    database.release(lease, NOW)
    taken = database.acquire(lease.run, NOW)
    with pytest.raises(LeaseLostError):
        put_fact(database, lease, Fact.VOLUME, "pets", "@1")
    assert put_fact(database, taken, Fact.VOLUME, "pets", "@2") == "@2"


def test_several_that_look_at_once_agree(database, lease):
    start, found = threading.Barrier(8), []

    def look(number):
        start.wait()
        found.append(put_fact(database, lease, Fact.VOLUME, "pets", f"@{number}"))

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(found) == {facts_of(database, lease.run)[Fact.VOLUME, "pets"]}


def test_who_names_none_that_waits_for_approval_is_told_those_that_do(database, lease):
    yes = Approval(True, "ann", NOW)

    def hints():
        for refuse in (
            lambda: answer(database, lease.run, "x", yes),
            lambda: check_asked(database, lease.run, "x"),
        ):
            with pytest.raises(UsageError, match="it is no experiment of it") as refused:
                refuse()
            yield refused.value.hint

    assert set(hints()) == {"An experiment with `approval: required` asks when all before it has succeeded."}
    asks = [ExperimentChange(name, State.WAITING, State.WAITING, message="waits for a yes") for name in "ab"]
    database.commit(lease, asks, NOW)
    assert set(hints()) == {"Those that wait for it: a, b."}
    answer(database, lease.run, "a", yes)
    assert set(hints()) == {"Those that wait for it: b."}


def test_tasks_that_a_person_wants_ended_are_named_as_everywhere(database, lease):
    waiting = {"state": "WAITING", "reason": None, "message": ""}
    assert cancel_tasks(database, lease.run, ["a/1", "a/1"], "ann") == [
        {"experiment": "a", "task": 1, **waiting}
    ]
    cancel_tasks(database, lease.run, ["a/1"], "ben")
    assert database.cancelled_tasks(lease.run) == {"a/1": "ann"}, "who said so first"
    for name in ("a/900000", "1", "z/0", "a", "a/-1", "a/1/1"):
        with pytest.raises(UsageError, match=f"has no task {name}") as refused:
            cancel_tasks(database, lease.run, ["a/0", name], "ann")
        assert "a/0" in refused.value.hint
    assert database.cancelled_tasks(lease.run) == {"a/1": "ann"}, "all of them, or none"
