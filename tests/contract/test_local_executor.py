import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.executors.base import (
    UNIX_USER,
    Capacity,
    Container,
    Executor,
    MemberRequest,
    Phase,
    QueuePlace,
    Sandbox,
)
from trainmaster.executors.local.executor import LocalExecutor
from trainmaster.executors.supervisor import processes
from trainmaster.spec.errors import ExecutorError
from trainmaster.testing.executor_contract import RUN, ExecutorContract, alive, until


def end_everything(home: Path) -> None:
    """Kill the supervisor of a home and all that it started, whatever state the test left it in."""
    lock = home / "supervisor" / "lock"
    text = lock.read_text().strip() if lock.exists() else ""
    pids = [int(text)] if text and str(home).encode() in _command(int(text)) else []
    while pids or (pids := [pid for pid in processes.scan() if processes.marker(pid, str(home.resolve()))]):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        dead = pids
        until(lambda dead=dead: not any(alive(pid) for pid in dead), "everything is dead")
        pids = []


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class TestLocalExecutor(ExecutorContract):
    @pytest.fixture
    def home(self, tmp_path):
        home = tmp_path / ("h" * 120)  # longer than the kernel's limit for socket paths
        yield home
        end_everything(home)

    @pytest.fixture
    def connect(self, home):
        made = []

        def connect():
            made.append(LocalExecutor(home))
            return made[-1]

        yield connect
        for executor in made:
            executor.close()

    def lose_supervisor(self, executor: Executor) -> None:
        os.kill(executor.supervisor_pid, signal.SIGKILL)

    def test_supervisor_ends_by_itself(self, executor, home):
        pid = executor.supervisor_pid
        self.run(executor, self.gang("0", "true"))
        assert alive(pid)
        executor.close()
        until(lambda: not alive(pid), "it has ended")

    def test_supervisor_stays_for_members(self, executor):
        pid = executor.supervisor_pid
        gang = self.gang("0", "until [ -e go ]; do sleep 0.02; done")
        executor.submit([gang])
        self.wait(executor, gang, Phase.RUNNING)
        executor.close()
        time.sleep(0.2)
        assert alive(pid)
        (self.directory / "go").touch()
        until(lambda: not alive(pid), "it has ended")

    def test_one_supervisor(self, home, connect):
        executors = [connect() for _ in range(8)]
        threads = [threading.Thread(target=self.open, args=(executor,)) for executor in executors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({executor.supervisor_pid for executor in executors}) == 1

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root starts members as other users")
    def test_a_unix_user_cannot_hide_what_it_leaves(self, executor, home):
        """Neither by an empty environment, nor by that of another attempt that still runs."""
        self.directory.chmod(0o777)
        home.chmod(0o755)
        sandbox = Sandbox(
            65534, 65534, writable=(str(self.directory),), hidden=(str(self.directory.parents[-2]),)
        )
        container = Container(
            "", sys.executable, UNIX_USER, settings={"PATH": os.environ["PATH"]}, sandbox=sandbox
        )

        def as_user(task, script):
            gang = self.gang(task, script)
            return replace(gang, members=(replace(gang.members[0], container=container),))

        other = as_user("other", "cat /proc/self/environ > theirs; echo $$ > stays; exec sleep 600")
        executor.submit([other])
        stays = self.pid_in("stays")
        leave = "setsid bash -c 'echo $$ > {}; exec sleep 600' > /dev/null 2>&1 &"
        theirs = "mapfile -d '' -t theirs < theirs"
        request = as_user(
            "0",
            f"{theirs}\n(env -i {leave.format('bare')})\n"
            f'(env -i "${{theirs[@]}}" {leave.format("forged")})\n'
            "until [ -s bare ] && [ -s forged ]; do sleep 0.05; done",
        )
        (member,) = self.run(executor, request).members
        log = (Path(request.directory) / f"{member.name}.log").read_text()
        assert member.exit_code == 0, log
        assert not alive(self.pid_in("bare"))
        assert not alive(self.pid_in("forged"))
        assert alive(stays)

    def test_come_and_go(self, connect):
        """Connecting while the supervisor is about to end: what comes has one that answers."""
        supervisors = []
        for index in range(40):
            executor = self.open(connect())
            assert executor.observe(["nobody's"])[0].phase is Phase.UNKNOWN
            supervisors.append(executor.supervisor_pid)
            if index % 2:
                time.sleep(0.001 * (index % 7))
            executor.close()
            if index % 10 == 9:
                until(lambda: not alive(supervisors[-1]), "it has ended")
        assert len(set(supervisors)) >= 4
        assert self.run(self.open(connect()), self.gang("0", "true")).members[0].exit_code == 0

    def test_start_early(self, connect):
        executor = connect()
        executor.start()
        executor.start()
        assert self.run(self.open(executor), self.gang("0", "true")).members[0].exit_code == 0

    def test_stdio_of_the_caller_is_given_up(self, executor):
        names = [
            str(entry.readlink())
            for entry in Path(f"/proc/{executor.supervisor_pid}/fd").iterdir()
            if entry.name in "012"
        ]
        assert sorted(Path(name).name for name in names) == ["log", "log", "null"]

    def test_sigterm_ends_everything(self, executor):
        gang = self.gang("0", "echo $$ > pid; sleep 600")
        executor.submit([gang])
        member = self.pid_in("pid")
        os.kill(executor.supervisor_pid, signal.SIGTERM)
        assert self.wait(executor, gang).members[0].stopped
        assert not alive(member)

    def test_supervisor_killed_while_away(self, executor, connect):
        gang = self.gang("0", "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done")
        executor.submit([gang])
        pid = self.pid_in("pid")
        self.wait(executor, gang, Phase.RUNNING)
        executor.close()
        self.lose_supervisor(executor)
        assert alive(pid)
        (member,) = self.wait(self.open(connect()), gang).members
        assert member.lost
        assert not alive(pid)

    def test_lost_again_and_again(self, executor):
        def lose() -> None:
            for _ in range(10):
                self.lose_supervisor(executor)
                until(lambda: not alive(executor.supervisor_pid), "it is dead")
                executor.observe(["anything"])

        with pytest.raises(ExecutorError, match=r"lost .* times(.|\n)*resume"):
            lose()

    def test_home_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        executor = LocalExecutor(tmp_path / "file" / "home")
        with pytest.raises(ExecutorError, match=r"cannot write(.|\n)*TRAINMASTER_HOME"):
            executor.open(RUN, Capacity(1), {})

    def test_supervisor_cannot_start(self, home, connect):
        (home / "supervisor" / "journal").mkdir(parents=True)
        with pytest.raises(ExecutorError, match=r"cannot start: .*journal(.|\n)*supervisor/log"):
            self.open(connect())

    def test_not_open(self, connect):
        with pytest.raises(ExecutorError, match="open"):
            connect().submit([self.gang("0", "true")])

    def test_follower_is_not_kept_waiting(self, executor):
        gang = self.gang("0", "for i in 1 2 3; do echo $i; until [ -e seen-$i ]; do sleep 0.02; done; done")
        executor.submit([gang])
        for number in range(1, 4):
            until(lambda count=number: len(self.log(gang).split()) == count, "its next line")
            (self.directory / f"seen-{number}").touch()  # it writes the next one only now
        assert self.wait(executor, gang).members[0].exit_code == 0

    def test_gpus(self, connect):
        executor = connect()
        executor.open(RUN, Capacity(8, gpus=("3", "5", "7")), os.environ)

        def request(task, gpus):
            script = "echo $CUDA_VISIBLE_DEVICES; until [ -e go ]; do sleep 0.02; done"
            members = [
                MemberRequest(name=f"worker-{index}", script=script, cwd=str(self.directory), gpus=gpus)
                for index in range(2)
            ]
            return self.request(task, members)

        first, second, impossible = request("0", 1), request("1", 1), request("2", 2)
        shared = replace(request("3", 1), share_gpus=True)
        executor.submit([first, second, impossible, shared])
        self.wait(executor, first, Phase.RUNNING)
        assert executor.observe([second.attempt])[0].phase is Phase.QUEUED
        assert "4 GPUs" in self.wait(executor, impossible).members[0].error
        (self.directory / "go").touch()
        self.wait(executor, second)
        assert [self.log(first, "worker-0"), self.log(first, "worker-1")] == [b"3\n", b"5\n"]
        assert [self.log(second, "worker-0"), self.log(second, "worker-1")] == [b"3\n", b"5\n"]
        self.wait(executor, shared)
        assert [self.log(shared, "worker-0"), self.log(shared, "worker-1")] == [b"3,5\n", b"3,5\n"]

    def test_who_waits_is_told_for_whom(self, executor, connect):
        other = connect()
        other.open("other-1", Capacity(4), os.environ)
        first = self.gang("0", "until [ -e go ]; do sleep 0.02; done", slots=3)
        second = self.gang("1", "true", slots=2)
        executor.submit([first])
        self.wait(executor, first, Phase.RUNNING)
        other.submit([second])

        def place():
            other.changes(0.05)
            return other.queue_place()

        until(place, "what it waits for")
        assert place() == QueuePlace(2, 0, 1, {RUN: 3})
        assert executor.queue_place() is None
        (self.directory / "go").touch()
        self.wait(other, second)
        assert place() is None

    def test_two_runs_share_the_slots(self, executor, connect):
        other = connect()
        other.open("other-1", Capacity(4), os.environ)
        first = self.gang("0", "until [ -e go ]; do sleep 0.02; done", slots=4)
        second = self.gang("1", "true", slots=4)
        executor.submit([first])
        self.wait(executor, first, Phase.RUNNING)
        other.submit([second])
        assert other.observe([second.attempt])[0].phase is Phase.QUEUED
        (self.directory / "go").touch()
        assert self.wait(other, second).members[0].exit_code == 0

    def test_samples(self, executor):
        gang = self.gang("0", "(while :; do :; done) & until [ -e go ]; do sleep 0.02; done; kill $!")
        executor.submit([gang])
        file = Path(gang.directory) / "samples.jsonl"

        def has_worked():
            whole = file.read_text().split("\n")[:-1] if file.exists() else []
            return len(whole) >= 3 and json.loads(whole[-1])["cpu_seconds"] > 0.5

        until(has_worked, "three lines while it runs, and some work")
        (self.directory / "go").touch()
        ended = self.wait(executor, gang)
        lines = file.read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert {row["member"] for row in rows} == {"worker-0"}
        assert rows[0]["processes"] >= 2, "bash and its loop, and at most times a sleep"
        assert rows[-1]["processes"] == 0, "the last line is of its end"
        assert rows[-1]["seconds"] == pytest.approx(ended.ended_at - ended.started_at, abs=0.01)
        cpu_seconds = [row["cpu_seconds"] for row in rows]
        assert cpu_seconds == sorted(cpu_seconds)
        assert cpu_seconds[-1] > 0.5
