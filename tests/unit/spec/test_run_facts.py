"""What is found out of a run: the first look decides, in a process and over all of them."""

from __future__ import annotations

import threading

import pytest

from trainmaster.spec.errors import UsageError
from trainmaster.spec.facts import Fact, RunFacts


def test_what_the_record_says_is_not_looked_for():
    facts = RunFacts({(Fact.VOLUME, "pets"): "@1"})
    assert facts.settled(Fact.VOLUME, "pets", lambda: pytest.fail("it is known")) == "@1"


def test_what_another_driver_has_recorded_stands():
    recorded = {}

    def record(kind, name, value):
        return recorded.setdefault((kind, name), value)

    one, two = RunFacts(record=record), RunFacts(record=record)
    assert one.settled(Fact.VOLUME, "pets", lambda: "@1") == "@1"
    assert two.settled(Fact.VOLUME, "pets", lambda: "@2") == "@1", "it was read before the other wrote"
    assert two.settled(Fact.ENVIRONMENT, "pets", lambda: "{}") == "{}"


def test_of_many_threads_one_looks_and_none_uses_what_is_not_recorded():
    recording, may_record = threading.Event(), threading.Event()
    looks, found, used = [], [], threading.Event()

    def look():
        looks.append(1)
        return "@1"

    def record(_kind, _name, value):
        recording.set()
        assert may_record.wait(30)
        return value

    facts = RunFacts(record=record)

    def use():
        found.append(facts.settled(Fact.VOLUME, "pets", look))
        used.set()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for each in threads:
        each.start()
    assert recording.wait(30)
    assert not used.is_set()
    may_record.set()
    for each in threads:
        each.join()
    assert (found, len(looks)) == (["@1"] * 8, 1)


def test_a_look_in_vain_says_nothing():
    facts = RunFacts()

    def fail():
        raise UsageError("there is no such volume", "")

    with pytest.raises(UsageError):
        facts.settled(Fact.VOLUME, "pets", fail)
    assert facts.settled(Fact.VOLUME, "pets", lambda: "@1") == "@1"
