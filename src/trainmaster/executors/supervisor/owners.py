"""Which processes belong to which gang, and the signals that they get."""
# ruff: noqa: SIM105 - contextlib would slow down the supervisor's start

from __future__ import annotations

import os
import signal
import time

from trainmaster.executors.supervisor import processes
from trainmaster.executors.supervisor.container_calls import REMIND_S
from trainmaster.executors.supervisor.gang_processes import RUNNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmaster.executors.supervisor.container_calls import EngineCalls
    from trainmaster.executors.supervisor.gang_processes import GangProcesses

_KILL_PAUSE_MAX_S = 1.0
#: The attempt of processes that belong to none.
_NOBODY = "\0"


class Owners:
    """Finds the processes of gangs; each call looks through ``/proc`` once."""

    def __init__(
        self,
        home_id: str,
        gangs: Mapping[str, GangProcesses],
        members: Mapping[int, tuple[GangProcesses, int]],
        engines: EngineCalls,
        subreaper: bool,
    ) -> None:
        """Look at ``gangs`` and their living ``members`` as they will be then."""
        self._engines = engines
        self._home_id = home_id
        self._gangs = gangs
        self._members = members
        self._subreaper = subreaper

    def processes_of(self, gangs: list[GangProcesses]) -> dict[str, list[int]]:
        """Process ids by attempt."""
        table = processes.scan()
        members = {pid: gang.attempt for pid, (gang, _) in self._members.items()}
        members.update(dict.fromkeys(self._engines.pids, _NOBODY))
        everywhere = not self._subreaper or any(gang.lost for gang in gangs)
        for gang in gangs:
            if gang.lost:
                members.update(_recorded(gang, table))
        owners = processes.owners(table, members, self._home_id, everywhere, self._groups())
        found: dict[str, list[int]] = {gang.attempt: [] for gang in gangs}
        for pid, attempt in owners.items():
            if attempt in found:
                found[attempt].append(pid)
            elif not attempt and (owner := self._last_candidate(gangs, table[pid].start_ticks)):
                found[owner].append(pid)
        return found

    def ask(self, gang: GangProcesses) -> None:
        """SIGTERM; members that only serve the others get it once those have ended.

        A chief that is asked to stop saves what its parameter servers hold: they must still be there.
        """
        led = any(member.alive and member.essential for member in gang.members)
        if gang.engine is not None:
            names = [each.name for each in gang.members if each.alive and (each.essential or not led)]
            self._engines.ask(gang, names)
            return
        if gang.repeats:  # what starts a container tells those inside; what mounts its image is to stay
            gang.remind_at = time.monotonic() + REMIND_S
            for member in gang.members:
                if member.pid and member.alive and (member.essential or not led):
                    _signal(member.pid, signal.SIGTERM)
            return
        pids = self.processes_of([gang])[gang.attempt]
        if led:
            servers = [member.pid or 0 for member in gang.members if member.alive and not member.essential]
            if servers:
                served = processes.descent(processes.scan(), servers)
                pids = [pid for pid in pids if pid not in served]
        ask(gang, pids)

    def press(self, gang: GangProcesses, now: float) -> None:
        """Do what is due about the end of a gang that was asked to end."""
        if gang.kill_at is None:
            return
        if now >= gang.kill_at:
            gang.killed = True
            if not self._engines.is_killing(gang):
                _kill(self.processes_of([gang])[gang.attempt])
            gang.kill_at = now + gang.kill_pause_s  # again: it may have forked in that moment
            gang.kill_pause_s = min(gang.kill_pause_s * 2, _KILL_PAUSE_MAX_S)
        elif gang.repeats and now >= gang.remind_at:
            self.ask(gang)

    def _groups(self) -> dict[int, str]:
        """Attempts by the group that only their processes have; one that two share says nothing."""
        if os.geteuid() != 0:
            return {}
        found: dict[int, str] = {}
        for attempt in self._gangs:
            group = processes.attempt_group(attempt, self._home_id)
            found[group] = "" if group in found else attempt
        return found

    def _last_candidate(self, gangs: list[GangProcesses], start_ticks: int) -> str:
        """Whose an orphan is that has no marker (``env -i``): the last one's that can have started it."""
        for gang in self._gangs.values():
            if gang.phase == RUNNING and not gang.sweeping:
                first = min((member.start_ticks for member in gang.members if member.pid), default=0)
                if first <= start_ticks:
                    return ""
        return next((gang.attempt for gang in gangs if gang.sweeping), "")


def ask(gang: GangProcesses, pids: Iterable[int]) -> None:
    """SIGTERM, once for each process of a gang; what helps its containers to their end is left alone."""
    for pid in pids:
        if gang.engine is None and pid not in gang.asked:
            gang.asked.add(pid)
            writes = gang.stacks and processes.writes_stacks(pid)
            _signal(pid, signal.SIGABRT if writes else signal.SIGTERM)


def _kill(pids: Iterable[int]) -> None:
    """SIGKILL."""
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # gone meanwhile, or another user's (sudo)


def _recorded(gang: GangProcesses, table: processes.Table) -> dict[int, str]:
    """Members that the journal knows and that still live; a process id that was used again does not count."""
    found = {}
    for member in gang.members:
        process = table.get(member.pid or 0)
        if process is not None and process.start_ticks == member.start_ticks:
            found[process.pid] = gang.attempt
    return found
