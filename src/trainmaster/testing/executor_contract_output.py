"""The contract of executors: what members write."""

from __future__ import annotations

from pathlib import Path

from trainmaster.executors.base import Executor, MemberRequest, Phase
from trainmaster.executors.telemetry.logs import read_log
from trainmaster.testing.executor_contract_tools import ContractTools
from trainmaster.testing.waits import until

#: 4 segments of 32 MiB and some notes.
LOG_BOUND_BYTES = 140 << 20


class OutputContract(ContractTools):
    """Logs."""

    def test_output_of_any_kind(self, executor: Executor) -> None:
        """Both streams, in order, as bytes."""
        request = self.gang("0", r"printf 'a\xff\x00b\r'; printf 'c\n' >&2; printf d")
        self.run(executor, request)
        assert self.log(request) == b"a\xff\x00b\rc\nd"

    def test_secrets_are_not_in_logs(self, executor: Executor) -> None:
        """Wherever the variable comes from, and in whatever pieces its value is printed."""
        script = 'printf "a $KEY b ${KEY:0:9}"; sleep 0.1; printf "${KEY:9} $OTHER c ${KEY:0:4}"'
        env = {"KEY": "hunter2-hunter3", "OTHER": "not-secret"}
        member = MemberRequest("worker-0", script, str(self.directory), env, secrets=("KEY", "NONE"))
        request = self.request("0", [member])
        self.run(executor, request)
        assert self.log(request) == b"a *** b *** not-secret c hunt"

    def test_output_is_there_at_once(self, executor: Executor) -> None:
        """A follower of a log sees a line when it was written, not when the member ends."""
        request = self.gang("0", "for i in {1..600}; do echo $i; sleep 0.1; done")
        executor.submit([request])
        until(lambda: self.log(request).startswith(b"1\n2\n"), "the first lines are there")
        executor.stop(request.attempt, 0.0)
        self.wait(executor, request)

    def test_output_wakes_up(self, executor: Executor) -> None:
        """A client that waits for changes is woken by output, once it has asked for it."""
        request = self.gang("0", "until [ -e go ]; do sleep 0.02; done; echo hello; sleep 600")
        assert executor.output() == []
        executor.submit([request])
        self.wait(executor, request, Phase.RUNNING)
        executor.changes(0.1)
        (self.directory / "go").touch()
        grew: list[tuple[str, str]] = []
        turns = 0
        while not grew:
            executor.changes(60.0)  # ended by the output, not by its time
            grew = executor.output()
            turns += 1
            assert turns < 10, "many returns without a word"
        assert grew == [(request.attempt, "worker-0")]
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
