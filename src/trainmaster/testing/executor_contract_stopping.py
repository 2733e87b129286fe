"""The contract of executors: how gangs are stopped, and that nothing of them is left."""

from __future__ import annotations

import time

from trainmaster.executors.base import Executor, MemberRequest, Phase
from trainmaster.testing.executor_contract_tools import ContractTools, alive, shell_quoted
from trainmaster.testing.waits import until


class StoppingContract(ContractTools):
    """Stopping."""

    def test_servers_outlive_those_they_serve(self, executor: Executor) -> None:
        """A member that saves its work on SIGTERM may need its parameter server for it."""
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
        executor.stop(request.attempt, 0.2)
        (member,) = self.wait(executor, request).members  # with the grace of before it would take minutes
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
