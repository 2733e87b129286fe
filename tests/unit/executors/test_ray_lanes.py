from trainmaster.executors._ray_lanes import DEPTH, PATIENCE_S, Lane, Lanes
from trainmaster.executors._ray_plan import NodeRoom

NODE = NodeRoom("n0", "id0", "10.0.0.1", 4, 0, {})
SHAPE, OTHER = ("PACK", (1,)), ("PACK", (2,))


def short(lanes):
    for _ in range(30):
        lanes.took(0.005)


def one_lane(lanes):
    lanes.open(Lane("l0", NODE, 1, SHAPE), "first", 10.0)
    return lanes


def test_nobody_waits_behind_unknown_or_long_tasks():
    lanes = one_lane(Lanes())
    lanes.expect(SHAPE)
    assert lanes.room(10.0) == 0
    assert lanes.join("second", SHAPE, 10.0) is None
    short(lanes)
    assert lanes.room(10.0) == DEPTH
    lanes.took(60.0)
    assert lanes.room(10.0) == 0


def test_only_while_all_who_wait_are_alike():
    lanes = one_lane(Lanes())
    short(lanes)
    assert lanes.room(10.0) == 0, "nobody waits"
    lanes.expect(SHAPE)
    assert lanes.room(10.0) == DEPTH
    lanes.expect(OTHER)
    assert lanes.room(10.0) == 0
    lanes.expect(OTHER, -1)
    lanes.expect(None)
    assert lanes.room(10.0) == 0
    lanes.expect(None, -1)
    assert lanes.room(10.0) == DEPTH


def test_the_shortest_lane_is_joined():
    lanes = one_lane(Lanes())
    lanes.open(Lane("l1", NODE, 1, SHAPE), "other", 10.0)
    short(lanes)
    joined = [lanes.join(str(index), SHAPE, 10.0).name for index in range(2 * DEPTH)]
    assert sorted(joined) == ["l0"] * DEPTH + ["l1"] * DEPTH
    assert lanes.join("too many", SHAPE, 10.0) is None
    assert lanes.join("other shape", OTHER, 10.0) is None


def test_the_reservation_goes_from_hand_to_hand():
    lanes = one_lane(Lanes())
    short(lanes)
    for name in ("second", "third", "fourth"):
        lanes.join(name, SHAPE, 10.0)
    assert lanes.leave("third", 11.0) == (False, "")
    assert lanes.leave("first", 12.0) == (True, "second")
    assert lanes.leave("second", 13.0) == (True, "fourth")
    assert lanes.leave("fourth", 14.0) == (True, "")
    assert lanes.leave("never seen", 15.0) == (True, "")
    assert lanes.join("fifth", SHAPE, 14.0) is None


def test_who_waits_too_long_is_called_back():
    lanes = one_lane(Lanes())
    short(lanes)
    lanes.join("second", SHAPE, 10.0)
    lanes.join("third", SHAPE, 10.0)
    assert lanes.late(10.0 + PATIENCE_S) == []
    assert lanes.late(10.01 + PATIENCE_S) == ["second", "third"]
    lanes.leave("first", 11.0)
    assert lanes.late(11.0 + PATIENCE_S) == []
