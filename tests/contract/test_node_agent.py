"""What a node's agent does for a driver, with a real supervisor."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_bench import Bench as ClusterBench

from newer_version import newer_version
from trainmaster.executors.base import Capacity, GangStatus, Phase
from trainmaster.executors.gangs.agent import Agent
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.executors.ssh.cluster import SshCluster
from trainmaster.spec.errors import ExecutorError, OtherVersionError
from trainmaster.testing.executor_contract import alive, until
from trainmaster.testing.ray_here import HERE

LONG = "touch up-$RANDOM; until [ -e go ]; do sleep 0.02; done"


class Bench:
    """The driver."""

    def __init__(self, agent, directory):
        self.agent = agent
        self.directory = directory
        self.phases = {}

    def gang(self, name, script, node_queue="lane", **options):
        member = {"name": "worker-0", "script": script, "cwd": str(self.directory), "env": {}, "ports": 0}
        return {
            "attempt": name,
            "directory": str(self.directory / name),
            "slots": 1,
            "group": node_queue,
            "group_slots": 1,
            "hold": False,
            "grace_s": 1.0,
            "share_gpus": False,
            "members": [{**member, "essential": True, "gpus": 0, "container": None}],
            **options,
        }

    def do(self, *commands, token="t1"):
        return self.agent.do(token, commands)

    def submit(self, *gangs):
        self.do(*({"do": "submit", "gangs": [gang]} for gang in gangs))

    def check(self, name, turn=7):
        ((told, row),) = self.do({"do": "check", "attempt": name, "turn": turn})[1]
        assert told == turn
        return GangStatus.of_row(row).phase

    def wait(self, name, phase):
        deadline = time.monotonic() + 60.0
        while self.phases.get(name) is not phase:
            assert time.monotonic() < deadline, self.phases
            news, *_ = self.agent.poll("t1", 0.5, {})
            self.phases.update((status.attempt, status.phase) for status in map(GangStatus.of_row, news))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr("trainmaster.executors.gangs.agent._be_ordinary", lambda: None)
    agent = Agent({"home": str(home), "gpus": []})
    agent.attach("t1", [])
    pid = int((home / "supervisor" / "lock").read_text())
    yield Bench(agent, tmp_path)
    agent.detach(agent._token)
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid), "the supervisor has ended")


def test_one_after_another_in_a_lane(bench):
    order = bench.directory / "order"
    bench.submit(*(bench.gang(str(index), f"echo {index} >> {order}") for index in range(5)))
    bench.wait("4", Phase.EXITED)
    assert order.read_text().split() == list("01234")


def test_called_back_unless_it_has_started(bench):
    names = ["first", "second", "third"]
    bench.submit(*(bench.gang(name, LONG) for name in names))
    bench.wait("first", Phase.RUNNING)
    bench.do({"do": "recall", "attempts": names[:2]})
    bench.wait("second", Phase.UNKNOWN)
    assert [bench.check(name) for name in names] == [Phase.RUNNING, Phase.UNKNOWN, Phase.QUEUED]
    Path(bench.directory / "go").touch()
    bench.wait("third", Phase.EXITED)
    assert bench.phases["first"] is Phase.EXITED, "nobody has stopped it"


def test_handed_over_anew_in_the_same_breath(bench):
    """News of an end to waiting may come late; a check tells how it was between the commands around it."""
    bench.submit(bench.gang("first", LONG))
    bench.wait("first", Phase.RUNNING)
    submit = {"do": "submit", "gangs": [bench.gang("again", "true")]}
    recall = {"do": "recall", "attempts": ["again"]}
    checks = [{"do": "check", "attempt": "again", "turn": turn} for turn in (1, 2, 3)]
    _, found = bench.do(submit, checks[0], recall, checks[1], submit, checks[2])
    assert [(turn, GangStatus.of_row(row).phase) for turn, row in found] == [
        (1, Phase.QUEUED),
        (2, Phase.UNKNOWN),
        (3, Phase.QUEUED),
    ]
    Path(bench.directory / "go").touch()
    bench.wait("again", Phase.EXITED)


@pytest.mark.timeout(60)
def test_what_was_written_before_it_is_followed(bench, monkeypatch):
    """It has woken an earlier poll already: nothing more would wake the next one."""
    monkeypatch.setattr("trainmaster.executors.gangs.agent._FOLLOW_S", 3600.0)
    bench.submit(bench.gang("says", f"echo begun; {LONG}"))
    bench.wait("says", Phase.RUNNING)
    log = bench.directory / "says" / "worker-0.log"
    until(lambda: log.exists() and log.read_bytes(), "it has said something")
    until(lambda: not bench.agent.poll("t1", 0.2, {})[1], "that was told")
    _, _, pieces, _ = bench.agent.poll("t1", 3600.0, {"says": (str(log.parent), ("worker-0",), {})})
    assert any(name.startswith("worker-0.log") for _, (name, *_) in pieces)
    Path(bench.directory / "go").touch()
    bench.wait("says", Phase.EXITED)


def test_what_waits_is_dropped_for_the_next_driver(bench):
    bench.submit(bench.gang("runs", LONG), bench.gang("waits", "touch never"))
    bench.submit(bench.gang("held", "touch never", node_queue="other", hold=True))
    bench.wait("runs", Phase.RUNNING)
    bench.wait("held", Phase.GRANTED)
    rows, _ = bench.agent.attach("t2", ["runs", "waits", "held", "none"])
    assert [GangStatus.of_row(row).phase for row in rows] == [
        Phase.RUNNING,
        Phase.UNKNOWN,
        Phase.UNKNOWN,
        Phase.UNKNOWN,
    ]
    with pytest.raises(ExecutorError, match="another driver"):
        bench.submit(bench.gang("late", "true"))
    Path(bench.directory / "go").touch()
    until(lambda: bench.agent.poll("t2", 0.5, {})[0], "its end is told to the new one")
    assert not (bench.directory / "never").exists()


def test_a_gang_whose_record_cannot_be_kept_is_refused(bench, monkeypatch):
    """A full disk: it would be asked for again and again, and the node could not be reached for as long."""
    write_text = Path.write_text

    def full(path, text):
        if path.parent.name == "gangs":
            raise OSError(28, "No space left on device")
        return write_text(path, text)

    bench.submit(bench.gang("runs", LONG))
    bench.wait("runs", Phase.RUNNING)
    monkeypatch.setattr(Path, "write_text", full)
    record = {"attempt": "late"}
    bench.do(
        {"do": "record", "part": "late", "record": record},
        {"do": "submit", "gangs": [bench.gang("late", "touch never")]},
        {"do": "record", "part": "runs", "record": {"attempt": "runs"}},
    )
    ((row,), *_) = bench.agent.poll("t1", 5.0, {})
    status = GangStatus.of_row(row)
    assert (status.attempt, status.phase) == ("late", Phase.EXITED)
    assert "gangs/" in status.members[0].error
    assert "No space left on device; make room there" in status.members[0].error
    monkeypatch.undo()
    bench.do({"do": "record", "part": "late", "record": record})
    bench.submit(bench.gang("late", "true", node_queue="other"))
    Path(bench.directory / "go").touch()
    bench.wait("late", Phase.EXITED)
    bench.wait("runs", Phase.EXITED)
    assert not (bench.directory / "never").exists()


@pytest.mark.timeout(60)
def test_a_supervisor_of_a_newer_version(tmp_path, make_node):
    """It is not asked again and again: the driver is told at once which node it is on, and what to do."""
    node = make_node(7, "ssh", directory=str(tmp_path / "node"), home=str(tmp_path / "node-home"))
    cluster = SshCluster.start(tmp_path / "record", [node], *HERE)
    begin = "import sys; sys.path.append(sys.argv[1]); from trainmaster.executors.supervisor import program"
    source = str(newer_version(tmp_path / "newer"))
    command = [sys.executable, "-I", "-S", "-c", f"{begin}; program.main(sys.argv[2:])", source, node.home]
    subprocess.run(command, check=True)
    stays = LocalExecutor(Path(node.home))
    stays.open("other", Capacity(1), {})
    bench = ClusterBench(lambda: NodesExecutor(cluster), tmp_path)
    bench.executor.submit([gang := bench.gang("0", "true")])
    with pytest.raises(ExecutorError, match="Open it again"):
        bench.wait(gang)
    bench.executor.close()
    try:
        for _ in range(2):
            with pytest.raises(OtherVersionError, match=rf"node n7: .*another version(.|\n)*{node.home}"):
                bench.open()
    finally:
        stays.close()
        cluster.stop()
