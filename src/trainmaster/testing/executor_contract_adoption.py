"""The contract of executors: control processes come and go, and whatever starts the members dies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from trainmaster.executors.base import Executor, GangStatus, Phase
from trainmaster.spec.errors import ExecutorError, LeaseLostError
from trainmaster.testing.executor_contract_tools import PATIENCE_S, ContractTools, alive
from trainmaster.testing.waits import until


class AdoptionContract(ContractTools):
    """Coming and going."""

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

    def test_an_earlier_driver_is_refused(self, connect: Callable[[], Executor]) -> None:
        """A client that slept while another took the run over stops, starts and forgets nothing any more."""
        token = time.time_ns()  # larger than those of the tests before, which may have had the same node
        first = self.open(connect(), token=token)
        running = self.gang("0", "until [ -e go ]; do sleep 0.02; done")
        held, late = self.gang("1", "touch never", hold=True), self.gang("2", "touch never")
        first.submit([running, held])
        self.wait(first, running, Phase.RUNNING)
        self.wait(first, held, Phase.GRANTED)
        second = self.open(connect(), token=token + 1)
        acts: list[Callable[[], None]] = [
            lambda: first.stop(running.attempt, 0.0),
            lambda: first.launch(held.attempt, {}),
            lambda: first.submit([late]),
            lambda: first.forget([running.attempt]),
        ]
        for act in acts:
            with contextlib.suppress(LeaseLostError, ExecutorError):
                act()
        with pytest.raises(LeaseLostError):
            self.open(connect(), token=token)
        self.open(connect(), token=token + 1)  # the same driver, on another way
        self.open(connect())  # a client that drives nothing
        attempts = [running.attempt, held.attempt, late.attempt]
        phases = [status.phase for status in second.observe(attempts)]
        assert phases == [Phase.RUNNING, Phase.UNKNOWN, Phase.UNKNOWN]
        (self.directory / "go").touch()
        assert self.wait(second, running).members[0].exit_code == 0
        assert not (self.directory / "never").exists()

    def test_an_earlier_driver_is_refused_by_the_next_supervisor_too(
        self, connect: Callable[[], Executor]
    ) -> None:
        """Which client may speak is not forgotten by a supervisor that is killed."""
        token = time.time_ns()  # larger than those of the tests before, which may have had the same node
        first = self.open(connect(), token=token)
        self.run(first, self.gang("0", "true"))
        first.close()
        second = self.open(connect(), token=token + 1)
        self.run(second, self.gang("1", "true"))
        self.lose_supervisor(second)
        with pytest.raises(LeaseLostError):
            self.open(connect(), token=token)
        last = self.gang("2", "exit 4")
        second.submit([last])

        def is_over() -> bool:
            phase = second.observe([last.attempt])[0].phase
            if phase is Phase.UNKNOWN:  # the loss was noticed later: controllers submit again, too
                second.submit([last])
            return phase is Phase.EXITED

        until(is_over, "the next supervisor has run a gang", PATIENCE_S)
        assert self.wait(second, last).members[0].exit_code == 4

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
