"""The life of gangs on this node: granted, started, watched, stopped, cleaned up after."""

from __future__ import annotations

import os
import time

from trainmaster.executors.gangs.who_ends import ALL, SERVERS, who_ends
from trainmaster.executors.supervisor.container_calls import EngineCalls
from trainmaster.executors.supervisor.gang_processes import (
    EXITED,
    GRANTED,
    QUEUED,
    RUNNING,
    UNKNOWN,
    GangProcesses,
    MemberProcess,
)
from trainmaster.executors.supervisor.members import explain, start_member
from trainmaster.executors.supervisor.oom import OomWatch
from trainmaster.executors.supervisor.owners import Owners, ask
from trainmaster.executors.supervisor.processes import has_orphans, unix_s
from trainmaster.executors.supervisor.slots import Slots, Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from resource import struct_rusage
    from typing import Any

    from trainmaster.executors.supervisor.clients import DriverClient
    from trainmaster.executors.supervisor.journal import Journal
    from trainmaster.executors.supervisor.members import Spawner
    from trainmaster.executors.supervisor.outputs import Outputs

#: What a member leaves behind when it ended gets at most this long between SIGTERM and SIGKILL.
LEFTOVER_GRACE_S = 2.0
#: How often to look whether left-over processes are gone, beside when we are told.
SWEEP_PAUSE_S = 0.05


class GangManager:
    """All gangs that were not forgotten.

    Attributes:
        gangs: by attempt.
        grantable: something changed, so that `grant` may have something to do.
        oom: knows which processes the kernel has killed.
        on_exit: told the process, what it used, and the time, when a member has ended.
    """

    def __init__(
        self,
        home_id: str,
        journal: Journal,
        outputs: Outputs,
        spawner: Spawner,
        changed: Callable[[GangProcesses], None],
        note: Callable[[str], None],
        subreaper: bool = True,
    ) -> None:
        self.gangs: dict[str, GangProcesses] = {}
        self.slots = Slots()
        self.grantable = False
        self._home_id = home_id
        self._journal = journal
        self._outputs = outputs
        self._spawner = spawner
        self._changed = changed
        self._note = note
        self._subreaper = subreaper
        self._members: dict[int, tuple[GangProcesses, int]] = {}
        self._running = 0
        self._closing: dict[str, GangProcesses] = {}
        self._sweep_at: float | None = None
        self.oom = OomWatch()
        self.on_exit: Callable[[int, struct_rusage, float], None] = lambda *_: None
        self._engines = EngineCalls(home_id, spawner, note)
        self._owners = Owners(home_id, self.gangs, self._members, self._engines, subreaper)

    # -- what clients ask for

    def submit(self, client: DriverClient, requests: list[dict[str, Any]]) -> None:
        """Queue gangs that are not known yet."""
        for request in requests:
            if request["attempt"] in self.gangs:
                continue
            gang = GangProcesses.from_request(request, client)
            self.gangs[gang.attempt] = gang
            gpus = sum(member.gpus for member in gang.members)
            offered = self.slots.offers_gpus(gang.run)
            if gpus > offered:
                self._refuse(
                    gang, f"needs {gpus} GPU{'s' * (gpus != 1)}, this node offers {offered}; ask for fewer"
                )
                continue
            ticket = Ticket(
                gang.attempt, gang.run, request["slots"], request["group"], request["group_slots"], gpus
            )
            self.slots.add(ticket)
            self.grantable = True

    def launch(self, attempt: str, env: dict[str, dict[str, str]]) -> None:
        """Start a gang that holds its slots."""
        gang = self.gangs.get(attempt)
        if gang is None or gang.phase != GRANTED:
            return
        for member in gang.members:
            member.env.update(env.get(member.name, {}))
        self._start(gang)

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False, why: str = "") -> None:
        """Un-queue a gang or ask its processes to end; ``why`` gets into the logs of its members."""
        gang = self.gangs.get(attempt)
        if gang is None:
            return
        if gang.phase in (QUEUED, GRANTED):
            self._drop(gang)
        elif gang.phase == RUNNING:
            gang.stacks = gang.stacks or stacks
            for member in gang.members if why else ():
                if member.output is not None:
                    member.output.log.say(why)
            self._terminate(gang, grace_s)

    def forget(self, attempts: Iterable[str]) -> None:
        """Drop the exit records of gangs that ended."""
        forgotten = [
            attempt
            for attempt in dict.fromkeys(attempts)
            if (gang := self.gangs.get(attempt)) is not None and gang.phase == EXITED
        ]
        for attempt in forgotten:
            del self.gangs[attempt]
        if forgotten:
            self._journal.add({"r": "forget", "attempts": forgotten})
            self.flush()
            if self._journal.is_large():
                self._compact()

    def drop_client(self, client: DriverClient) -> None:
        """Its control process is gone: what did not start yet never will."""
        for gang in list(self.gangs.values()):
            if gang.client is client:
                gang.client = None
                if gang.phase in (QUEUED, GRANTED):
                    self._drop(gang)

    def shut_down(self, grace_s: float) -> None:
        """Stop everything."""
        for gang in list(self.gangs.values()):
            self.stop(gang.attempt, min(grace_s, gang.grace_s))

    @property
    def busy(self) -> bool:
        """Processes of a gang live."""
        return self._running > 0

    # -- starting

    def grant(self) -> None:
        """Start, or let hold, all gangs for which there are slots now."""
        self.grantable = False
        while granted := self.slots.grant():
            for ticket in granted:
                gang = self.gangs[ticket.key]
                gang.allot_gpus(ticket.gpu_ids)
                if not gang.hold:
                    self._start(gang)
                    continue
                try:
                    gang.hold_ports(self._ports())
                except OSError as error:
                    gang.release_ports()
                    self._refuse(gang, f"no free loopback port: {error.strerror}")
                    continue
                gang.phase = GRANTED
                self._changed(gang)

    def _ports(self) -> set[int]:
        """Those of gangs that were granted, also of launched ones: they may not listen yet."""
        return {port for gang in self.gangs.values() if gang.phase != EXITED for port in gang.ports}

    def _start(self, gang: GangProcesses) -> None:
        gang.release_ports()
        base = gang.client.env if gang.client else {}
        gang.client = None
        try:
            gang.find_engine()
        except (OSError, ValueError, KeyError) as error:
            self._refuse(gang, f"how containers are started here is not known: {error}")
            return
        gang.plan_enclosure(self._home_id)
        try:
            # First of all: the supervisor after us must know that there may be processes of it.
            self._journal.write(gang.start_record())
        except OSError as error:
            self._refuse(gang, f"cannot write {self._journal.path}: {error.strerror}; make room there")
            return
        try:
            gang.open_enclosure()
        except OSError as error:
            self._refuse(gang, f"it cannot be kept apart from others: {error.strerror}: {error.filename}")
            return
        gang.phase = RUNNING
        self._running += 1
        self.oom.look()
        failed: MemberProcess | None = None
        for index, member in enumerate(gang.members):
            if failed is None:
                try:
                    start_member(gang, member, base, self._outputs, self._spawner)
                    self._members[member.pid or 0] = (gang, index)
                except OSError as error:
                    failed = member
                    member.error = explain(error)
            else:
                member.error = f"not started, because {failed.name} could not be: {failed.error}"
            member.script = ""
            member.env = {}
        if gang.enclosure is not None:
            gang.enclosure.close()
        self._journal.add(gang.pids_record())
        if failed is not None:
            now = unix_s()
            for index, member in enumerate(gang.members):
                if member.error:
                    member.ended_at = now
                    self._journal.add(gang.exit_record(index))
            if any(member.alive for member in gang.members):
                self._terminate(gang, min(gang.grace_s, LEFTOVER_GRACE_S))
            else:
                self._finish(gang)
        self._changed(gang)
        self.flush()

    def _refuse(self, gang: GangProcesses, reason: str) -> None:
        """It cannot be started at all: every member gets an exit record that says why."""
        self.slots.remove(gang.attempt)
        self.grantable = True
        now = unix_s()
        for member in gang.members:
            member.error, member.ended_at = reason, now
        gang.client = None
        gang.phase = EXITED
        gang.ended_at = now
        for record in gang.records():
            self._journal.add(record)
        self._changed(gang)
        self.flush()

    def _drop(self, gang: GangProcesses) -> None:
        gang.release_ports()
        self.slots.remove(gang.attempt)
        self.grantable = True
        del self.gangs[gang.attempt]
        gang.phase = UNKNOWN
        self._changed(gang)

    # -- ending

    def reap(self) -> None:
        """Take the exits of all children that have ended."""
        touched: dict[str, GangProcesses] = {}
        strays = False
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if not pid:
                break
            found = self._members.pop(pid, None)
            if found is None:
                strays = True
                self._engines.reaped(pid, status)
                continue
            gang, index = found
            self.on_exit(pid, usage, unix_s())
            self._exited(gang, index, status)
            touched[gang.attempt] = gang
        for gang in touched.values():
            self._after_exit(gang)
        if self._sweep_at is not None and (touched or strays):
            self.sweep(time.monotonic())
        self.flush()

    def _exited(self, gang: GangProcesses, index: int, status: int) -> None:
        member = gang.members[index]
        member.record_exit(status)
        member.oom = gang.took_too_much or (not gang.killed and self.oom.has_killed(member, gang.enclosure))
        if member.output is not None:
            self._outputs.drain(member.output)
        self._journal.add(gang.exit_record(index))

    def _after_exit(self, gang: GangProcesses) -> None:
        self._changed(gang)
        if not any(member.alive for member in gang.members):
            self._finish(gang)
            return
        ends = who_ends([(each, each.essential) for each in gang.members], asked=gang.kill_at is not None)
        if ends == ALL:
            self._terminate(gang, gang.grace_s)
        elif ends == SERVERS and not gang.killed:
            self._owners.ask(gang)

    def _terminate(self, gang: GangProcesses, grace_s: float) -> None:
        now = time.monotonic()
        if gang.kill_at is not None:
            gang.kill_at = min(gang.kill_at, now + grace_s)
            return
        gang.kill_at = now + grace_s
        self._closing[gang.attempt] = gang
        for member in gang.members:
            member.stopped = member.stopped or member.alive
        if grace_s > 0:
            self._owners.ask(gang)

    def took_too_much(self, gang: GangProcesses) -> None:
        """End a gang that has more memory than it may."""
        if gang.took_too_much or gang.kill_at is not None:
            return
        gang.took_too_much = True
        self._terminate(gang, 0.0)
        for member in gang.members:  # that is why they end, and not because of others
            member.stopped = False

    def _finish(self, gang: GangProcesses) -> None:
        """Every member has an exit record; the gang ends when no process of it is left."""
        if not gang.lost and self._subreaper and not has_orphans() and self._engines.is_over(gang):
            self._end(gang)
            return
        gang.sweeping = True
        self._closing[gang.attempt] = gang
        self._sweep_at = time.monotonic()

    def sweep(self, now: float) -> None:
        """End the gangs that have no processes any more; ask those that are left to go."""
        gangs = [gang for gang in self._closing.values() if gang.sweeping]
        self._sweep_at = now + SWEEP_PAUSE_S if gangs else None
        if not gangs:
            return
        processes = self._owners.processes_of(gangs)
        for gang in gangs:
            if not processes[gang.attempt]:
                if self._engines.is_over(gang):
                    self._end(gang)
                continue
            if gang.kill_at is None:
                gang.kill_at = now + min(gang.grace_s, LEFTOVER_GRACE_S)
            ask(gang, processes[gang.attempt])

    def _end(self, gang: GangProcesses) -> None:
        now = unix_s()
        for index, member in enumerate(gang.members):
            if member.output is not None:
                self._outputs.close(member.output)
                member.lost_log_bytes = member.output.log.lost_bytes
                member.output = None
            is_of_the_killed = member.ended_at is None  # only those of a supervisor that was killed
            if is_of_the_killed:
                member.lost, member.ended_at = True, now
            if is_of_the_killed or member.lost_log_bytes:
                self._journal.add(gang.exit_record(index))
        gang.phase = EXITED
        gang.ended_at = max((member.ended_at or now for member in gang.members), default=now)
        gang.ports = ()
        if gang.enclosure is not None:
            gang.enclosure.remove()
        self._engines.tidy(gang)
        self._running -= 1
        self._closing.pop(gang.attempt, None)
        self.slots.remove(gang.attempt)
        self.grantable = True
        self._journal.add(gang.end_record())
        self._changed(gang)

    def tick(self, now: float) -> float | None:
        """Do what is due; seconds until the next thing is."""
        for gang in list(self._closing.values()):
            self._owners.press(gang, now)
        if self._sweep_at is not None and now >= self._sweep_at:
            self.sweep(now)
            self.flush()
        due = [at for gang in self._closing.values() if (at := gang.due_at) is not None]
        if self._sweep_at is not None:
            due.append(self._sweep_at)
        return max(0.0, min(due) - now) if due else None

    def living(self) -> dict[int, tuple[GangProcesses, int]]:
        """Members that run now, by process id."""
        return self._members

    def adopt(self, attempts: dict[str, list[dict[str, Any]]]) -> None:
        """Take over what an earlier supervisor left: its records, and processes to be ended."""
        for records in attempts.values():
            gang = GangProcesses.from_records(records)
            self.gangs[gang.attempt] = gang
            if gang.phase == RUNNING:
                self._note(f"{gang.attempt}: the supervisor that started it was killed; ending what is left")
                gang.lost = True
                self._running += 1
                self._finish(gang)

    def close(self) -> None:
        """Leave a journal of what is not forgotten, and no more."""
        self._compact()

    def flush(self) -> None:
        """Write the journal."""
        try:
            self._journal.flush()
        except OSError as error:
            self._note(f"cannot write {self._journal.path}: {error.strerror}; will try again")

    def _compact(self) -> None:
        try:
            self._journal.rewrite([record for gang in self.gangs.values() for record in gang.records()])
        except OSError as error:
            self._note(f"cannot rewrite {self._journal.path}: {error.strerror}")
