from pathlib import Path
from types import SimpleNamespace

from trainmaster.executors.base import GangRequest, MemberRequest
from trainmaster.executors.gangs.copies import Mirror
from trainmaster.executors.gangs.inbox import Inbox
from trainmaster.executors.gangs.placement import LiveNode, OwnPlacement
from trainmaster.executors.gangs.placing import DEPTH, PATIENCE_S, NodeQueue, NodeQueues
from trainmaster.executors.gangs.scheduler import Scheduler

NODE = LiveNode("n0", "id0", "10.0.0.1", 4, 0, {})
SHAPE, OTHER = ("PACK", (1,)), ("PACK", (2,))


def short(node_queues):
    for _ in range(30):
        node_queues.took(0.005)


def one_lane(node_queues):
    node_queues.open(NodeQueue("l0", NODE, 1, SHAPE), "first", 10.0)
    return node_queues


def test_nobody_waits_behind_unknown_or_long_tasks():
    node_queues = one_lane(NodeQueues())
    node_queues.expect(SHAPE)
    assert node_queues.room(10.0) == 0
    assert node_queues.join("second", SHAPE, 10.0) is None
    short(node_queues)
    assert node_queues.room(10.0) == DEPTH
    node_queues.took(60.0)
    assert node_queues.room(10.0) == 0


def test_only_while_all_who_wait_are_alike():
    node_queues = one_lane(NodeQueues())
    short(node_queues)
    assert node_queues.room(10.0) == 0, "nobody waits"
    node_queues.expect(SHAPE)
    assert node_queues.room(10.0) == DEPTH
    node_queues.expect(OTHER)
    assert node_queues.room(10.0) == 0
    node_queues.expect(OTHER, -1)
    node_queues.expect(None)
    assert node_queues.room(10.0) == 0
    node_queues.expect(None, -1)
    assert node_queues.room(10.0) == DEPTH


def test_the_shortest_lane_is_joined():
    node_queues = one_lane(NodeQueues())
    node_queues.open(NodeQueue("l1", NODE, 1, SHAPE), "other", 10.0)
    short(node_queues)
    joined = [node_queues.join(str(index), SHAPE, 10.0).name for index in range(2 * DEPTH)]
    assert sorted(joined) == ["l0"] * DEPTH + ["l1"] * DEPTH
    assert node_queues.join("too many", SHAPE, 10.0) is None
    assert node_queues.join("other shape", OTHER, 10.0) is None


def test_the_reservation_goes_from_hand_to_hand():
    node_queues = one_lane(NodeQueues())
    short(node_queues)
    for name in ("second", "third", "fourth"):
        node_queues.join(name, SHAPE, 10.0)
    assert node_queues.leave("third", 11.0) == (False, "")
    assert node_queues.leave("first", 12.0) == (True, "second")
    assert node_queues.leave("second", 13.0) == (True, "fourth")
    assert node_queues.leave("fourth", 14.0) == (True, "")
    assert node_queues.leave("never seen", 15.0) == (True, "")
    assert node_queues.join("fifth", SHAPE, 14.0) is None


def test_who_waits_too_long_is_called_back():
    node_queues = one_lane(NodeQueues())
    short(node_queues)
    node_queues.join("second", SHAPE, 10.0)
    node_queues.join("third", SHAPE, 10.0)
    assert node_queues.late(10.0 + PATIENCE_S) == []
    assert node_queues.late(10.01 + PATIENCE_S) == ["second", "third"]
    node_queues.leave("first", 11.0)
    assert node_queues.late(11.0 + PATIENCE_S) == []


def test_tasks_that_end_together_still_fill_the_lanes():
    """Two lanes whose tasks begin and end in the same moment: the others wait in them, not at the driver."""
    woken = []
    loop = SimpleNamespace(time=lambda: 0.0, call_later=lambda *_: None, call_soon=lambda work: work())
    engine = SimpleNamespace(reservations=lambda ready, rooms: OwnPlacement(ready, rooms))
    scheduler = Scheduler(engine, loop, print)
    scheduler.wake = lambda: woken.append(True)
    node = LiveNode("n0", "id0", "10.0.0.1", 2, 0, {})
    answers = SimpleNamespace(is_set=lambda: True)
    scheduler.nodes.links["n0"] = SimpleNamespace(
        node=node, since=None, attached=answers, send=lambda command: None
    )
    scheduler.inbox = Inbox(0, {}, Mirror(Path))
    short(scheduler._placing._node_queues)
    member = MemberRequest("worker-0", "true", "/d")
    gangs = [GangRequest(f"r/e/{index}/1", "/d", (member,), 1, "e", 2) for index in range(20)]
    scheduler.submit([gang.message() for gang in gangs])
    while woken:
        woken.clear()
        scheduler.tick()
    assert all(gang.parts for gang in scheduler.gangs.values())
