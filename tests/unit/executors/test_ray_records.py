"""What a gateway leaves for the next one, in a store that is a dict here."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import Part
from trainmaster.executors.ray import records as ray_records
from trainmaster.executors.ray.gangs import PlacedGang
from trainmaster.executors.ray.placement import LiveNode
from trainmaster.executors.ray.placing import Placing
from trainmaster.executors.ray.records import Records, fence, take_fences
from trainmaster.executors.ray.scheduler import Scheduler


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


NODES = [LiveNode(f"n{index}", f"id-{index}", f"10.0.0.{index}", 1.0, 0, {}) for index in (0, 1)]


def gateway(*alive):
    """What a gateway knows once it has begun, with links to these nodes."""
    made = Scheduler(set(), SimpleNamespace(time=lambda: 0.0, call_later=lambda *_: None), print)
    made.load()
    for node in alive:
        made.nodes.links[node.key] = SimpleNamespace(
            node=node, since=None, attached=SimpleNamespace(is_set=lambda: True), send=lambda _: None
        )
    return made


def test_what_had_ended_before_its_node_died_is_not_lost_to_the_next_gateway(store, monkeypatch):
    monkeypatch.setattr(Placing, "remove_others", lambda *_: None)  # Ray's
    members = [{"name": f"worker-{index}", "essential": True, "gpus": 0} for index in (0, 1, 2)]
    request = {"attempt": "r/e/0/1", "directory": "/d", "grace_s": 5.0, "hold": True, "members": members}
    gang = PlacedGang(request | {"slots": 3, "group_slots": 3, "share_gpus": False}, "r", None)
    for node, names in zip(NODES, (("worker-0",), ("worker-1", "worker-2")), strict=True):
        gang.parts.append(Part(f"r/e/0/1#{node.key}", (node.key, node.node_id, node.address), names, True))
    Records().store(gang.record("e", ""))
    first = gateway(*NODES)
    ends = [
        MemberStatus(name, pid=7, started_at=1.0, ended_at=9.0, exit_code=0) for name in gang.parts[1].members
    ]
    first.took(NODES[1], [GangStatus("r/e/0/1#n1", Phase.EXITED, tuple(ends))])
    asyncio.run(first.recorded())

    second = gateway(NODES[0])
    second.settle()
    (found,) = second.gangs.values()
    assert list(found.members().values())[1:] == ends
    assert found.phase is Phase.RUNNING
    assert found.kill_at is None
    second.lost(NODES[0])
    assert found.members()["worker-0"].lost
