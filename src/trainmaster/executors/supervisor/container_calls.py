"""Asks docker or podman to stop containers, and to be rid of them.

Signals to the engine's client would not do: killing it leaves its container alive, and docker's gives up
its container when it gets a third SIGTERM. Each call is a process of its own, so that an engine that does not
answer holds up nothing else.
"""

from __future__ import annotations

import os
import signal
import time

from trainmaster.executors.supervisor.processes import unix_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trainmaster.executors.supervisor.gang_processes import GangProcesses, MemberProcess
    from trainmaster.executors.supervisor.members import Spawner

#: An engine that takes longer will not answer any more.
PATIENCE_S = 30.0
#: A container that is just starting may miss the first SIGTERM; the second one does nothing.
REMIND_S = 0.5
#: A client that was killed may have asked for its container just before, and the engine is making it.
MAKING_S = 0.5
_YOUNG_S = 5.0
_TRIES = 3


class EngineCalls:
    """The calls that are under way, and what came of the last ones."""

    def __init__(self, home_id: str, spawner: Spawner, note: Callable[[str], None]) -> None:
        self._home_id = home_id
        self._spawner = spawner
        self._note = note
        self._asking: dict[int, float] = {}
        self._removing: dict[int, tuple[str, float]] = {}
        self._killed: set[str] = set()  # attempts
        # how many removals after the end of every member, by attempt, and when to think about the next one
        self._tries: dict[str, tuple[int, float]] = {}
        self._gone: set[str] = set()  # attempts whose newest removal succeeded

    @property
    def pids(self) -> Iterable[int]:
        """Processes of the calls: they belong to no gang."""
        return [*self._asking, *self._removing]

    def ask(self, gang: GangProcesses, members: list[str]) -> None:
        """SIGTERM to all that runs in the containers of these members."""
        from trainmaster.executors.containers import command_line

        assert gang.engine is not None
        now = time.monotonic()
        gang.remind_at = now + REMIND_S
        for pid, begun_at in self._asking.items():
            if now - begun_at > PATIENCE_S:
                os.kill(pid, signal.SIGKILL)  # it was not reaped yet, so it is still ours
        for name in members:  # one that is not there would keep podman from the others
            pid = self._call(gang, command_line.stop_command(gang.engine, self._name(gang, name)))
            if pid:
                self._asking[pid] = now

    def is_killing(self, gang: GangProcesses) -> bool:
        """Kill the containers of a gang, if it has any; True until the engine has answered."""
        if gang.engine is None:
            return False
        if gang.attempt not in self._killed:
            self._killed.add(gang.attempt)
            self._remove(gang)
        return self._is_removing(gang)

    def is_over(self, gang: GangProcesses) -> bool:
        """Whether no container of a gang without processes is left; asks the engine if that is in doubt."""
        if gang.engine is None:
            return True
        holds_network = gang.engine.get("holds_network", False)
        if (
            not gang.lost
            and not gang.killed
            and not holds_network
            and all(member.exit_code == 0 for member in gang.members)
        ):
            return True
        if self._is_removing(gang):
            return False
        now = time.monotonic()
        tries, not_before = self._tries.get(gang.attempt, (0, 0.0))
        if now < not_before:
            return False
        cut_short = any(map(_was_cut_short, gang.members))
        if tries < 1 + cut_short or (tries < _TRIES and gang.attempt not in self._gone):
            self._tries[gang.attempt] = (tries + 1, now + MAKING_S if cut_short and not tries else 0.0)
            self._remove(gang)
            return False
        if gang.attempt not in self._gone:
            self._note(f"{gang.attempt}: cannot remove its containers: see `{gang.engine['kind']} ps -a`")
        self._tries.pop(gang.attempt, None)
        self._gone.discard(gang.attempt)
        self._killed.discard(gang.attempt)
        return True

    def tidy(self, gang: GangProcesses) -> None:
        """Remove the files of containers that have ended."""
        if gang.scratch:
            try:
                pid = self._spawner.call(["/bin/rm", "-rf", "--", *gang.scratch], {})
            except OSError as error:
                self._note(f"{gang.attempt}: cannot remove {gang.scratch[0]}: {error.strerror}")
            else:
                self._asking[pid] = time.monotonic()

    def reaped(self, pid: int, wait_status: int) -> None:
        """A process that is no member has ended; it may be one of ours."""
        self._asking.pop(pid, None)
        attempt, _ = self._removing.pop(pid, ("", 0.0))
        if attempt and wait_status == 0:
            self._gone.add(attempt)

    def _is_removing(self, gang: GangProcesses) -> bool:
        now = time.monotonic()
        found = False
        for pid, (attempt, begun_at) in self._removing.items():
            if attempt == gang.attempt:
                found = True
                if now - begun_at > PATIENCE_S:
                    os.kill(pid, signal.SIGKILL)
        return found

    def _remove(self, gang: GangProcesses) -> None:
        from trainmaster.executors.containers import command_line

        assert gang.engine is not None
        self._gone.discard(gang.attempt)
        names = [self._name(gang, member.name) for member in gang.members]
        if gang.engine.get("holds_network"):
            names.append(self._name(gang, command_line.NETWORK))
        pid = self._call(gang, command_line.remove_command(gang.engine, names))
        if pid:
            self._removing[pid] = (gang.attempt, time.monotonic())

    def _name(self, gang: GangProcesses, member: str) -> str:
        from trainmaster.executors.containers import command_line

        return command_line.container_name(self._home_id, gang.attempt, member)

    def _call(self, gang: GangProcesses, command: list[str]) -> int:
        """Process id of the call, 0 if it cannot be started."""
        assert gang.engine is not None
        try:
            return self._spawner.call(command, dict(gang.engine["settings"]))
        except OSError as error:
            self._note(f"{gang.attempt}: cannot start {command[0]}: {error.strerror}")
            return 0


def _was_cut_short(member: MemberProcess) -> bool:
    """Its client was killed when its container may not have been there yet."""
    return member.signal is not None and unix_s() - (member.started_at or 0.0) < _YOUNG_S
