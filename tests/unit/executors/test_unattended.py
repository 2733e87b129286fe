"""What nodes do for gangs while no driver is there."""

import json

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import Gang, Unattended, parts_of

NAMES = ("worker-0", "ps-0", "worker-1")


def record_of(grace_s=5.0):
    """A gang of two workers and a server, each on a node of its own."""
    members = [{"name": name, "essential": name != "ps-0", "gpus": 0} for name in NAMES]
    request = {"attempt": "r/e/0/1", "directory": "/d", "grace_s": grace_s, "hold": True, "members": members}
    gang = Gang(request | {"slots": 3, "group_slots": 3, "share_gpus": False}, "r")
    gang.place({name: (f"n{index}", f"id-{index}", f"10.0.0.{index}") for index, name in enumerate(NAMES)})
    return json.loads(json.dumps(gang.record("e", "")))


def status(part, *, code=None, ended=False):
    phase = Phase.EXITED if ended else Phase.RUNNING
    name = NAMES[int(part[len("r/e/0/1#n")])]
    row = MemberStatus(name, pid=7, started_at=1.0, ended_at=2.0 if ended else None, exit_code=code)
    return GangStatus(part, phase, (row,))


def seen(**changed):
    parts = [part for names in parts_of({"own": record_of()}).values() for part in names]
    found = {part: status(part) for part in parts}
    return {**found, **{part: changed[key] for part in parts for key in changed if f"#{key}" in part}}


def test_nothing_is_done_while_all_run_or_do_not_answer():
    own = "r/e/0/1#n0"
    rules = Unattended()
    assert rules.orders({own: record_of()}, seen(), 100.0) == []
    assert rules.orders({own: record_of()}, {own: status(own)}, 102.0) == [], "unreachable is never dead"


def test_a_dead_node_ends_the_parts_here_and_servers_last():
    dead = seen(n2=None)
    first = Unattended().orders({"r/e/0/1#n0": record_of()}, dead, 100.0)
    assert [(order["do"], order["attempt"], order["grace_s"]) for order in first] == [
        ("stop", "r/e/0/1#n0", 5.0)
    ]
    server = Unattended()
    (name,) = [part for part in dead if "#n1" in part]
    assert server.orders({name: record_of()}, dead, 100.0) == []
    done = {**dead, "r/e/0/1#n0": status("r/e/0/1#n0", code=0, ended=True)}
    (order,) = server.orders({name: record_of()}, done, 102.0)
    assert (order["do"], order["attempt"]) == ("stop", name)


def test_a_server_is_not_left_behind_by_workers_that_do_not_end():
    dead = seen(n2=None)
    (name,) = [part for part in dead if "#n1" in part]
    server = Unattended()
    assert server.orders({name: record_of()}, dead, 100.0) == []
    assert server.orders({name: record_of()}, dead, 104.0) == []
    (order,) = server.orders({name: record_of()}, dead, 106.0)
    assert order["grace_s"] == 0.0
    assert server.orders({name: record_of()}, dead, 108.0) == [], "once"


def test_a_member_that_has_failed_elsewhere():
    failed = seen(n2=status("r/e/0/1#n2", code=1, ended=True))
    (order,) = Unattended().orders({"r/e/0/1#n0": record_of()}, failed, 100.0)
    assert order["do"] == "stop"


def test_a_gang_that_is_submitted_again_is_another_one():
    own, rules = "r/e/0/1#n0", Unattended()
    failed = seen(n2=status("r/e/0/1#n2", code=1, ended=True))
    assert len(rules.orders({own: record_of()}, failed, 100.0)) == 1
    assert len(rules.orders({own: record_of() | {"reservation": "2"}}, failed, 101.0)) == 1
