"""Machines that a cloud has told of."""

from __future__ import annotations

import socket
from types import SimpleNamespace

from trainmaster.service.runs import known_nodes, member_ways
from trainmaster.service.runs.known_nodes import KnownNodes, answers


def node(name, **more):
    return SimpleNamespace(id=name, address="127.0.0.1", jump="", way="", port=22, **more)


def test_what_is_fresh_is_taken_and_later_only_what_answers(monkeypatch):
    now, there = [100.0], []
    monkeypatch.setattr(known_nodes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    known = KnownNodes(lambda each: each.id in there)
    assert known.find("run", "a") is None
    known.note("run", node("a"))
    assert known.find("run", "a").id == "a"
    assert known.find("other", "a") is None
    now[0] += known_nodes._FRESH_S
    there.append("a")
    assert known.find("run", "a").id == "a"
    there.clear()
    assert known.find("run", "a") is None
    there.append("a")
    assert known.find("run", "a") is None, "the cloud is to be asked"
    known.note("run", node("a"))
    now[0] += known_nodes._KNOWN_S
    assert known.find("run", "a") is None
    known.note("run", node("a"))
    known.forget("run", "a")
    assert known.find("run", "a") is None


def test_a_machine_answers_that_listens(monkeypatch):
    monkeypatch.setattr(known_nodes, "_ANSWER_S", 30.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = node("a")
        there.port = listener.getsockname()[1]
        assert answers(there)
        there.jump = "me@gate"
        assert not answers(there)
        there.jump = ""
    assert not answers(there)


def test_a_cloud_is_asked_once_for_the_machine_of_a_member(tmp_path, monkeypatch):
    from trainmaster.cluster import record
    from trainmaster.providers import plugins
    from trainmaster.providers.base import NodeState

    asked, machine = [], node("i-1", state=NodeState.READY, cluster="c")

    def nodes(cluster):
        asked.append(cluster)
        return [machine]

    rented = SimpleNamespace(
        state=record.ClusterState.ACTIVE, rented=["x"], provider="aws", id="c", name_of=lambda _: "n"
    )
    monkeypatch.setattr(record.ClusterRecord, "of_row", lambda _: rented)
    monkeypatch.setattr(member_ways, "_machine", lambda *_: (rented, "i-1"))
    monkeypatch.setattr(plugins, "get_provider", lambda *_: SimpleNamespace(nodes=nodes))
    place = SimpleNamespace(root=tmp_path, identity="home")
    service = SimpleNamespace(
        database=SimpleNamespace(clusters_of=lambda _: ["row"]),
        files_of=lambda _: None,
        access_to=lambda *_: place,
    )
    there, known = [True], KnownNodes(lambda _: there[0])
    monkeypatch.setattr(known_nodes, "_FRESH_S", 0.0)
    for _ in range(3):
        assert member_ways._node(service, "run", None, {}, known) == (place, machine)
    assert asked == ["c"]
    there[0] = False
    assert member_ways._node(service, "run", None, {}, known) == (place, machine)
    assert asked == ["c", "c"]
