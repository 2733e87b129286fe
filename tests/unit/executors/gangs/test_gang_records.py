"""What the next driver learns from the records that lie on nodes."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.agent import AgentProgram, Records
from trainmaster.executors.gangs.life import ConductedGang, GangPart
from trainmaster.executors.gangs.placement import LiveNode, OwnPlacement
from trainmaster.executors.gangs.scheduler import Scheduler
from trainmaster.executors.ssh import node_agent

NODES = [LiveNode(f"n{index}", f"id-{index}", f"10.0.0.{index}", 4.0, 0, {}) for index in (0, 1)]


class Engine:
    def reservations(self, ready, rooms):
        return OwnPlacement(ready, rooms)


class Sent:
    """A link that keeps what was sent."""

    def __init__(self, node):
        self.node = node
        self.since = None
        self.attached = SimpleNamespace(is_set=lambda: True)
        self.commands = []

    def send(self, command):
        self.commands.append(json.loads(json.dumps(command)))

    def did(self, kind):
        return [command for command in self.commands if command["do"] == kind]


def driver(*alive):
    """What a driver knows once it has begun, with links to these nodes."""
    made = Scheduler(Engine(), SimpleNamespace(time=lambda: 0.0, call_later=lambda *_: None), print)
    for node in alive:
        made.nodes.links[node.key] = Sent(node)
    return made


def gang_of_three():
    """A member on the first node, two on the second."""
    members = [{"name": f"worker-{index}", "essential": True, "gpus": 0} for index in (0, 1, 2)]
    request = {"attempt": "r/e/0/1", "directory": "/d", "grace_s": 5.0, "hold": True, "members": members}
    gang = ConductedGang(request | {"slots": 3, "group_slots": 3, "share_gpus": False}, "r")
    for node, names in zip(NODES, (("worker-0",), ("worker-1", "worker-2")), strict=True):
        gang.parts.append(
            GangPart(f"r/e/0/1#{node.key}", (node.key, node.node_id, node.address), names, True)
        )
    return gang


def ended(part):
    rows = [MemberStatus(name, pid=7, started_at=1.0, ended_at=9.0, exit_code=0) for name in part.members]
    return GangStatus(part.name, Phase.EXITED, tuple(rows))


def running(part):
    return GangStatus(part.name, Phase.RUNNING, tuple(MemberStatus(name, pid=8) for name in part.members))


def test_what_had_ended_before_its_node_died_is_not_lost_to_the_next_driver():
    gang = gang_of_three()
    record = gang.record("e", "")
    first = driver(*NODES)
    first.attached(NODES[0], [running(gang.parts[0])], [record])
    first.settle()
    first.took(NODES[1], [ended(gang.parts[1])])
    (told,) = first.nodes.links["n0"].did("record")

    second = driver(NODES[0])
    second.attached(NODES[0], [running(gang.parts[0])], [told["record"]])
    second.settle()
    (found,) = second.gangs.values()
    assert tuple(found.members().values())[1:] == ended(gang.parts[1]).members
    assert found.phase is Phase.RUNNING
    assert found.kill_at is None
    second.lost(NODES[0])
    assert found.members()["worker-0"].lost


def test_records_of_several_nodes_are_of_one_gang_and_the_older_one_takes_nothing_away():
    gang = gang_of_three()
    older = gang.record("e", "")
    gang.parts[1].status = ended(gang.parts[1])
    newer = gang.record("e", "")
    for records in ([older, newer], [newer, older]):
        found = driver(*NODES)
        for node, record in zip(NODES, records, strict=True):
            found.attached(node, [], [json.loads(json.dumps(record))])
        found.settle()
        (one,) = found.gangs.values()
        assert [row.exit_code for row in one.members().values()] == [None, 0, 0]


def test_a_node_that_comes_back_ends_what_was_declared_lost_there():
    gang = gang_of_three()
    found = driver(*NODES)
    found.attached(NODES[0], [running(gang.parts[0])], [gang.record("e", "")])
    found.attached(NODES[1], [running(gang.parts[1])], [gang.record("e", "")])
    found.settle()
    found.lost(NODES[1])
    again = LiveNode("n1", "id-1-again", "10.0.0.1", 4.0, 0, {})
    found.nodes.links["n1"] = Sent(again)
    found.attached(again, [running(gang.parts[1])], [gang.record("e", "")])
    orders = [(command["do"], command["attempt"]) for command in found.nodes.links["n1"].commands]
    assert orders == [("stop", "r/e/0/1#n1"), ("check", "r/e/0/1#n1")]


def test_what_was_left_on_a_node_that_nobody_asked_for_is_ended_once_all_were_asked():
    found = driver(*NODES)
    found.attached(NODES[0], [GangStatus("r/e/9/1", Phase.RUNNING)], [])
    assert not found.nodes.links["n0"].commands, "another node may have its record"
    found.settle()
    assert found.nodes.links["n0"].did("stop")[0]["attempt"] == "r/e/9/1"


def test_records_on_a_node_survive_and_damaged_ones_are_left_out(tmp_path):
    records = Records(str(tmp_path))
    for part in ("a#n0", "b", "c"):
        records.store(part, {"attempt": part.partition("#")[0], "parts": []})
    records.drop(["c", "unknown"])
    (tmp_path / "gangs" / "torn.json").write_text('["d", {"attem')
    (tmp_path / "gangs" / "other.json").write_text('{"a": 1}')
    assert sorted(Records(str(tmp_path)).load()) == ["a#n0", "b"]


def test_who_has_answered_is_kept_beside_records_until_another_driver_comes(tmp_path):
    records = Records(str(tmp_path))
    assert records.met() == []
    records.meet(["id-1"])
    assert Records(str(tmp_path)).met() == ["id-1"]
    assert records.load() == {}
    records.meet(())
    assert records.met() == []


def test_what_a_node_has_for_its_driver_begins_without_what_takes_long_to_import():
    program = "import trainmaster.executors.ssh.node_agent, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "trainmaster.executors.gangs.agent" in modules
    assert not {"asyncio", "concurrent.futures", "logging", "shutil", "ssl", "subprocess"} & modules


def test_calls_are_answered_by_as_many_threads_as_there_are_calls_at_a_time():
    reading, writing = os.pipe()
    over, threads = threading.Event(), set()

    class Asked:
        def wait(self):
            threads.add(threading.get_ident())
            return over.wait(30)

        def tell(self, number):
            threads.add(threading.get_ident())
            if number == 2:
                over.set()
            return number

    program = AgentProgram(Asked(), threads=2, output=writing)
    program.hand_over({"id": 0, "do": "wait", "args": []})
    found = []
    with os.fdopen(reading) as answers:
        for number in (1, 2):
            program.hand_over({"id": number, "do": "tell", "args": [number]})
            found.append(json.loads(answers.readline()))
        found.append(json.loads(answers.readline()))
    assert sorted(each["id"] for each in found) == [0, 1, 2]
    assert len(threads) == 2


def test_many_nodes_without_a_driver_ask_each_other_more_rarely():
    def pause_s(others, lease_s=900.0):
        return node_agent._pause_s({"lease_s": lease_s}, others)

    assert (pause_s(1), pause_s(7), pause_s(23)) == (15.0, 15.0, 46.0)
    assert pause_s(200) == 112.5 == 900 / 8, "and yet eight times within the lease"
    assert pause_s(23, lease_s=40.0) == 5.0


def test_of_many_nodes_few_are_asked_at_once_and_each_asks_in_an_order_of_its_own(monkeypatch):
    """All ask all others in the same moment, and `sshd` turns the tenth login away that is under way."""
    orders, at_once = [], []

    def login(command, **_):
        orders[-1].append(command[1])
        return SimpleNamespace(stdout=b"[]")

    def pool(threads):
        at_once.append(threads)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr("subprocess.run", login)
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", pool)
    parts = {(f"id-{n}", f"10.0.0.{n}"): ["r/main/0/1"] for n in range(23)}
    for _ in range(10):
        orders.append([])
        assert node_agent._elsewhere({"to_others": ["ssh"], "statuses": "s"}, parts) == {}
    assert max(at_once) < 10
    assert all(sorted(each) == sorted(address for _, address in parts) for each in orders)
    assert len({each[-1] for each in orders}) > 1
