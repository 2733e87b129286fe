from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.gangs.placement import (
    PACK,
    STRICT_SPREAD,
    Bundle,
    LiveNode,
    assign,
    fits,
    lacking,
    plan_gang,
)


def node(number, slots=4, gpus=0, **labels):
    return LiveNode(f"n{number}", f"id{number}", f"10.0.0.{number}", slots, gpus, labels)


def request(*names, slots=None, per_node=0, labels=None, gpus=0):
    members = [{"name": name, "gpus": gpus, "node_labels": (labels or {}).get(name, {})} for name in names]
    return {"members": members, "slots": len(names) if slots is None else slots, "per_node": per_node}


def test_one_bundle_per_member_without_per_node():
    plan = plan_gang(request("worker-0", "worker-1"), [node(0)])
    assert plan.strategy == PACK
    assert [bundle.members for bundle in plan.bundles] == [("worker-0",), ("worker-1",)]


def test_per_node_makes_groups():
    names = [f"worker-{index}" for index in range(4)]
    plan = plan_gang(request(*names, per_node=2), [node(0), node(1)])
    assert plan.strategy == STRICT_SPREAD
    assert [bundle.members for bundle in plan.bundles] == [("worker-0", "worker-1"), ("worker-2", "worker-3")]
    assert [bundle.slots for bundle in plan.bundles] == [2, 2]


def test_the_head_leads():
    nodes = [node(1), node(2), replace(node(0), is_head=True)]
    names = [f"worker-{index}" for index in range(3)]
    plan = plan_gang(request(*names, per_node=1), nodes)
    assert [each.key for each in plan.led_by_head(nodes)] == ["n0", "n2", "n1"]
    assert [each.key for each in plan.led_by_head(nodes, ["worker-0", "worker-2"])] == ["n1", "n0", "n2"]
    assert plan.led_by_head(nodes[:2]) == nodes[:2], "the head is no part of it"
    larger = plan_gang(request(*names, per_node=1, gpus=0, labels={"worker-0": {"role": "chief"}}), [
        node(1, role="chief"), *nodes[1:],
    ])  # fmt: skip
    assert larger.led_by_head(nodes) == nodes, "another one's place would not do"


def test_no_room_even_when_empty():
    names = ["worker-0", "worker-1", "worker-2"]
    assert plan_gang(request(*names, per_node=1), [node(0), node(1)]) is None
    assert plan_gang(request("worker-0", gpus=2), [node(0, gpus=1)]) is None
    assert plan_gang(request("worker-0"), []) is None
    assert plan_gang(request("worker-0", labels={"worker-0": {"market": "spot"}}), [node(0)]) is None


def test_roles_share_nodes_when_there_are_too_few():
    names = ["worker-0", "worker-1", "ps-0"]
    apart = plan_gang(request(*names, per_node=1), [node(0), node(1), node(2)])
    assert len(apart.bundles) == 3
    together = plan_gang(request(*names, per_node=1), [node(0), node(1)])
    assert [bundle.members for bundle in together.bundles] == [("worker-0", "ps-0"), ("worker-1",)]
    labels = {"ps-0": {"market": "ondemand"}}
    nodes = [node(0, market="spot"), node(1, market="ondemand")]
    assert plan_gang(request(*names, per_node=1, labels=labels), nodes) is None


def test_workers_never_share_a_node_for_want_of_one_for_their_chief():
    names = ["chief-0", "ps-0", "worker-0", "worker-1"]
    folded = plan_gang(request(*names, per_node=1), [node(0), node(1)])
    assert [each.members for each in folded.bundles] == [("worker-0", "chief-0"), ("worker-1", "ps-0")]
    labels = {name: {"role": "ps" if name == "ps-0" else "worker"} for name in names}
    nodes = [node(0, role="ps"), node(1, role="worker"), node(2, role="worker")]
    apart = plan_gang(request(*names, per_node=1, labels=labels), nodes)
    assert [each.members for each in apart.bundles] == [("worker-0", "chief-0"), ("worker-1",), ("ps-0",)]
    assert plan_gang(request(*names, per_node=1, labels=labels), nodes[:2]) is None


def test_labels_need_a_matching():
    """The first that fits is not always the right one."""
    labels = {"chief-0": {}, "worker-0": {"market": "spot"}}
    nodes = [node(0, market="spot"), node(1)]
    plan = plan_gang(request("chief-0", "worker-0", per_node=1, labels=labels), nodes)
    assert plan is not None
    assert plan.bundles[1].labels == (("market", "spot"),)


def test_tasks_go_where_the_most_is_left():
    """All machines are used, the last ones too; and GPUs are for those that need some."""
    one, two = (plan_gang(request("worker-0", gpus=gpus), [node(0, gpus=1)]).bundles for gpus in (0, 1))
    assert assign(one, [node(0, slots=2), node(1, slots=4), node(2, slots=3)], PACK) == ["id1"]
    assert assign(one, [node(0, slots=4, gpus=1), node(1, slots=2)], PACK) == ["id1"]
    assert assign(two, [node(0, slots=4), node(1, slots=2, gpus=1), node(2, slots=2, gpus=4)], PACK) == [
        "id2"
    ]
    pair = plan_gang(request("worker-0", "worker-1"), [node(0)]).bundles
    assert assign(pair, [node(0, slots=2), node(1, slots=3)], PACK) == ["id1", "id1"]


def test_members_have_nodes_in_their_order():
    """`worker-0` is on `node-1`, where people look for it."""
    nodes = [node(number) for number in range(3)]
    plan = plan_gang(request("worker-0", "worker-1", "worker-2", per_node=1), nodes)
    assert plan is not None
    assert assign(plan.bundles, nodes, plan.strategy) == [each.node_id for each in nodes]


@pytest.mark.parametrize(("members", "slots", "nodes"), [(1, 9, 1), (2, 9, 1), (2, 100, 3), (5, 13, 3)])
def test_more_than_there_is_gets_what_there_is(members, slots, nodes):
    names = [f"worker-{index}" for index in range(members)]
    rooms = [node(index) for index in range(nodes)]
    plan = plan_gang(request(*names, slots=slots), rooms)
    assert fits(plan.bundles, rooms, plan.strategy)
    if nodes == 1:
        assert sum(bundle.slots for bundle in plan.bundles) == pytest.approx(4, rel=0.01)


def test_no_slots_at_all():
    plan = plan_gang(request("worker-0", slots=0), [node(0)])
    assert 0 < plan.bundles[0].resources["CPU"] < 0.01


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
def test_a_spread_that_fits_can_be_placed(sizes, wants):
    """Against trying all ways."""
    rooms = [node(index, slots=size) for index, size in enumerate(sizes)]
    bundles = [Bundle((f"worker-{index}",), want, 0, ()) for index, want in enumerate(wants)]
    possible = len(wants) <= len(sizes) and any(
        all(want <= size for want, size in zip(wants, order, strict=False))
        for order in permutations(sizes, len(wants))
    )
    assert fits(bundles, rooms, STRICT_SPREAD) == possible


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            {"members": [{"name": "ps-0", "gpus": 0, "node_labels": {"role": "ps"}}], "slots": 1},
            "role=ps; there is none",
        ),
        ({"members": [{"name": "worker-0", "gpus": 2}], "slots": 1}, "a node with 2 GPUs"),
        (
            {"members": [{"name": f"worker-{n}", "gpus": 0} for n in range(3)], "slots": 3, "per_node": 1},
            "3 nodes, one for each of its members; there are 2",
        ),
    ],
)
def test_what_a_gang_lacks_is_named(request_, why):
    nodes = [LiveNode(f"n{n}", str(n), f"10.0.0.{n}", 4, 0, {"role": "worker"}) for n in range(2)]
    assert plan_gang({"per_node": 0, **request_}, nodes) is None
    assert why in lacking({"per_node": 0, **request_}, nodes)


def test_one_node_is_spoken_of_as_one():
    node = LiveNode("n0", "0", "10.0.0.1", 4, 0, {})
    two = [{"name": f"worker-{n}", "gpus": 0} for n in range(2)]
    apart = lacking({"members": two, "slots": 2, "per_node": 1}, [node])
    assert apart == "2 nodes, one for each of its members; there is 1"
    large = lacking({"members": [{"name": "worker-0", "gpus": 2}], "slots": 1, "per_node": 0}, [node])
    assert large == "a node with 2 GPUs; the only node has 0"
