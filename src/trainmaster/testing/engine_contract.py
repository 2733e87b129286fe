"""What every engine must do, with real supervisors: inherit `EngineContract`, name its class of clusters."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from trainmaster.executors.base import Capacity, GangRequest, GangStatus, MemberRequest, Phase
from trainmaster.executors.gangs.engine import ClusterNode
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.gangs.recorded_cluster import RecordedCluster
from trainmaster.testing.executor_contract_tools import alive
from trainmaster.testing.ray_here import HERE
from trainmaster.testing.waits import until

RUN = "engine-0"
LOOP = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
_PATIENCE_S = 40.0


class EngineContract:
    """Three nodes of this machine, each with a supervisor of its own, are a cluster for each test.

    Attributes:
        kind: the class under test.
    """

    kind: ClassVar[type[RecordedCluster]]

    @pytest.fixture
    def nodes(self) -> Iterator[list[ClusterNode]]:
        """Their directories are short, as sockets have little room."""
        place = Path(tempfile.mkdtemp(prefix="tm-", dir="/tmp"))
        yield [
            ClusterNode(f"n{n}", f"127.0.0.{n + 2}", 2, f"{place}/{n}", f"{place}/home-{n}") for n in range(3)
        ]
        shutil.rmtree(place, ignore_errors=True)

    @pytest.fixture
    def cluster(self, nodes: list[ClusterNode], tmp_path: Path) -> Iterator[RecordedCluster]:
        """It is ended after the test."""
        made = self.kind.start(tmp_path / "record", nodes, *HERE)
        yield made
        made.stop()

    @pytest.fixture
    def connect(self, cluster: RecordedCluster, tmp_path: Path) -> Iterator[Callable[..., NodesExecutor]]:
        """Opens executors, and closes them after the test."""
        made: list[NodesExecutor] = []

        def connect(is_gone: Callable[[str], bool] | None = None) -> NodesExecutor:
            made.append(NodesExecutor(cluster, is_gone=is_gone))
            made[-1].open(RUN, Capacity(1), dict(os.environ))
            return made[-1]

        yield connect
        for executor in made:
            executor.close()

    def gang(self, place: Path, name: str, *scripts: str, hold: bool = False) -> GangRequest:
        """One with a member for each script, each on a node of its own."""
        members = tuple(
            MemberRequest(f"worker-{index}", script, str(place), ports=1)
            for index, script in enumerate(scripts)
        )
        directory = str(place / name)
        return GangRequest(
            f"{RUN}/train/{name}/1",
            directory,
            members,
            len(scripts),
            "train",
            9,
            hold,
            grace_s=3.0,
            per_node=1,
        )

    def wait(self, executor: NodesExecutor, gang: GangRequest, phase: Phase) -> GangStatus:
        """Until a gang is in that phase; RUNNING: until all its members have processes."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            executor.changes(0.1)
            (status,) = executor.observe([gang.attempt])
            if status.phase is phase and (
                phase is not Phase.RUNNING or all(each.pid for each in status.members)
            ):
                return status
            assert time.monotonic() < deadline, status

    def test_a_gang_is_held_then_launched_on_all_nodes(
        self, connect: Callable[..., NodesExecutor], nodes: list[ClusterNode], tmp_path: Path
    ) -> None:
        """All parts are GRANTED, with ports, before any starts."""
        executor = connect()
        gang = self.gang(tmp_path, "0", *["echo $GREETING"] * 3, hold=True)
        executor.submit([gang])
        granted = self.wait(executor, gang, Phase.GRANTED)
        assert sorted(granted.addresses.values()) == [node.address for node in nodes]
        assert all(len(granted.ports[member.name]) == 1 for member in gang.members)
        executor.launch(gang.attempt, {member.name: {"GREETING": member.name} for member in gang.members})
        assert [each.exit_code for each in self.wait(executor, gang, Phase.EXITED).members] == [0, 0, 0]
        for member in gang.members:
            assert (tmp_path / "0" / f"{member.name}.log").read_text() == f"{member.name}\n"
        executor.forget([gang.attempt])
        assert executor.observe([gang.attempt])[0].phase is Phase.UNKNOWN

    def test_when_a_member_fails_the_others_are_stopped(
        self, connect: Callable[..., NodesExecutor], tmp_path: Path
    ) -> None:
        """On all nodes."""
        executor = connect()
        gang = self.gang(tmp_path, "0", LOOP, "sleep 0.3; exit 7", LOOP)
        executor.submit([gang])
        members = self.wait(executor, gang, Phase.EXITED).members
        assert [(each.exit_code, each.stopped) for each in members if each.exit_code == 7] == [(7, False)]
        assert sum(each.stopped for each in members) == 2

    def test_a_node_that_says_nothing_is_lost_only_when_another_source_says_so(
        self, connect: Callable[..., NodesExecutor], nodes: list[ClusterNode], tmp_path: Path
    ) -> None:
        """Unreachable is never dead."""
        gone: set[str] = set()
        executor = connect(gone.__contains__)
        gang = self.gang(tmp_path, "0", *[LOOP] * 3)
        executor.submit([gang])
        status = self.wait(executor, gang, Phase.RUNNING)
        frozen = _processes_of(nodes[2])
        _signal_all(frozen, signal.SIGSTOP)
        try:
            until(lambda: nodes[2].key in _unreachable(executor), "it is unreachable", patience_s=_PATIENCE_S)
            assert not any(each.lost for each in self.wait(executor, gang, Phase.RUNNING).members)
            gone.add(nodes[2].key)
            members = self.wait(executor, gang, Phase.EXITED).members
        finally:
            _signal_all(frozen, signal.SIGCONT)
        there = [name for name, address in status.addresses.items() if address == nodes[2].address]
        assert [each.name for each in members if each.lost] == there
        assert sum(each.stopped for each in members) == 2

    def test_nodes_join_and_leave(
        self,
        connect: Callable[..., NodesExecutor],
        cluster: RecordedCluster,
        nodes: list[ClusterNode],
        tmp_path: Path,
    ) -> None:
        """A gang that lacks a node waits for it."""
        executor = connect()
        gang = self.gang(tmp_path, "0", *[LOOP] * 3)
        executor.submit([gang])
        self.wait(executor, gang, Phase.RUNNING)
        cluster.remove(nodes[2].key)
        members = self.wait(executor, gang, Phase.EXITED).members
        assert sum(each.lost for each in members) == 1
        assert not any(alive(each.pid or 0) for each in members), "removed with all that ran there"
        waits = self.gang(tmp_path, "1", *["true"] * 3)
        executor.submit([waits])
        executor.changes(0.5)
        assert executor.observe([waits.attempt])[0].phase is Phase.QUEUED, "for want of a node"
        cluster.add([nodes[2]])
        assert [each.exit_code for each in self.wait(executor, waits, Phase.EXITED).members] == [0, 0, 0]

    def test_the_next_driver_finds_what_runs(
        self, connect: Callable[..., NodesExecutor], cluster: RecordedCluster, tmp_path: Path
    ) -> None:
        """Nothing of a gang ends with its driver."""
        executor = connect()
        gang = self.gang(tmp_path, "0", *["until [ -e go ]; do sleep 0.02; done"] * 3)
        executor.submit([gang])
        before = self.wait(executor, gang, Phase.RUNNING)
        executor.close()
        found = type(cluster).find(cluster.directory, *HERE)
        assert found is not None
        assert [node.key for node in found.nodes] == [node.key for node in cluster.nodes]
        again = NodesExecutor(found)
        again.open(RUN, Capacity(1), dict(os.environ))
        try:
            assert self.wait(again, gang, Phase.RUNNING).members == before.members
            (tmp_path / "go").touch()
            members = self.wait(again, gang, Phase.EXITED).members
        finally:
            again.close()
        assert [each.exit_code for each in members] == [0, 0, 0]

    def test_its_end_leaves_nothing(
        self,
        connect: Callable[..., NodesExecutor],
        cluster: RecordedCluster,
        nodes: list[ClusterNode],
        tmp_path: Path,
    ) -> None:
        """No process of ours, and no record."""
        executor = connect()
        gang = self.gang(tmp_path, "0", *[LOOP] * 3)
        executor.submit([gang])
        members = self.wait(executor, gang, Phase.RUNNING).members
        executor.close()
        cluster.stop()
        assert not any(alive(each.pid or 0) for each in members)
        until(lambda: not any(map(_processes_of, nodes)), "no process of ours is left")
        assert self.kind.find(cluster.directory, *HERE) is None
        cluster.stop()  # may be repeated


def _unreachable(executor: NodesExecutor) -> set[str]:
    executor.changes(0.2)
    return {node.key for node in executor.nodes() if node.unreachable_since is not None}


def _processes_of(node: ClusterNode) -> list[int]:
    """Whose command line or environment names the node's home or directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
            if node.home.encode() in text or f"{node.directory}/".encode() in text:
                found.append(int(entry.name))
    return found


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    """Those that have ended meanwhile, as a `sleep` of a member has, are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
