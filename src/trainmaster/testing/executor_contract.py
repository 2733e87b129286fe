"""What every executor must do, with real processes: inherit `ExecutorContract` and give it a `connect`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trainmaster.executors.base import (
    Capacity,
    Executor,
    GangRequest,
    GangStatus,
    MemberRequest,
    Phase,
)
from trainmaster.executors.logs import read_log

RUN = "contract-0"
SECRET = "correct-horse-battery-staple"  # noqa: S105 - to look for, not to hide
PATIENCE_S = 20.0
#: 4 segments of 32 MiB and some notes.
LOG_BOUND_BYTES = 140 << 20


class ExecutorContract:
    """Inherit it and override `connect`.

    Every test gets a node of its own with 4 slots; ``executor`` is connected for the run `RUN`.
    """

    slots = 4

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Iterator[Callable[[], Executor]]:
        """Makes unconnected executors for one and the same node, and ends all processes afterwards."""
        raise NotImplementedError

    def lose_supervisor(self, executor: Executor) -> None:
        """Kill, with SIGKILL, whatever starts the members."""
        pytest.skip("this executor has nothing that can be killed")

    @pytest.fixture
    def executor(self, connect: Callable[[], Executor]) -> Executor:
        """A connected one."""
        return self.open(connect())

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "attempts"
        self.directory.mkdir()

    # -- helpers

    def open(self, executor: Executor, slots: int | None = None) -> Executor:
        """Connect with the environment of this process."""
        executor.open(
            RUN, Capacity(slots=slots or self.slots), {**os.environ, "SECRET_OF_THE_CALLER": SECRET}
        )
        return executor

    def gang(self, task: str, *scripts: str, **options: object) -> GangRequest:
        """An attempt with one worker per script; it takes a slot per worker."""
        members = tuple(
            MemberRequest(name=f"worker-{index}", script=script, cwd=str(self.directory))
            for index, script in enumerate(scripts)
        )
        return self.request(task, members, **options)

    def request(self, task: str, members: Sequence[MemberRequest], **options: object) -> GangRequest:
        """An attempt of given members."""
        values: dict[str, Any] = {
            "attempt": f"{RUN}/train/{task}/1",
            "directory": str(self.directory / task),
            "members": tuple(members),
            "slots": len(members),
            "group": "train",
            "group_slots": 100,
            "grace_s": 5.0,
        }
        return GangRequest(**{**values, **options})

    def wait(self, executor: Executor, request: GangRequest, phase: Phase = Phase.EXITED) -> GangStatus:
        """Until an attempt has come to a phase."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            status = executor.observe([request.attempt])[0]
            if status.phase is phase:
                return status
            assert time.monotonic() < deadline, f"not {phase}: {status}"
            executor.changes(0.5)

    def run(self, executor: Executor, request: GangRequest) -> GangStatus:
        """Submit and wait for the end."""
        executor.submit([request])
        return self.wait(executor, request)

    def pid_in(self, name: str) -> int:
        """The process id that a script wrote to a file."""
        path = self.directory / name
        until(lambda: path.exists() and path.read_text().endswith("\n"), f"{name} is written")
        return int(path.read_text())

    def log(self, request: GangRequest, member: str = "worker-0") -> bytes:
        """All that a member has written."""
        return read_log(Path(request.directory), member, 0).data

    # -- one gang

    @pytest.mark.parametrize(
        ("script", "exit_code", "signal"),
        [
            ("true", 0, None),
            ("exit 3", 3, None),
            ("kill -9 $$", None, 9),
            ("kill -SEGV $$", None, 11),
            ("no-such-command-anywhere", 127, None),
            ("false | true", 1, None),
            ("echo $no_such_variable", 1, None),
            ("false\ntrue", 1, None),
        ],
    )
    def test_exit_record(
        self, executor: Executor, script: str, exit_code: int | None, signal: int | None
    ) -> None:
        """Exit codes and signals, with bash as strict as promised."""
        before = time.time()
        status = self.run(executor, self.gang("0", script))
        (member,) = status.members
        assert (member.exit_code, member.signal) == (exit_code, signal)
        assert not member.stopped
        assert not member.lost
        assert not member.oom
        assert member.error == ""
        assert member.pid is not None
        assert member.started_at is not None
        assert member.ended_at is not None
        assert before - 1 <= member.started_at <= member.ended_at <= time.time() + 1
        assert (status.started_at, status.ended_at) == (member.started_at, member.ended_at)

    def test_unknown_and_forgotten(self, executor: Executor) -> None:
        """What was never submitted, or was forgotten, is UNKNOWN; only what has ended can be forgotten."""
        gang = self.gang("0", "sleep 600")
        executor.forget([gang.attempt])
        assert executor.observe([gang.attempt, "other"])[0].phase is Phase.UNKNOWN
        executor.submit([gang])
        self.wait(executor, gang, Phase.RUNNING)
        executor.forget([gang.attempt])
        assert executor.observe([gang.attempt])[0].phase is Phase.RUNNING
        executor.stop(gang.attempt, 5.0)
        self.wait(executor, gang)
        executor.forget([gang.attempt, gang.attempt])
        assert executor.observe([gang.attempt])[0].phase is Phase.UNKNOWN
        assert executor.observe([]) == []

    def test_submitted_twice_starts_once(self, executor: Executor) -> None:
        """Also when it has ended already."""
        gang = self.gang("0", "echo started >> starts")
        executor.submit([gang, gang])
        executor.submit([gang])
        self.wait(executor, gang)
        executor.submit([gang])
        self.run(executor, self.gang("1", "true"))
        assert (self.directory / "starts").read_text() == "started\n"

    def test_changes_tells_the_end(self, executor: Executor) -> None:
        """Every attempt's end is told once, with its members."""
        gangs = [self.gang(str(index), "true") for index in range(20)]
        executor.submit(gangs)
        ended: dict[str, GangStatus] = {}
        deadline = time.monotonic() + PATIENCE_S
        while len(ended) < len(gangs):
            assert time.monotonic() < deadline
            for status in executor.changes(1.0):
                if status.phase is Phase.EXITED:
                    assert status.attempt not in ended
                    ended[status.attempt] = status
        assert all(status.members[0].exit_code == 0 for status in ended.values())
        executor.forget(list(ended))
        started = time.monotonic()
        assert executor.changes(0.05) == []
        assert time.monotonic() - started >= 0.04

    def test_environment(self, executor: Executor) -> None:
        """Caller's, member's, and what launch gives, in this order; the caller's is nowhere on disk."""
        member = MemberRequest(
            name="worker-0",
            script='printf "%s|" "$SECRET_OF_THE_CALLER" "$MINE" "$LATE" "$BYTES" "$PWD"; env > /dev/null',
            cwd=str(self.directory),
            env={"MINE": "it's; $(touch pwned) \n\u00e9", "LATE": "early", "BYTES": "\udcff"},
        )
        request = self.request("0", [member], hold=True)
        executor.submit([request])
        self.wait(executor, request, Phase.GRANTED)
        executor.launch(request.attempt, {"worker-0": {"LATE": "late"}})
        assert self.wait(executor, request).members[0].exit_code == 0
        fields = self.log(request).split(b"|")
        assert fields[:4] == [SECRET.encode(), "it's; $(touch pwned) \n\u00e9".encode(), b"late", b"\xff"]
        assert fields[4] == str(self.directory).encode()
        assert not (self.directory / "pwned").exists()
        (Path(request.directory) / "worker-0.log").unlink()
        for path in self.directory.parent.rglob("*"):
            if path.is_file():
                assert SECRET.encode() not in path.read_bytes(), path

    def test_long_script(self, executor: Executor) -> None:
        """The kernel takes no argument over 128 KiB; a script may be longer."""
        script = "# " + "x" * 300_000 + "\necho done"
        request = self.gang("0", script)
        assert self.run(executor, request).members[0].exit_code == 0
        assert self.log(request) == b"done\n"

    def test_default_signals_and_input(self, executor: Executor) -> None:
        """Members start as from a shell: nothing blocked or ignored, and an empty input."""
        script = "cat; grep -E '^Sig(Blk|Ign)' /proc/self/status"
        request = self.gang("0", script)
        assert self.run(executor, request).members[0].exit_code == 0
        lines = self.log(request).decode().split("\n")
        # signals 32 and 33 are the C library's own
        assert [int(line.split()[1], 16) & 0x7FFFFFFF for line in lines if line] == [0, 0]

    # -- all or none

    def test_cannot_start(self, executor: Executor) -> None:
        """When one member cannot be started, none goes on, and each has an exit record."""
        good = MemberRequest(name="worker-0", script="echo $$ > pid; sleep 600", cwd=str(self.directory))
        bad = MemberRequest(name="worker-1", script="true", cwd=str(self.directory / "gone"))
        late = MemberRequest(name="worker-2", script="touch late", cwd=str(self.directory))
        first, second, third = self.run(executor, self.request("0", [good, bad, late])).members
        assert first.stopped
        assert first.pid is not None
        assert not alive(first.pid)
        assert "gone" in second.error
        assert second.pid is None
        assert second.ended_at is not None
        assert "worker-1" in third.error
        assert not (self.directory / "late").exists()
        assert self.run(executor, self.gang("1", "true")).members[0].exit_code == 0

    def test_unwritable_directory(self, executor: Executor) -> None:
        """A log that cannot be made is an error of the member, not of the executor."""
        (self.directory / "file").touch()
        request = self.gang("0", "true", directory=str(self.directory / "file" / "0"))
        (member,) = self.run(executor, request).members
        assert "file" in member.error

    def test_failing_member_stops_the_others(self, executor: Executor) -> None:
        """With SIGTERM, so that they can save; and they are marked as stopped."""
        save = "trap 'echo saved; exit 0' TERM; touch ready; while :; do sleep 0.02; done"
        fail = "until [ -e ready ]; do sleep 0.02; done; exit 3"
        request = self.gang("0", save, fail)
        first, second = self.run(executor, request).members
        assert (second.exit_code, second.stopped) == (3, False)
        assert (first.exit_code, first.stopped) == (0, True)
        assert b"saved\n" in self.log(request)  # beside bash's word on its child that was ended

    def test_servers_are_stopped_in_the_end(self, executor: Executor) -> None:
        """When every essential member has exited 0, the others are not waited for."""
        cwd = str(self.directory)
        server = MemberRequest(name="ps-0", script="sleep 600", cwd=cwd, essential=False)
        workers = [MemberRequest(name=f"worker-{index}", script="true", cwd=cwd) for index in range(2)]
        status = self.run(executor, self.request("0", [server, *workers]))
        assert [member.exit_code for member in status.members[1:]] == [0, 0]
        assert status.members[0].stopped

    def test_failing_server_stops_the_workers(self, executor: Executor) -> None:
        """Without their server they would wait for ever."""
        cwd = str(self.directory)
        server = MemberRequest(name="ps-0", script="exit 4", cwd=cwd, essential=False)
        worker = MemberRequest(name="worker-0", script="sleep 600", cwd=cwd)
        status = self.run(executor, self.request("0", [server, worker]))
        assert status.members[0].exit_code == 4
        assert status.members[1].stopped

    # -- stopping

    def test_servers_outlive_those_they_serve(self, executor: Executor) -> None:
        """Who saves its work on SIGTERM may need its parameter server for it."""
        cwd = str(self.directory)
        serve = "trap 'echo served > end; exit 1' TERM; touch ready; while :; do sleep 0.02; done"
        save = (
            "trap 'sleep 0.3; [ ! -e end ] || exit 9; exit 0' TERM; until [ -e ready ]; do sleep 0.02; done\n"
            "touch up; while :; do sleep 0.02; done"
        )
        server = MemberRequest(name="ps-0", script=serve, cwd=cwd, essential=False)
        chief = MemberRequest(name="chief-0", script=save, cwd=cwd)
        request = self.request("0", [chief, server])
        executor.submit([request])
        until((self.directory / "up").exists, "the chief is up")
        executor.stop(request.attempt, 10.0)
        members = self.wait(executor, request).members
        assert [member.exit_code for member in members] == [0, 1]
        assert all(member.stopped for member in members)

    def test_stop_reaches_every_process(self, executor: Executor) -> None:
        """Children, children in sessions of their own, and daemons, also one without our variables."""
        request = self.gang(
            "0",
            "sleep 600 & echo $! > child\n"
            "setsid sleep 601 & echo $! > session\n"
            "(setsid bash -c 'echo $$ > daemon; exec sleep 602' > /dev/null 2>&1 &)\n"
            "(env -i setsid bash -c 'echo $$ > bare; exec sleep 603' > /dev/null 2>&1 &)\n"
            "wait",
        )
        executor.submit([request])
        pids = [self.pid_in(name) for name in ("child", "session", "daemon", "bare")]
        assert all(alive(pid) for pid in pids)
        executor.stop(request.attempt, 5.0)
        (member,) = self.wait(executor, request).members
        assert member.stopped
        assert not any(alive(pid) for pid in pids)

    def test_leftovers_are_ended(self, executor: Executor) -> None:
        """EXITED means: no process of it is left; others are left alone."""
        other = self.gang("other", "setsid sleep 600 & echo $! > stays; wait")
        request = self.gang("0", "(setsid bash -c 'echo $$ > daemon; exec sleep 601' &); sleep 0.2")
        executor.submit([other, request])
        (member,) = self.wait(executor, request).members
        assert (member.exit_code, member.stopped) == (0, False)
        assert not alive(self.pid_in("daemon"))
        assert alive(self.pid_in("stays"))

    def test_stubborn_leftovers_are_killed(self, executor: Executor) -> None:
        """They get a short time of grace only."""
        script = "trap '' TERM; setsid sleep 600 & echo $! > stubborn"
        request = self.gang("0", script, grace_s=0.3)
        assert self.run(executor, request).members[0].exit_code == 0
        assert not alive(self.pid_in("stubborn"))

    def test_sigkill_after_grace(self, executor: Executor) -> None:
        """And a repeated stop with less grace shortens it."""
        request = self.gang("0", "trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done")
        executor.submit([request])
        pid = self.pid_in("pid")
        executor.stop(request.attempt, 600.0)
        executor.stop(request.attempt, 900.0)
        time.sleep(0.3)
        assert alive(pid)
        started = time.monotonic()
        executor.stop(request.attempt, 0.2)
        (member,) = self.wait(executor, request).members
        assert time.monotonic() - started < 3.0
        assert (member.signal, member.stopped, member.oom) == (9, True, False)
        assert not alive(pid)

    def test_child_keeps_its_grace(self, executor: Executor) -> None:
        """The shell dies of SIGTERM at once; the script it waits for may take the time to save."""
        child = "trap 'sleep 0.5; echo saved; exit' TERM; touch ready; while :; do sleep 0.02; done"
        request = self.gang("0", f"bash -c {shell_quoted(child)}; true")
        executor.submit([request])
        until((self.directory / "ready").exists, "it runs")
        executor.stop(request.attempt, 10.0)
        assert self.wait(executor, request).members[0].stopped
        assert b"saved\n" in self.log(request)  # beside bash's word on its child that was ended

    def test_stop_what_waits(self, executor: Executor) -> None:
        """Queued and granted gangs become UNKNOWN and may be submitted again."""
        first = self.gang("0", "sleep 600", slots=4)
        granted = self.gang("1", "touch never", hold=True, group="other")
        queued = self.gang("2", "touch never", slots=4)
        executor.submit([granted])
        self.wait(executor, granted, Phase.GRANTED)
        executor.submit([first, queued])
        executor.stop(granted.attempt, 1.0)
        self.wait(executor, granted, Phase.UNKNOWN)
        self.wait(executor, first, Phase.RUNNING)
        executor.stop(queued.attempt, 1.0)
        self.wait(executor, queued, Phase.UNKNOWN)
        executor.stop(queued.attempt, 1.0)
        executor.stop(first.attempt, 0.0)
        self.wait(executor, first)
        executor.stop(first.attempt, 0.0)
        assert not (self.directory / "never").exists()
        assert self.run(executor, self.gang("2", "true")).members[0].exit_code == 0

    # -- output

    def test_output_of_any_kind(self, executor: Executor) -> None:
        """Both streams, in order, as bytes."""
        request = self.gang("0", r"printf 'a\xff\x00b\r'; printf 'c\n' >&2; printf d")
        self.run(executor, request)
        assert self.log(request) == b"a\xff\x00b\rc\nd"

    def test_output_is_there_at_once(self, executor: Executor) -> None:
        """Whoever follows a log sees a line when it was written, not when the member ends."""
        request = self.gang("0", "for i in {1..600}; do echo $i; sleep 0.1; done")
        executor.submit([request])
        until(lambda: self.log(request).startswith(b"1\n2\n"), "the first lines are there")
        executor.stop(request.attempt, 0.0)
        self.wait(executor, request)

    def test_output_wakes_up(self, executor: Executor) -> None:
        """Whoever waits for changes is woken by output, once he has asked for it."""
        request = self.gang("0", "until [ -e go ]; do sleep 0.02; done; echo hello; sleep 600")
        assert executor.output() == []
        executor.submit([request])
        self.wait(executor, request, Phase.RUNNING)
        executor.changes(0.1)
        (self.directory / "go").touch()
        started = time.monotonic()
        grew: list[tuple[str, str]] = []
        while not grew:
            executor.changes(10.0)
            grew = executor.output()
        assert grew == [(request.attempt, "worker-0")]
        assert time.monotonic() - started < 5.0
        assert self.log(request) == b"hello\n"

    def test_endless_output_is_bounded(self, executor: Executor) -> None:
        """Beginning and end are kept, others are not kept waiting."""
        script = "echo first; head -c 400M /dev/zero; echo; echo last"
        request = self.gang("0", script)
        executor.submit([request])
        self.wait(executor, request, Phase.RUNNING)
        small = self.gang("1", "true")
        assert self.run(executor, small).members[0].exit_code == 0
        assert self.wait(executor, request).members[0].exit_code == 0
        directory = Path(request.directory)
        assert sum(path.stat().st_size for path in directory.iterdir()) < LOG_BOUND_BYTES
        size = dropped = offset = 0
        tail = b""
        while chunk := read_log(directory, "worker-0", offset):
            if not chunk.data and chunk.next_offset == offset:
                break
            offset, size, dropped = chunk.next_offset, size + len(chunk.data), dropped + chunk.dropped_bytes
            tail = (tail + chunk.data)[-10:]
        assert read_log(directory, "worker-0", 0).data.startswith(b"first\n")
        assert tail.endswith(b"\nlast\n")
        assert size + dropped == offset == len("first\n") + (400 << 20) + len("\nlast\n")

    def test_closed_output(self, executor: Executor) -> None:
        """A member may close what it does not need, and work on."""
        request = self.gang("0", "echo here; exec >&- 2>&-; sleep 0.1; touch after")
        assert self.run(executor, request).members[0].exit_code == 0
        assert self.log(request) == b"here\n"
        assert (self.directory / "after").exists()

    # -- slots and ports

    def test_order(self, executor: Executor) -> None:
        """First come, first served."""
        gangs = [self.gang(str(index), f"echo {index} >> order", slots=4) for index in range(8)]
        executor.submit(gangs)
        self.wait(executor, gangs[-1])
        assert (self.directory / "order").read_text().split() == [str(index) for index in range(8)]

    def test_slots_are_kept(self, executor: Executor) -> None:
        """Never more at once than the node has, nor than the group may take."""
        wide = [self.gang(f"wide-{index}", "sleep 0.05", slots=2) for index in range(6)]
        narrow = [
            self.gang(f"narrow-{index}", "sleep 0.02", group="narrow", group_slots=1) for index in range(6)
        ]
        executor.submit([*wide, *narrow])
        gangs = [*wide, *narrow]
        statuses = [self.wait(executor, gang) for gang in gangs]
        # one that ends when another starts shares no moment with it, but for the clocks
        spans = [(status.started_at or 0, (status.ended_at or 0) - 0.003) for status in statuses]
        slots = [gang.slots for gang in gangs]
        for start, _ in spans:
            live = [slots[index] for index, (begin, end) in enumerate(spans) if begin <= start < end]
            assert sum(live) <= self.slots
            assert sum(begin <= start < end for begin, end in spans[len(wide) :]) <= 1

    def test_oversize_gang_runs_alone(self, executor: Executor) -> None:
        """It waits until nothing else runs."""
        small = self.gang("0", "until [ -e go ]; do sleep 0.02; done")
        large = self.gang("1", "true", "true", slots=9, group_slots=1)
        executor.submit([small])
        self.wait(executor, small, Phase.RUNNING)
        executor.submit([large])
        assert executor.observe([large.attempt])[0].phase is Phase.QUEUED
        (self.directory / "go").touch()
        assert [member.exit_code for member in self.wait(executor, large).members] == [0, 0]

    def test_ports(self, executor: Executor) -> None:
        """Held from GRANTED until the start, then free for the member; never given to two gangs."""
        listen = (
            "exec python3 -c 'import os, socket; s = socket.socket(); "
            's.bind(("127.0.0.1", int(os.environ["PORT"]))); s.listen(); print("listens")\''
        )
        gangs = []
        for task in ("0", "1"):
            members = [
                MemberRequest(name=f"worker-{index}", script=listen, cwd=str(self.directory), ports=2 - index)
                for index in range(2)
            ]
            gangs.append(self.request(task, members, hold=True))
        executor.submit(gangs)
        granted = [self.wait(executor, gang, Phase.GRANTED) for gang in gangs]
        ports = [port for status in granted for held in status.ports.values() for port in held]
        assert [len(held) for held in granted[0].ports.values()] == [2, 1]
        assert len(set(ports)) == 6
        for gang, status in zip(gangs, granted, strict=True):
            env = {name: {"PORT": str(held[0])} for name, held in status.ports.items()}
            executor.launch(gang.attempt, env)
            executor.launch(gang.attempt, env)
            assert [member.exit_code for member in self.wait(executor, gang).members] == [0, 0]

    # -- coming and going

    def test_disconnect_and_adopt(self, executor: Executor, connect: Callable[[], Executor]) -> None:
        """Running gangs go on and are found again; the others are dropped."""
        running = self.gang("0", "until [ -e go ]; do sleep 0.02; done; exit 5", slots=3)
        granted = self.gang("1", "touch never", hold=True)
        queued = self.gang("2", "touch never")
        executor.submit([running, granted, queued])
        self.wait(executor, running, Phase.RUNNING)
        self.wait(executor, granted, Phase.GRANTED)
        executor.close()
        second = self.open(connect())
        attempts = [running.attempt, granted.attempt, queued.attempt]
        phases = [status.phase for status in second.observe(attempts)]
        assert phases == [Phase.RUNNING, Phase.UNKNOWN, Phase.UNKNOWN]
        (self.directory / "go").touch()
        deadline = time.monotonic() + PATIENCE_S
        seen: list[GangStatus] = []
        while not any(status.phase is Phase.EXITED for status in seen):
            assert time.monotonic() < deadline
            seen += second.changes(1.0)
        assert seen[-1].members[0].exit_code == 5
        assert not (self.directory / "never").exists()

    def test_ended_while_nobody_watched(self, executor: Executor, connect: Callable[[], Executor]) -> None:
        """The exit record waits."""
        gangs = [
            self.gang(str(code), f"until [ -e go ]; do sleep 0.02; done; exit {code}") for code in (0, 3)
        ]
        executor.submit(gangs)
        pids = [self.wait(executor, gang, Phase.RUNNING).members[0].pid or 0 for gang in gangs]
        executor.close()
        (self.directory / "go").touch()
        until(lambda: not any(alive(pid) for pid in pids), "both have ended")
        second = self.open(connect())
        statuses = [self.wait(second, gang) for gang in gangs]
        assert [status.members[0].exit_code for status in statuses] == [0, 3]
        second.forget([gang.attempt for gang in gangs])
        second.close()
        third = self.open(connect())
        assert {status.phase for status in third.observe([gang.attempt for gang in gangs])} == {Phase.UNKNOWN}

    def test_supervisor_killed(self, executor: Executor) -> None:
        """What ran is ended and reported as lost, exit records stay, and work goes on."""
        ended = self.gang("0", "exit 3")
        self.run(executor, ended)
        running = self.gang("1", "echo $$ > main; setsid sleep 600 & echo $! > session; wait", slots=4)
        queued = self.gang("2", "true")
        executor.submit([running, queued])
        pids = [self.pid_in("main"), self.pid_in("session")]
        self.wait(executor, running, Phase.RUNNING)
        self.lose_supervisor(executor)
        news: dict[str, GangStatus] = {}
        deadline = time.monotonic() + PATIENCE_S
        while running.attempt not in news or news[running.attempt].phase is not Phase.EXITED:
            assert time.monotonic() < deadline
            news.update({status.attempt: status for status in executor.changes(1.0)})
        (member,) = news[running.attempt].members
        assert member.lost
        assert member.exit_code is None
        assert not any(alive(pid) for pid in pids)
        assert news[queued.attempt].phase is Phase.UNKNOWN
        assert self.wait(executor, ended).members[0].exit_code == 3
        assert self.run(executor, queued).members[0].exit_code == 0


def alive(pid: int) -> bool:
    """The process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Poll until something is so."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.01)


def shell_quoted(text: str) -> str:
    """For use in a script."""
    return "'" + text.replace("'", "'\\''") + "'"
