"""A cluster of two nodes that are reached over SSH only."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from trainmaster.cluster.node_access import SshNodes
from trainmaster.executors.base import Capacity, GangRequest, MemberRequest, Phase
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.spec.errors import ExecutorError
from trainmaster.testing.reopening import ReopeningExecutor
from trainmaster.transport.pool import ConnectionPool

pytestmark = pytest.mark.ray
KEYS = ("n0", "n1")


@pytest.fixture
def place():
    """Short, for Ray's sockets."""
    made = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def hosts(new_host):
    return {key: new_host(key) for key in KEYS}


@pytest.fixture
def nodes(ssh, hosts):
    with contextlib.closing(ConnectionPool(ssh)) as connections:
        yield SshNodes(connections, {key: host.target for key, host in hosts.items()})


def described(place, index):
    key = KEYS[index]
    directory, home = f"{place}/{key}", f"{place}/home-{key}"
    return ClusterNode(key, f"127.0.0.{index + 2}", 2, directory, home, python=sys.executable)


@pytest.fixture
def cluster(nodes, place):
    wanted = [described(place, index) for index in range(2)]
    cluster = RayCluster(place / "record", wanted, nodes.run, nodes.stream)
    try:
        cluster = RayCluster.start(place / "record", wanted, nodes.run, nodes.stream)
        yield cluster
    finally:
        cluster.stop()


def wait(executor, attempt, phase=Phase.EXITED, patience_s=30.0):
    deadline = time.monotonic() + patience_s
    while (status := executor.observe([attempt])[0]).phase is not phase:
        assert time.monotonic() < deadline, f"not {phase}: {status}"
        executor.changes(0.2)
    return status


def pids(executor, request):
    """All members have one."""
    while True:
        found = [member.pid for member in wait(executor, request.attempt, Phase.RUNNING).members]
        if all(found):
            return found
        executor.changes(0.2)


def test_gang_over_ssh(cluster, nodes, ssh, hosts, place, tmp_path):
    """Code there, logs and files back; connections are lost in between."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.sh").write_text("until [ -e ../go ]; do sleep 0.05; done; echo $RANK > out; cat out\n")
    for key in KEYS:
        with ssh.connect(hosts[key].target) as connection:
            connection.upload(code, f"{place}/{key}-work/code")
    executor = ReopeningExecutor(cluster, place=lambda directory: tmp_path / "copies" / Path(directory).name)
    executor.open("ssh-0", Capacity(1), dict(os.environ))
    members = tuple(
        MemberRequest(
            f"worker-{index}",
            "bash train.sh",
            f"{place}/{key}-work/code",
            {"RANK": str(index)},
            node_labels={"trainmaster-node": key},
        )
        for index, key in enumerate(KEYS)
    )
    request = GangRequest("ssh-0/a/0/1", f"{place}/attempts/1", members, 2, "a", 9, per_node=1)
    try:
        executor.submit([request])
        before = pids(executor, request)
        for host in hosts.values():
            host.cut()
        assert pids(executor, request) == before
        for key in KEYS:
            (place / f"{key}-work" / "go").touch()
        assert [each.exit_code for each in wait(executor, request.attempt).members] == [0, 0]
        for index, key in enumerate(KEYS):
            assert (tmp_path / "copies" / "1" / f"worker-{index}.log").read_text() == f"{index}\n"
            assert Path(f"{place}/{key}-work/code/out").read_text() == f"{index}\n"
        executor.forget([request.attempt])
    finally:
        executor.close()
    found = RayCluster.find(cluster.directory, nodes.run, nodes.stream)
    assert found is not None
    assert [node.port_base for node in found.nodes] == [node.port_base for node in cluster.nodes]


def test_says_which_node_and_why(nodes, hosts, place):
    node = described(place, 0)
    with pytest.raises(ExecutorError, match=r"node n0: .*/no/python ended with 127"):
        nodes.run(node, ["/no/python", "-m", "x"], b"")
    with pytest.raises(ExecutorError, match="node n7: its address is unknown"):
        nodes.run(replace(node, key="n7"), ["true"], b"")
    hosts["n0"].stop()
    with pytest.raises(ExecutorError, match="node n0: "):
        nodes.run(node, ["true"], b"")
    with pytest.raises(ExecutorError, match="node n0: "):
        nodes.stream(node, ["true"])
