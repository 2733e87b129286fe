"""What was found out of a run is written once, by whoever drives it, and stays."""

from __future__ import annotations

import threading

import pytest
from database_nouns import NOW

from trainmaster.db.run_facts import facts_of, put_fact
from trainmaster.spec.errors import LeaseLostError
from trainmaster.spec.facts import Fact


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
