"""What nodes do for gangs while no driver is there."""

import json

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import ConductedGang, UnattendedGangs, parts_elsewhere

NAMES = ("worker-0", "ps-0", "worker-1")


def record_of(grace_s=5.0):
    """A gang of two workers and a server, each on a node of its own."""
    members = [{"name": name, "essential": name != "ps-0", "gpus": index} for index, name in enumerate(NAMES)]
    members[1]["gpus"] = 0
    request = {"attempt": "r/e/0/1", "directory": "/d", "grace_s": grace_s, "hold": True, "members": members}
    gang = ConductedGang(request | {"slots": 3, "group_slots": 3, "share_gpus": False}, "r")
    gang.place({name: (f"n{index}", f"id-{index}", f"10.0.0.{index}") for index, name in enumerate(NAMES)})
    return json.loads(json.dumps(gang.record("e", "")))


def orders(rules, records, known, now):
    return rules.orders(records, known, now, 1_000_000.0 + now)


def stops(found):
    return [order for order in found if order["do"] == "stop"]


def status(part, *, code=None, ended=False):
    phase = Phase.EXITED if ended else Phase.RUNNING
    name = NAMES[int(part[len("r/e/0/1#n")])]
    row = MemberStatus(name, pid=7, started_at=1.0, ended_at=2.0 if ended else None, exit_code=code)
    return GangStatus(part, phase, (row,))


def seen(**changed):
    """What is known of all parts, that of node 0 included."""
    parts = [name for name, *_ in record_of()["parts"]]
    found = {part: status(part) for part in parts}
    return {**found, **{part: changed[key] for part in parts for key in changed if f"#{key}" in part}}


def test_nothing_is_done_while_all_run_or_do_not_answer():
    own = "r/e/0/1#n0"
    rules = UnattendedGangs()
    assert orders(rules, {own: record_of()}, seen(), 100.0) == []
    assert orders(rules, {own: record_of()}, {own: status(own)}, 102.0) == [], "unreachable is never dead"
    assert rules.lives({own: record_of()})


def test_a_dead_node_ends_the_parts_here_and_servers_last():
    dead = seen(n2=None)
    kept, *first = orders(UnattendedGangs(), {"r/e/0/1#n0": record_of()}, dead, 100.0)
    assert [(order["do"], order["attempt"], order["grace_s"]) for order in first] == [
        ("stop", "r/e/0/1#n0", 5.0)
    ]
    assert first[0]["why"] == "node n2 is lost while no process drives the run"
    assert kept["part"] == "r/e/0/1#n0"
    assert [part.lost_at for part in ConductedGang.from_record(kept["record"]).parts] == [
        None,
        None,
        1_000_100.0,
    ]
    assert kept["record"]["gpus"] == 2
    server = UnattendedGangs()
    (name,) = [part for part in dead if "#n1" in part]
    assert stops(orders(server, {name: record_of()}, dead, 100.0)) == []
    done = {**dead, "r/e/0/1#n0": status("r/e/0/1#n0", code=0, ended=True)}
    (order,) = orders(server, {name: record_of()}, done, 102.0)
    assert (order["do"], order["attempt"]) == ("stop", name)


def test_a_server_is_not_left_behind_by_workers_that_do_not_end():
    dead = seen(n2=None)
    (name,) = [part for part in dead if "#n1" in part]
    server = UnattendedGangs()
    assert stops(orders(server, {name: record_of()}, dead, 100.0)) == []
    assert orders(server, {name: record_of()}, dead, 104.0) == []
    (order,) = orders(server, {name: record_of()}, dead, 106.0)
    assert order["grace_s"] == 0.0
    assert orders(server, {name: record_of()}, dead, 108.0) == [], "once"


def test_a_member_that_has_failed_elsewhere():
    failed = seen(n2=status("r/e/0/1#n2", code=1, ended=True))
    (order,) = orders(UnattendedGangs(), {"r/e/0/1#n0": record_of()}, failed, 100.0)
    assert (order["do"], "why" in order) == ("stop", False)


def test_a_gang_that_is_submitted_again_is_another_one():
    own, rules = "r/e/0/1#n0", UnattendedGangs()
    failed = seen(n2=status("r/e/0/1#n2", code=1, ended=True))
    assert len(orders(rules, {own: record_of()}, failed, 100.0)) == 1
    assert len(orders(rules, {own: record_of() | {"reservation": "2"}}, failed, 101.0)) == 1


def test_a_node_that_is_silent_for_the_lease_is_dead_once_any_has_answered():
    own = "r/e/0/1#n0"
    rules = UnattendedGangs(60.0)
    alone = {own: status(own)}
    for now in (100.0, 1000.0):
        assert orders(rules, {own: record_of()}, alone, now) == [], "perhaps nodes cannot reach each other"
    silent = {part: each for part, each in seen().items() if "#n2" not in part}
    rules = UnattendedGangs(60.0)
    assert orders(rules, {own: record_of()}, seen(), 100.0) == []
    assert orders(rules, {own: record_of()}, silent, 159.0) == []
    _, order = orders(rules, {own: record_of()}, silent, 161.0)
    assert (order["do"], order["attempt"]) == ("stop", own)
    assert "node n2 is lost" in order["why"]
    ended = {**silent, own: status(own, code=0, ended=True)}
    assert orders(rules, {own: record_of()}, ended, 163.0) == []
    assert not rules.lives({own: record_of()})


def test_a_node_that_never_answers_is_dead_after_the_lease_if_nodes_were_seen_to_reach_each_other():
    own = "r/e/0/1#n0"
    rules = UnattendedGangs(60.0, ["id-1"])
    silent = {part: each for part, each in seen().items() if part == own}
    assert orders(rules, {own: record_of()}, silent, 100.0) == []
    assert orders(rules, {own: record_of()}, silent, 159.0) == []
    kept, order = orders(rules, {own: record_of()}, silent, 160.0)
    assert (order["do"], order["attempt"]) == ("stop", own)
    assert order["why"] == (
        "node n1 is lost while no process drives the run; node n2 is lost while no process drives the run"
    )
    assert [part.lost_at for part in ConductedGang.from_record(kept["record"]).parts] == [
        None,
        1_000_160.0,
        1_000_160.0,
    ]


def test_the_nodes_that_are_asked():
    both = {"r/e/0/1#n0": record_of()}
    assert parts_elsewhere(both) == {
        ("id-1", "10.0.0.1"): ["r/e/0/1#n1-serving"],
        ("id-2", "10.0.0.2"): ["r/e/0/1#n2"],
    }
