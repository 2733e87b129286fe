"""Which members of an attempt must have a node."""

import threading
from types import SimpleNamespace

import pytest

from trainmaster.cluster import member_places
from trainmaster.cluster.member_places import AttemptNodes
from trainmaster.control.task.job_context import NodeGoneError

CONTEXT = SimpleNamespace(
    run="r",
    experiment=SimpleNamespace(name="e"),
    task=0,
    attempt=1,
    members=("chief-0", "worker-0", "ps-0"),
)


def test_only_what_the_others_can_do_without_may_have_no_node():
    node = SimpleNamespace(id="i-1")
    context = CONTEXT
    nodes = AttemptNodes(
        lambda attempt: [("chief-0", node), ("ps-0", node)], SimpleNamespace(), SimpleNamespace()
    )
    with pytest.raises(NodeGoneError, match="worker-0 has no node any more"):
        nodes.members(context)
    assert nodes.members(context, dispensable=frozenset({"worker-0"})) == [("chief-0", node), ("ps-0", node)]
    with pytest.raises(NodeGoneError, match="worker-0 has no node any more"):
        nodes.members(context, dispensable=frozenset({"ps-0"}))


@pytest.mark.parametrize(("lost", "ends"), [("worker-0", True), ("ps-0", False), ("", False)])
def test_what_is_under_way_with_all_ends_when_one_is_gone(monkeypatch, lost, ends):
    """Else a gang is saved for as long as the others wait for a store that says nothing."""
    monkeypatch.setattr(member_places, "LOOK_S", 0.001)
    there = {name: SimpleNamespace(id=f"i-{name}") for name in CONTEXT.members}
    hung_up, looked, over = set(), [], threading.Event()

    def nodes_of(_):
        looked.append(1)
        if len(looked) > 3:
            there.pop(lost, None)
        if len(looked) > 10:
            over.set()
        return list(there.items())

    nodes = AttemptNodes(nodes_of, SimpleNamespace(), SimpleNamespace(hang_up=hung_up.add))
    with nodes.together(CONTEXT, dispensable=frozenset({"ps-0"})):
        assert over.wait(60)
    assert hung_up == ({"i-chief-0", "i-worker-0", "i-ps-0"} if ends else set())


def test_a_node_that_is_not_there_yet_ends_nothing(monkeypatch):
    monkeypatch.setattr(member_places, "LOOK_S", 0.001)
    nodes = [("chief-0", SimpleNamespace(id="i-1")), ("ps-0", SimpleNamespace(id="i-2"))]
    found = AttemptNodes(lambda _: nodes, SimpleNamespace(), SimpleNamespace())
    before = threading.active_count()
    with found.together(CONTEXT):
        assert threading.active_count() == before
