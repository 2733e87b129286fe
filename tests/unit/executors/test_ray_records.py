"""What a gateway leaves for the next one, in a store that is a dict here."""

import asyncio

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from trainmaster.executors.ray import records as ray_records
from trainmaster.executors.ray.records import Records, fence, take_fences


class Store(dict):
    """As Ray's, with the calls counted."""

    puts = 0

    def _internal_kv_put(self, key, value, overwrite, namespace):
        self.puts += 1
        self[key] = value

    def _internal_kv_get(self, key, namespace):
        return self.get(key)

    def _internal_kv_del(self, key, namespace):
        self.pop(key, None)

    def _internal_kv_list(self, prefix, namespace):
        return [key for key in self if key.startswith(prefix)]


@pytest.fixture
def store(monkeypatch):
    made = Store()
    monkeypatch.setattr(ray_records, "internal_kv", made)
    return made


def written(records):
    asyncio.run(records.written())


def loaded():
    return {record["attempt"]: record for record in Records().load()}


def stored(records, *attempts, **more):
    for attempt in attempts:
        records.store({"attempt": attempt, **more})
    written(records)


def test_the_next_gateway_finds_what_was_not_forgotten(store):
    records = Records()
    stored(records, "a", "b", node=1)
    stored(records, "c", node=1)
    records.erase("c")
    written(records)
    assert sorted(loaded()) == ["a", "b"]
    stored(records, "a", node=2)
    assert loaded()["a"]["node"] == 2, "the newest counts"
    for attempt in ("a", "b"):
        records.erase(attempt)
    written(records)
    assert not store, "nothing is left"


def test_many_go_in_few_entries(store):
    records = Records()
    names = [f"task-{index}" for index in range(500)]
    stored(records, *names)
    assert store.puts < 250
    assert sorted(loaded()) == sorted(names)


def test_a_later_gateway_goes_on(store):
    stored(Records(), "a", node=1)
    second = Records()
    assert [record["attempt"] for record in second.load()] == ["a"]
    stored(second, "b", node=1)
    assert sorted(loaded()) == ["a", "b"], "nothing was written over"
    second.erase("a")
    second.erase("b")
    written(second)
    assert not store


def test_forgotten_before_it_was_written(store):
    records = Records()
    records.store({"attempt": "a"})
    records.erase("a")
    written(records)
    assert loaded() == {}


def test_fences_are_taken_once(store):
    fence("n1", "a#n1")
    assert take_fences("n2") == []
    assert take_fences("n1") == ["a#n1"]
    assert take_fences("n1") == []
