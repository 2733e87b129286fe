"""Nodes of a cluster that come, go, freeze and die while gangs run; all are on this machine."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest
from engine_bench import Bench, agent_pids, lose_conductor, only_ray, processes_of, programs_of, raylet_pid

from trainmaster.executors.base import Phase
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.ray.cluster import RayCluster
from trainmaster.executors.ray.commands import HEAD_PROGRAM
from trainmaster.spec.errors import ExecutorError
from trainmaster.testing.executor_contract import alive, until
from trainmaster.testing.ray_here import HERE

LOOP = "trap 'exit 0' TERM; echo $$ >> pids; while :; do sleep 0.05; done"


@only_ray
def test_short_freeze_is_no_loss(bench, three):
    node = three.nodes[-1]
    gang = bench.gang("0", *["until [ -e go ]; do sleep 0.02; done"] * 3)
    bench.executor.submit([gang])
    bench.wait(gang, Phase.RUNNING)
    pid = raylet_pid(node)
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            bench.executor.changes(0.2)
            assert bench.executor.observe([gang.attempt])[0].phase is Phase.RUNNING
    finally:
        os.kill(pid, signal.SIGCONT)
    (bench.directory / "go").touch()
    assert [member.exit_code for member in bench.wait(gang).members] == [0, 0, 0]


@only_ray
def test_raylet_killed(bench, three):
    gang = bench.gang("0", *[LOOP] * 3)
    bench.executor.submit([gang])
    until(lambda: all(member.pid for member in bench.wait(gang, Phase.RUNNING).members), "all have started")
    status = bench.wait(gang, Phase.RUNNING)
    node = three.nodes[-1]
    (victim,) = [name for name, address in status.addresses.items() if address == node.address]
    os.kill(raylet_pid(node), signal.SIGKILL)
    began = time.monotonic()

    def lost():
        bench.executor.changes(0.2)
        return [each.name for each in bench.executor.observe([gang.attempt])[0].members if each.lost]

    until(lost, "the loss is told", patience_s=30.0)
    print(f"lost after {time.monotonic() - began:.1f} s")
    assert lost() == [victim]
    members = bench.wait(gang).members
    assert [(member.stopped, member.lost) for member in members if member.name != victim] == [
        (True, False)
    ] * 2
    left = next(member.pid for member in members if member.name == victim)
    assert alive(left), "the supervisor did not notice: its node could be beyond our reach"
    waits = bench.gang("1", "true", "true", "true")
    bench.executor.submit([waits])
    bench.executor.changes(0.3)
    assert bench.executor.observe([waits.attempt])[0].phase is Phase.QUEUED
    three.add([node])
    assert [member.exit_code for member in bench.wait(waits).members] == [0, 0, 0]
    until(lambda: not alive(left), "what was declared lost is ended when its node comes back")


@only_ray
@pytest.mark.parametrize(
    "is_switched_off",
    [False, pytest.param(True, marks=pytest.mark.crossings)],
    ids=["lost", "switched off"],
)
def test_a_gang_goes_on_without_a_dispensable_member(bench, three, is_switched_off):
    """A machine that is switched off ends its processes first, and its supervisor may still tell so."""
    script = "until [ -e go ]; do sleep 0.02; done"
    head = {0: {"trainmaster-node": "n0"}}  # it is another node that is killed
    loop = "while :; do sleep 0.05; done"
    gang = bench.gang("0", script, loop, loop, labels=head, serving=(1, 2), dispensable=(1, 2))
    bench.executor.submit([gang])
    status = bench.all_started(gang)
    node = three.nodes[-1]
    (victim,) = [name for name, address in status.addresses.items() if address == node.address]

    def seen():
        bench.executor.changes(0.2)
        return bench.executor.observe([gang.attempt])[0]

    def is_told():
        return any(member.ended_at for member in seen().members)

    if is_switched_off:
        os.kill(next(member.pid for member in status.members if member.name == victim), signal.SIGTERM)
        until(is_told, "its end is told")
    os.kill(raylet_pid(node), signal.SIGKILL)
    try:
        until(is_told, "the loss is told", patience_s=30.0)
        lose_conductor(three)  # the next one knows it from its records
        until(is_told, "of a machine that was just switched off the next one has to hear that it is lost")
        for _ in range(5):
            now = seen()
            assert now.phase is Phase.RUNNING
            assert [member.name for member in now.members if member.ended_at] == [victim]
        (bench.directory / "go").touch()
        ended = {member.name: member for member in bench.wait(gang).members}
    finally:
        three.add([node])  # the tests that follow need it
    assert ended["worker-0"].exit_code == 0
    # of one that was switched off the next driver may still hear how it ended, before the loss is noticed
    assert ended[victim].lost or (is_switched_off and ended[victim].signal == signal.SIGTERM)
    again = bench.gang("1", "true", "true", "true")
    bench.executor.submit([again])
    assert [member.exit_code for member in bench.wait(again).members] == [0, 0, 0]


def test_another_source_for_a_node_that_does_not_answer(bench, three):
    """Its engine does not give it up; what rents it knows better."""
    node = three.nodes[-1]
    gone = set()
    executor = bench.open(is_gone=gone.__contains__)
    gang = bench.gang("0", *[LOOP] * 3)
    executor.submit([gang])
    status = bench.all_started(gang, executor)
    (member,) = (each.pid for each in status.members if status.addresses[each.name] == node.address)
    supervisor = int(Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()[1])
    stopped = *agent_pids(node), supervisor  # a new agent finds that one silent, too
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: pumped_states(executor)[node.key] is not None, "it is seen to be unreachable")
        assert not any(member.lost for member in bench.wait(gang, Phase.RUNNING, executor).members)
        gone.add(node.key)
        members = bench.wait(gang, executor=executor).members
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    lost = [name for name, address in status.addresses.items() if address == node.address]
    assert [member.name for member in members if member.lost] == lost
    assert sum(member.stopped for member in members) == 2
    three.remove(node.key)
    assert not any(alive(member.pid) for member in members), "removed with all that ran there"
    three.add([node])


def pumped_states(executor):
    executor.changes(0.2)
    return {node.key: node.unreachable_since for node in executor.nodes()}


def test_nodes_come_and_go_while_gangs_run(bench, three, make_node, engine):
    stays = bench.gang("stays", *[LOOP] * 3)
    wide = bench.gang("wide", *[LOOP] * 4)
    bench.executor.submit([stays, wide])
    before = bench.all_started(stays)
    assert bench.executor.observe([wide.attempt])[0].phase is Phase.QUEUED, "for want of a node"
    three.add([make_node(3, engine)])
    try:
        status = bench.all_started(wide)
        assert len(set(status.addresses.values())) == 4
    finally:
        three.remove("n3")
    members = bench.wait(wide).members
    (lost,) = [member for member in members if member.lost]
    assert status.addresses[lost.name] == make_node(3).address
    assert not alive(lost.pid)
    assert sum(member.stopped for member in members if member is not lost) == 3
    assert bench.wait(stays, Phase.RUNNING).members == before.members
    assert [node.key for node in type(three).find(three.directory, *HERE).nodes] == ["n0", "n1", "n2"]


@pytest.fixture
def short_lived(make_node):
    """Two nodes of their own."""
    place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
    nodes = [
        make_node(number, directory=f"{place}/{number}", home=f"{place}/home-{number}") for number in (5, 6)
    ]
    cluster = RayCluster(place / "record", nodes, *HERE)
    try:
        yield RayCluster.start(place / "record", nodes, *HERE)
    finally:
        cluster.stop()
        shutil.rmtree(place, ignore_errors=True)


@only_ray
@pytest.mark.crossings  # on machines of the lab the first one ends: `test_lab_runs.py`
def test_head_lost(short_lived, tmp_path, engine):
    """The cluster is lost once somebody confirms it; what runs elsewhere is ended; a new cluster works."""
    gone = set()
    bench = Bench(lambda: NodesExecutor(short_lived, is_gone=gone.__contains__), tmp_path)
    try:
        gang, waits = bench.gang("0", *[LOOP] * 2), bench.gang("1", *["true"] * 3)
        bench.executor.submit([gang, waits])
        pids = [member.pid for member in bench.all_started(gang).members]
        for pid in (*programs_of(short_lived.head, HEAD_PROGRAM), *processes_of(short_lived.head)):
            with contextlib.suppress(ProcessLookupError):  # they end with each other
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(ExecutorError):
            bench.wait(gang)
        assert not bench.executor.is_lost, "nobody has confirmed it"
        gone.add(short_lived.head.key)
        bench.executor.changes(0.0)
        assert bench.executor.is_lost
        assert all(map(alive, pids))
    finally:
        bench.executor.close()
    short_lived.stop()
    assert not any(map(alive, pids))
    again = RayCluster.start(short_lived.directory, short_lived.nodes[1:], *HERE)
    bench = Bench(lambda: NodesExecutor(again), tmp_path)
    try:
        gang = bench.gang("2", "true")
        bench.executor.submit([gang])
        assert bench.wait(gang).members[0].exit_code == 0
    finally:
        bench.executor.close()
        again.stop()


def test_a_node_that_is_added_once_more_is_the_same_one(bench, three):
    """The next driver finds a node when it can be reached again: what runs there goes on."""
    gang = bench.gang("0", *["until [ -e go ]; do sleep 0.02; done"] * 3)
    bench.executor.submit([gang])
    before = bench.all_started(gang)
    three.add([three.nodes[-1]])
    pumped_states(bench.executor)
    time.sleep(1.5)  # so long it may take until a node that was given up is noticed
    assert bench.wait(gang, Phase.RUNNING).members == before.members
    (bench.directory / "go").touch()
    assert [member.exit_code for member in bench.wait(gang).members] == [0, 0, 0]


def test_what_a_gang_waits_for_is_told(bench, three):
    gang = bench.gang("0", "true", "true", labels={1: {"disk": "fast"}})
    bench.executor.submit([gang])

    def why():
        bench.executor.changes(0.2)
        return bench.executor.waits().get(gang.attempt)

    until(why, "it is told", patience_s=40.0)
    assert why() == "it needs a node with disk=fast; there is none among 3"
    bench.executor.stop(gang.attempt, 0.0)
    until(lambda: why() is None, "it waits no more")
