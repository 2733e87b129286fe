"""Nodes that lose their driver and a peer, with `engine: ssh`: nothing waits for it for ever."""

import contextlib
import os
from pathlib import Path

import pytest
from engine_bench import Bench

from trainmaster.executors.base import Capacity, Phase
from trainmaster.executors.gangs.agent import Records
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.testing.executor_contract import alive, until
from trainmaster.testing.ray_here import HERE

LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
LEASE_S = 4.0
#: Stands for the `ssh` of nodes: runs a command of the node with an address, but for those that are cut off.
TO_OTHERS = """\
number=$(( ${1##*.} - 2 ))
[ -e PLACE/cut-$number ] && exit 255
$(echo "$2" | sed "s,/[0-9]/statuses,/$number/statuses,")
"""


@pytest.fixture
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("u", numbered=True)
    (place / "to-others").write_text(TO_OTHERS.replace("PLACE", str(place)))
    nodes = [
        ClusterNode(
            f"n{number}",
            f"127.0.0.{number + 2}",
            2,
            f"{place}/{number}",
            f"{place}/home-{number}",
            to_others=("sh", f"{place}/to-others"),
            lease_s=LEASE_S,
        )
        for number in range(3)
    ]
    made = SshCluster.start(place / "record", nodes, *HERE)
    yield made
    made.stop()


def test_what_waits_for_a_dead_peer_ends_and_says_why(cluster, tmp_path):
    bench = Bench(lambda: NodesExecutor(cluster), tmp_path)
    gang = bench.gang("0", LOOP, LOOP, LOOP)
    bench.executor.submit([gang])
    started = bench.all_started(gang)
    bench.executor.close()
    cluster._conductor.end()
    lost = next(each for each in started.members if started.addresses[each.name] == cluster.nodes[2].address)
    (cluster.directory.parent / "cut-2").touch()
    others = [each for each in started.members if each is not lost]
    until(lambda: not any(alive(each.pid) for each in others), "they have ended", patience_s=90.0)
    assert alive(lost.pid), "its own node cannot know whether any other is there"
    for member in others:
        log = (bench.directory / "attempts" / "0" / f"{member.name}.log").read_text()
        assert "[trainmaster: node n2 is lost while no process drives the run]" in log
    again = NodesExecutor(SshCluster.find(cluster.directory, *HERE))
    again.open("gangs-0", Capacity(1), dict(os.environ))
    try:
        members = bench.wait(gang, Phase.EXITED, again, patience_s=90.0).members
    finally:
        again.close()
    assert {each.name: (each.lost, each.stopped) for each in members} == {
        each.name: (each is lost, each is not lost) for each in started.members
    }


def test_what_waits_for_the_only_peer_ends_though_that_dies_with_the_driver(cluster, tmp_path):
    bench = Bench(lambda: NodesExecutor(cluster), tmp_path)
    gang = bench.gang("0", LOOP, LOOP)
    bench.executor.submit([gang])
    started = bench.all_started(gang)
    place = cluster.directory.parent
    addresses = [node.address for node in cluster.nodes]
    numbers = {each.name: addresses.index(started.addresses[each.name]) for each in started.members}
    first, second = started.members
    assert numbers[first.name] != numbers[second.name]
    records = [Records(cluster.nodes[number].home) for number in numbers.values()]
    until(
        lambda: all(each.met() for each in records), "they know that they reach each other", patience_s=90.0
    )
    (place / f"cut-{numbers[second.name]}").touch()
    bench.executor.close()
    cluster._conductor.end()
    until(lambda: not alive(first.pid), "it has ended", patience_s=90.0)
    log = (bench.directory / "attempts" / "0" / f"{first.name}.log").read_text()
    assert f"node n{numbers[second.name]} is lost while no process drives the run" in log


def test_without_its_driver_a_gang_goes_on(cluster, tmp_path):
    bench = Bench(lambda: NodesExecutor(cluster), tmp_path)
    gang = bench.gang("0", *["until [ -e go ]; do sleep 0.05; done; sleep 0.3"] * 2)
    bench.executor.submit([gang])
    started = bench.all_started(gang)
    bench.executor.close()
    cluster._conductor.end()
    until(lambda: _looking(cluster) >= 2, "the nodes look after it", patience_s=90.0)
    (tmp_path / "go").touch()
    until(lambda: not any(alive(each.pid) for each in started.members), "it ends", patience_s=90.0)
    until(lambda: not _looking(cluster), "nothing is left to look after", patience_s=90.0)


def _looking(cluster):
    """How many processes look after gangs."""
    place = os.fsencode(cluster.directory.parent)
    found = 0
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = entry.read_bytes()
            found += b"\0tend\0" in command and place in command
    return found
