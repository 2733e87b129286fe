import json
from dataclasses import replace

import pytest

from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ray.commands import PORT_COUNT, environment, head_command, worker_command
from trainmaster.executors.ray.node_program import _PORTS, _choose_ports
from trainmaster.spec.errors import ExecutorError

HEAD = ClusterNode(
    "head", "10.0.0.1", 4, "/tmp/tm-1", "/home/me/tm", labels={"market": "ondemand"}, port_base=21000
)
WORKER = ClusterNode("w1", "10.0.0.2", 8, "/tmp/tm-1", "/home/me/tm", gpus=("0", "1"), port_base=21000)


def parameters_of(command):
    assert command[1:-1] == ["-m", "trainmaster.executors.ray.start"]
    return json.loads(command[-1])


def test_commands():
    head, worker = parameters_of(head_command(HEAD)), parameters_of(worker_command(WORKER, HEAD))
    assert (head["head"], head["gcs_server_port"], head["no_monitor"]) == (True, "21000", True)
    assert head["labels"] == {"market": "ondemand", "trainmaster-node": "head"}
    assert (worker["head"], worker["gcs_address"]) == (False, "10.0.0.1:21000")
    assert (worker["num_gpus"], worker["num_cpus"]) == (2, 8)
    for parameters in (head, worker):
        ports = [int(value) for name, value in parameters.items() if name.endswith("_port")]
        assert not any(10002 <= port <= 19999 for port in ports)
        assert len(ports) == len(set(ports))


def test_nothing_of_the_user_gets_into_it(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "x")
    found = environment(HEAD)
    assert found["RAY_AUTH_TOKEN_PATH"] == "/tmp/tm-1/token"
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"
    assert not {"RAY_ADDRESS", "RAY_TMPDIR", "WANDB_API_KEY"} & found.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directory": "/tmp/" + "x" * 60}, "sockets"),
        ({"directory": "relative"}, "sockets"),
        ({"address": "127.0.0.1"}, "127.0.0.1"),
    ],
)
def test_refused(change, message, tmp_path):
    node = replace(HEAD, **change)
    with pytest.raises(ExecutorError, match=message):
        RayCluster.start(tmp_path, [node], lambda *_: b"", lambda *_: None)


class Nodes:
    """Answers as nodes do that keep what was started."""

    def __init__(self, broken=()):
        self.running = {}
        self.broken = broken
        self.order = []

    def __call__(self, node, command, stdin):
        assert command[-1] == "trainmaster.executors.gangs.node_program"
        request = json.loads(stdin)
        assert request["answers"] == "trainmaster.executors.ray.node_program"
        self.order.append((request["do"], node.key))
        if request["do"] == "start":
            if node.key in self.broken:
                return b'{"ok": false, "error": "no room", "port_base": 23000}\n'
            self.running[node.key] = request
        elif request["do"] == "stop":
            self.running.pop(node.key, None)
        base = request.get("port_base") or max([22800, *request.get("taken", [])]) + 200
        return json.dumps({"ok": True, "pid": int(node.key in self.running), "port_base": base}).encode()


def test_found_by_its_record(tmp_path):
    nodes = Nodes()
    assert RayCluster.find(tmp_path, nodes, nodes) is None
    RayCluster.start(tmp_path, [HEAD, WORKER], nodes, nodes)
    assert nodes.order == [("start", "head"), ("start", "w1")]
    tokens = {request["token"] for request in nodes.running.values()}
    assert len(tokens) == 1
    assert len(tokens.pop()) == 64
    assert not any("token" in part for request in nodes.running.values() for part in request["command"])
    found = RayCluster.find(tmp_path, nodes, nodes)
    assert found.nodes == [HEAD, WORKER]
    found.remove("w1")
    assert RayCluster.find(tmp_path, nodes, nodes).nodes == [HEAD]
    assert nodes.order[-2] == ("stop", "w1")
    found.stop()
    assert RayCluster.find(tmp_path, nodes, nodes) is None
    assert not list(tmp_path.iterdir())
    assert not nodes.running


def test_what_was_started_can_be_ended_after_a_failure(tmp_path):
    nodes = Nodes(broken=("w1",))
    with pytest.raises(ExecutorError, match=r"w1: no room"):
        RayCluster.start(tmp_path, [HEAD, WORKER], nodes, nodes)
    found = RayCluster.find(tmp_path, nodes, nodes)
    found.stop()
    assert not nodes.running


def test_a_machine_that_is_no_more_is_not_asked(tmp_path):
    nodes = Nodes()
    cluster = RayCluster.start(tmp_path, [HEAD, WORKER], nodes, nodes)
    cluster.remove("w1", is_gone=True)
    assert ("stop", "w1") not in nodes.order
    assert RayCluster.find(tmp_path, nodes, nodes).nodes == [HEAD]
    cluster.stop(gone={"head"})
    assert "stop" not in dict(nodes.order)
    assert not list(tmp_path.iterdir())


def test_ports_that_a_node_has_chosen_are_kept(tmp_path):
    nodes = Nodes()
    head, worker = replace(HEAD, port_base=0), replace(WORKER, port_base=0)
    RayCluster.start(tmp_path, [head, worker], nodes, nodes)
    started = {key: parameters_of(request["command"]) for key, request in nodes.running.items()}
    assert started["head"]["gcs_server_port"] == "@0@", "the node fills it in"
    assert started["w1"]["gcs_address"] == "10.0.0.1:23000"
    assert [node.port_base for node in RayCluster.find(tmp_path, nodes, nodes).nodes] == [23000, 23000]


def test_two_nodes_on_one_machine_choose_different_ports():
    first, held = _choose_ports(PORT_COUNT, [])
    with held:
        second, other = _choose_ports(PORT_COUNT, [])
        other.close()
    assert first
    assert abs(second - first) >= PORT_COUNT


def test_what_comes_to_an_address_again_takes_other_ports(tmp_path):
    """Ray's head may still have a connection to the last one, and would ask the next one over it."""
    nodes = Nodes()
    head, lost = replace(HEAD, port_base=0), replace(WORKER, port_base=0)
    cluster = RayCluster.start(tmp_path, [head, lost], nodes, nodes)
    cluster.remove("w1", is_gone=True)
    cluster.add([replace(lost, key="w2")])
    assert cluster.nodes[1].port_base == 23200
    found = RayCluster.find(tmp_path, nodes, nodes)
    found.remove("w2")
    found.add([replace(lost, key="w2"), replace(lost, key="w3", address="10.0.0.3")])
    assert nodes.running["w2"]["taken"] == [23000, 23200], "also by the next driver"
    assert nodes.running["w3"]["taken"] == [], "it is about addresses"


def test_ports_of_a_start_that_failed_are_taken(tmp_path):
    nodes = Nodes()
    cluster = RayCluster.start(tmp_path, [replace(HEAD, port_base=0)], nodes, nodes)
    nodes.broken = ("w1",)
    worker = replace(WORKER, port_base=0)
    with pytest.raises(ExecutorError, match="no room"):
        cluster.add([worker])
    nodes.broken = ()
    cluster.add([worker])
    assert nodes.running["w1"]["taken"] == [23000]


def test_ports_that_were_taken_come_last_the_oldest_first():
    first, held = _choose_ports(PORT_COUNT, [])
    with held:
        second, other = _choose_ports(PORT_COUNT, [])
    other.close()
    again, held = _choose_ports(PORT_COUNT, [first, second])
    held.close()
    assert again not in (first, second)
    everything = [base for base in _PORTS if base not in (second, first)]
    oldest, held = _choose_ports(PORT_COUNT, [second, first, *everything])
    held.close()
    assert oldest == second
