"""The contract of executors: one gang, its environment, and all members or none."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from trainmaster.executors.base import Executor, GangStatus, MemberRequest, Phase
from trainmaster.testing.executor_contract_tools import PATIENCE_S, SECRET, ContractTools, alive


class GangContract(ContractTools):
    """Starting and the exit records."""

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

    def test_directories_are_made_first(self, executor: Executor) -> None:
        """With those above them; ones that are there already stay as they are."""
        gang = self.gang("0", "ls -A a/b c > seen")
        place = Path(gang.directory)
        (place / "c").mkdir(parents=True)
        (place / "c" / "kept").touch()
        member = replace(gang.members[0], cwd=gang.directory)
        gang = replace(gang, members=(member,), directories=(str(place / "a/b"), str(place / "c")))
        assert self.run(executor, gang).members[0].exit_code == 0
        assert (place / "seen").read_text() == "a/b:\n\nc:\nkept\n"

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
