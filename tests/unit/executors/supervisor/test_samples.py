"""When members are looked at, and what their lines say; this process plays a member, time is an argument."""

from __future__ import annotations

import json
import os
import resource
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest

from trainmaster.executors.supervisor import samples
from trainmaster.executors.supervisor.gang_processes import GangProcesses, MemberProcess
from trainmaster.executors.supervisor.gpus import Gpu
from trainmaster.executors.supervisor.samples import MemberSampler

NO_USE = resource.getrusage(resource.RUSAGE_CHILDREN)
BEGIN = 1_800_000_000.0


class Books:
    """Traffic that the test makes up."""

    def __init__(self):
        self.totals = {}
        self.tells = True
        self.looks = 0

    def look(self, roots):
        self.looks += 1
        return self.tells

    def busy_s(self, root):
        return 0.25

    def round_trip_ms(self, root):
        return 40.2 if self.totals.get(root) else None

    def total(self, root):
        return self.totals.get(root, (0, 0))

    last_total = total

    def keep(self, roots):
        self.kept = set(roots)


class NoGpus:
    def __init__(self):
        self.gpus = []

    def look(self):
        return self.gpus


class Stage:
    """A sampler with members that all are this very process, and a clock."""

    def __init__(self, directory):
        self.directory = directory
        self.books, self.gpus, self.watched = Books(), NoGpus(), []
        self.sampler = MemberSampler(
            str(directory / "node.jsonl"), self.watched.append, self.books, self.gpus
        )
        self.living = {}
        self.now = 0.0
        self.look_s = 0.0  # seconds of a processor that each look takes

    def member(self, pid, name="worker-0", **keys):
        (self.directory / name).mkdir(exist_ok=True)
        member = MemberProcess(name, essential=True)
        member.pid, member.started_at = pid, BEGIN + self.now
        for key, value in keys.items():
            setattr(member, key, value)
        self.living[pid] = (
            GangProcesses("run/main/0/1", "run", str(self.directory / name), 1.0, [member]),
            0,
        )

    def go(self, seconds):
        """Let that much time pass, as the supervisor does: it comes back when it is asked to, or earlier."""
        end = self.now + seconds
        while True:
            due = self.sampler.tick(self.living, self.now, BEGIN + self.now)
            step = end - self.now if due is None else min(due, end - self.now)
            if step <= 0 and self.now >= end:
                return
            self.now += max(step, 0.001)

    def end(self, pid):
        del self.living[pid]
        self.sampler.ended(pid, NO_USE, BEGIN + self.now)

    def rows(self, name="worker-0"):
        path = self.directory / name / "samples.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def stage(tmp_path, monkeypatch):
    stage = Stage(tmp_path)
    clock = SimpleNamespace(thread_time=lambda: stage.books.looks * stage.look_s)
    monkeypatch.setattr(samples, "time", clock)
    return stage


def test_the_first_line_comes_within_a_second_and_then_one_a_second(stage):
    stage.member(os.getpid())
    stage.go(10)
    seconds = [row["seconds"] for row in stage.rows()]
    assert seconds == pytest.approx([0.8 + number for number in range(10)], abs=0.01)


def test_looks_that_take_long_become_rare(stage):
    """At most three hundredths of one core."""
    stage.look_s = 0.09
    stage.member(os.getpid())
    stage.go(10)
    seconds = [row["seconds"] for row in stage.rows()]
    assert seconds == pytest.approx([0.8, 3.8, 6.8, 9.8], abs=0.01)


def test_whenever_it_started(stage):
    stage.member(os.getpid())
    stage.go(2.3)
    for number, start_s in enumerate((0.15, 0.3, 0.45)):
        stage.go(start_s)
        stage.member(os.getppid(), f"ps-{number}")
        stage.go(3)
        assert 0.7 <= stage.rows(f"ps-{number}")[0]["seconds"] <= 1, "of the stage's clock"
        stage.end(os.getppid())


def test_what_a_line_says(stage):
    stage.books.totals = {os.getpid(): (1234, 99)}
    stage.member(os.getpid())
    stage.go(1)
    (row,) = stage.rows()
    assert row["member"] == "worker-0"
    assert row["time"] == pytest.approx(BEGIN + row["seconds"])
    assert (row["bytes_sent"], row["bytes_received"]) == (1234, 99)
    assert row["processes"] >= 1
    assert 1 << 20 < row["rss_bytes"] <= row["peak_rss_bytes"]
    tree = [psutil.Process(), *psutil.Process().children(recursive=True)]  # other tests may have left helpers
    assert 0 < row["cpu_seconds"] <= sum(sum(process.cpu_times()[:4]) for process in tree) + 5
    assert "gpu_utilisation" not in row


def test_where_the_kernel_does_not_tell_bytes_are_null(stage):
    stage.books.tells = False
    stage.member(os.getpid())
    stage.go(1)
    stage.end(os.getpid())
    for row in stage.rows():
        assert row["bytes_sent"] is None
        assert row["bytes_received"] is None


def test_the_last_line_is_of_its_end(stage):
    stage.member(os.getpid())
    stage.go(2.2)
    stage.books.totals = {os.getpid(): (70, 7)}
    stage.end(os.getpid())
    *_, before, last = stage.rows()
    assert last["seconds"] == pytest.approx(2.2, abs=0.01)
    assert (last["processes"], last["rss_bytes"], last["bytes_sent"]) == (0, 0, 70)
    assert last["cpu_seconds"] >= before["cpu_seconds"]
    assert last["peak_rss_bytes"] >= before["peak_rss_bytes"]


def test_bytes_that_the_kernel_tells_of_later_still_count(stage):
    stage.member(os.getpid())
    stage.go(2.2)
    stage.end(os.getpid())
    count = len(stage.rows())
    stage.books.totals = {os.getpid(): (70, 7)}
    stage.go(2)
    assert len(stage.rows()) == count + 1
    assert stage.rows()[-1]["bytes_sent"] == 70
    assert stage.rows()[-1]["seconds"] == stage.rows()[-2]["seconds"], "it did not live longer"
    assert stage.books.kept == set()


def test_short_members_cost_nothing(stage):
    for _ in range(200):
        stage.member(os.getpid())
        stage.go(0.05)
        stage.end(os.getpid())
    assert stage.books.looks == 0
    assert stage.rows() == []


def test_lines_get_rarer_but_looks_do_not(stage):
    stage.member(os.getpid())
    stage.go(60)
    early, looks = len(stage.rows()), stage.books.looks
    stage.go(60)
    assert 57 <= early <= 61
    assert 11 <= len(stage.rows()) - early <= 13
    assert stage.books.looks - looks >= 57


def test_whoever_watches_is_told_who_lives(stage):
    stage.member(os.getpid())
    stage.go(2)
    assert [set(pids) for pids in stage.watched] == [{os.getpid()}] * 2


def test_the_node(stage):
    stage.member(os.getpid())
    stage.go(1.9)
    assert not (stage.directory / "node.jsonl").exists(), "psutil is not loaded for short tasks"
    stage.go(10)
    rows = [json.loads(line) for line in (stage.directory / "node.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    assert rows[0]["cpu_percent"] is None
    assert 0 <= rows[1]["cpu_percent"] <= 100
    for name in ("memory_available_bytes", "disk_free_bytes", "network_received_bytes", "network_sent_bytes"):
        assert rows[1][name] > 0
    assert "gpus" not in rows[1]


def test_gpus(stage):
    gpu = Gpu(0, "GPU-a")
    gpu.utilisation, gpu.memory_used_bytes, gpu.memory_bytes = 0.5, 3 << 30, 80 << 30
    gpu.processes = {os.getpid(): 1 << 30}
    stage.gpus.gpus = [gpu]
    stage.member(os.getpid())
    stage.go(3)
    row = stage.rows()[0]
    assert (row["gpu_utilisation"], row["gpu_memory_bytes"]) == (0.5, 1 << 30)
    node = json.loads((stage.directory / "node.jsonl").read_text().splitlines()[0])
    assert node["gpus"] == [
        {"gpu": 0, "utilisation": 0.5, "memory_used_bytes": 3 << 30, "memory_bytes": 80 << 30}
    ]


def test_a_directory_that_is_gone_is_no_trouble(stage):
    stage.member(os.getpid(), "worker-0")
    (stage.directory / "worker-0").rmdir()
    stage.go(3)
    assert not stage.rows()


def test_a_node_tells_its_runs_every_ten_seconds(stage):
    stage.member(11)
    stage.member(12, "worker-1")
    stage.living[11][0].is_on_node = stage.living[12][0].is_on_node = True
    stage.go(34)

    def looks(name):
        file = stage.directory / name / "samples.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [row for row in map(json.loads, lines) if row["member"] == f"@{os.uname().nodename}"]

    times = [row["time"] - BEGIN for row in looks("worker-0")]
    assert len(times) == 3
    assert all(later - earlier == pytest.approx(10, abs=1.5) for earlier, later in pairwise(times))
    assert "memory_available_bytes" in looks("worker-0")[0]
    assert looks("worker-1") == [], "once for a run"
    stage.living.pop(11)
    stage.go(12)
    assert len(looks("worker-1")) == 1, "the next one goes on with it"


def test_a_gang_whose_memory_nothing_else_bounds_is_told_when_it_has_too_much(stage):
    told = []
    stage.sampler._exceed = told.append
    stage.member(os.getpid())
    gang, _ = stage.living[os.getpid()]
    for memory_bytes, is_watched, wanted in ((1, False, []), (1 << 50, True, []), (1, True, [gang])):
        gang.memory_bytes, gang.is_watched = memory_bytes, is_watched
        told.clear()
        stage.go(2.0)
        assert told[:1] == wanted
