"""A driver's executor of a cluster whose head says nothing more; the test is what conducts its gangs."""

import base64
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from trainmaster.executors.base import (
    Capacity,
    GangRequest,
    GangStatus,
    MemberRequest,
    MemberStatus,
    Phase,
)
from trainmaster.executors.gangs import executor as executor_module
from trainmaster.executors.gangs.executor import NodesExecutor
from trainmaster.executors.gangs.placement import LiveNode
from trainmaster.spec.errors import ExecutorError

RUN = GangStatus("r/a/0/1", Phase.RUNNING, (MemberStatus("worker-0", 7, 1.0),), {}, 1.0)
ENDED = GangStatus("r/a/1/1", Phase.EXITED, (MemberStatus("worker-0", 8, 1.0, 2.0, 0),), {}, 1.0, 2.0)


class Calls:
    """Notes what a scheduler is asked for."""

    def __init__(self, heard):
        self.heard = heard

    def __getattr__(self, name):
        return lambda *_, **__: self.heard.append(name)


class Conductor:
    """Serves drivers and takes what they ask for; the rest is up to the test."""

    withheld_prefixes = ()

    def __init__(self):
        self.head = SimpleNamespace(key="n0")
        self.is_dead = self.is_over = False
        self.error = None
        self.silent_s = 0.0
        self.heard = []
        self.early = []
        self.answer = Future()

    def conductor(self, _run, _lease):
        if self.is_dead:
            raise ExecutorError("nobody answers")
        return self

    def open(self, inbox):
        self.inbox = inbox
        inbox.put(self.early)
        opened = Future()
        opened.set_result(None)
        return opened

    def tell(self, _inbox, work):
        if not self.is_dead:
            work(Calls(self.heard))

    def ask(self, _work):
        return self.answer

    def deliver(self, _timeout_s):
        self.heard.append("deliver")

    def hang_up(self, inbox):
        inbox.close()

    def die(self):
        """And nobody answers any more."""
        self.is_dead = True
        self.inbox.close()


@pytest.fixture
def conductor():
    return Conductor()


def gang(attempt, directory):
    member = MemberRequest("worker-0", "true", "/")
    return GangRequest(attempt, str(directory / attempt.replace("/", "-")), (member,), 1, "a", 1)


def opened(conductor, directory, gone):
    executor = NodesExecutor(conductor, is_gone=gone.__contains__)
    executor.open("r", Capacity(1), {})
    executor.submit([gang(name, directory) for name in ("r/a/0/1", "r/a/1/1", "r/a/2/1")])
    conductor.inbox.put([RUN, ENDED])
    found = {}
    while len(found) < 2:
        found.update((status.attempt, status.phase) for status in executor.changes(1.0))
    return executor


def test_silence_and_another_source(conductor, tmp_path, monkeypatch):
    monkeypatch.setattr(executor_module, "_GONE_PAUSE_S", 0.0)
    gone = set()
    executor = opened(conductor, tmp_path, gone)
    conductor.inbox.nodes = {"n0": LiveNode("n0", "id0", "10.0.0.1", 1.0, 0, {})}
    conductor.silent_s = 9.0
    deadline = time.monotonic() + 5.0
    while not any(node.unreachable_since for node in executor.nodes()):
        assert executor.changes(0.01) == []
        assert time.monotonic() < deadline
    assert not executor.is_lost, "it may only be slow"
    gone.add("n0")
    assert executor.changes(0.0) == [], "what is lost with it, its owner knows"
    assert executor.is_lost
    (ended,) = executor.observe(["r/a/1/1"])
    assert ended.members[0].exit_code == 0


def test_nothing_is_started_afterwards(conductor, tmp_path):
    gone = set()
    executor = opened(conductor, tmp_path, gone)
    conductor.die()
    for _ in range(2):
        with pytest.raises(ExecutorError, match="head, n0, was lost"):
            executor.observe(["r/a/0/1"])
    gone.add("n0")
    assert executor.observe(["r/a/0/1"])[0].phase is Phase.RUNNING, "as it was heard last"
    assert executor.is_lost
    heard = len(conductor.heard)
    executor.submit([gang("r/a/3/1", tmp_path)])
    executor.launch("r/a/0/1", {})
    executor.stop("r/a/0/1", 1.0)
    executor.forget(["r/a/0/1"])
    assert executor.observe(["r/a/0/1"])[0].phase is Phase.UNKNOWN
    executor.close()
    assert conductor.heard[heard:] == []


def test_all_that_was_said_is_heard_before_hanging_up(conductor, tmp_path):
    executor = opened(conductor, tmp_path, set())
    executor.forget(["r/a/1/1"])
    executor.close()
    assert conductor.heard[-2:] == ["forget", "deliver"]


def until_lost(executor):
    while True:
        executor.changes(0.2)


def test_who_has_other_things_to_do_is_told_at_once(conductor, tmp_path, monkeypatch):
    """The run's loop must renew its lease: another executor is opened elsewhere."""
    gone = set()
    executor = NodesExecutor(conductor, is_gone=gone.__contains__)
    executor.open("r", Capacity(1), {})
    executor.submit([gang("r/a/0/1", tmp_path)])
    conductor.die()
    with pytest.raises(ExecutorError, match="was lost"):
        until_lost(executor)
    executor.close()


def test_who_has_other_things_to_do_hears_of_a_head_that_is_gone(conductor, tmp_path):
    gone = set()
    executor = NodesExecutor(conductor, is_gone=gone.__contains__)
    executor.open("r", Capacity(1), {})
    executor.submit([gang("r/a/0/1", tmp_path)])
    gone.add("n0")
    conductor.die()
    deadline = time.monotonic() + 5.0
    while not executor.is_lost and time.monotonic() < deadline:
        executor.changes(0.1)
    assert executor.is_lost
    executor.close()


def test_a_silent_conductor_is_not_waited_for_long(conductor, tmp_path, monkeypatch):
    monkeypatch.setattr(executor_module, "_BRIEF_S", 0.2)
    executor = NodesExecutor(conductor)
    executor.open("r", Capacity(1), {})
    executor.hurry()
    with pytest.raises(ExecutorError, match="did not answer"):
        executor.observe(["r/a/0/1"])
    executor.close()


def test_a_starved_conductor_is_waited_for_while_it_is_being_reached(conductor, monkeypatch):
    """That is done beside the run's loop. Else its cluster, which works, would be dissolved as a mute one."""
    monkeypatch.setattr(executor_module, "_BRIEF_S", 0.1)
    executor = NodesExecutor(conductor)
    executor.open("r", Capacity(1), {})
    late = threading.Timer(0.4, conductor.answer.set_result, [[RUN]])
    late.start()
    assert executor.observe(["r/a/0/1"])[0].phase is Phase.RUNNING
    late.join()
    executor.close()


def test_why_a_gang_waits(conductor):
    executor = NodesExecutor(conductor)
    executor.open("r", Capacity(1), {})
    conductor.inbox.waits = {"r/a/0/1": "it needs a node with role=ps; there is none among 2"}
    assert executor.waits() == {"r/a/0/1": "it needs a node with role=ps; there is none among 2"}
    executor.close()


def test_what_comes_with_the_welcome_is_heard(conductor):
    conductor.early = [ENDED]
    executor = NodesExecutor(conductor)
    executor.open("r", Capacity(1), {})
    assert [status.attempt for status in executor.changes(1.0)] == ["r/a/1/1"]
    executor.output()
    conductor.inbox.grew("r/a/1/1", "worker-0")
    assert executor.output() == [("r/a/1/1", "worker-0")]
    executor.close()


def test_that_there_is_no_room_for_what_members_write_is_told(conductor, tmp_path, monkeypatch):
    monkeypatch.setattr("trainmaster.executors.gangs.copies.RESERVE_BYTES", 1 << 62)
    executor = opened(conductor, tmp_path, set())
    mirror = conductor.inbox.mirror
    mirror.follow("r/a/0/1", str(tmp_path / "r-a-0-1"), ["worker-0"])
    piece = ("worker-0.log", 0, 6, base64.b64encode(b"step 7").decode())
    assert mirror.take("n0", [("r/a/0/1", piece)]) == {"r/a/0/1"}
    (why,) = executor.waits().values()
    assert f"kept at {tmp_path}/r-a-0-1 on the machine that drives the run" in why
    executor.forget(["r/a/0/1"])
    assert not executor.waits()
    executor.close()
