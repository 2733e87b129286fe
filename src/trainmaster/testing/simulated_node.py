"""A node in simulated time: slots, gangs, a supervisor that can be killed, records that survive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.base import GangRequest, GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.who_ends import ALL, SERVERS, who_ends
from trainmaster.testing.simulated_world import World


class ConnectedExecutor(Protocol):
    """An executor that is connected to the node."""

    def tell(self, status: GangStatus) -> None:
        """The node has news."""


@dataclass(slots=True)
class Ending:
    """How a member will end if it is not stopped."""

    after_s: float
    exit_code: int | None = 0
    signal: int | None = None
    oom: bool = False
    error: str = ""


_KILLED = Ending(0.0, None, 9)


@dataclass(slots=True)
class SimulatedMember:
    """One process of a gang."""

    name: str
    essential: bool
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    lost: bool = False
    oom: bool = False
    error: str = ""
    is_gone: bool = False

    def status(self) -> MemberStatus:
        """As the executor tells it."""
        pid = None if self.started_at is None else 1
        return MemberStatus(
            self.name, pid, self.started_at, self.ended_at, self.exit_code, self.signal,
            self.stopped, self.lost, self.oom, self.error,
        )  # fmt: skip


@dataclass(slots=True)
class SimulatedGang:
    """One attempt on the node."""

    request: GangRequest
    client: ConnectedExecutor | None
    phase: Phase = Phase.QUEUED
    members: list[SimulatedMember] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float | None = None
    stopping: bool = False
    are_servers_asked: bool = False
    orphaned: bool = False

    def status(self) -> GangStatus:
        """As the executor tells it."""
        request = self.request
        if self.phase is Phase.QUEUED:
            return GangStatus(request.attempt, self.phase)
        ports = {member.name: (29500,) for member in request.members} if self.phase is Phase.GRANTED else {}
        members = tuple(member.status() for member in self.members)
        return GangStatus(request.attempt, self.phase, members, ports, self.started_at, self.ended_at)


class SimulatedNode:
    """Slots and gangs of one node.

    Args:
        world: its time.
        slots: how many there are.
        behave: how the members of an attempt will end: (attempt, members) -> one each.
        on_start: called when the members of an attempt start; checks that they may.

    Attributes:
        token: the largest fencing token of a driver that has connected.
        won: whether an attempt's essential members all ended well by themselves: the truth.
        was_lost: its records were lost at least once.
    """

    def __init__(
        self,
        world: World,
        slots: int,
        behave: Callable[[GangRequest], list[Ending]],
        on_start: Callable[[str], None],
    ) -> None:
        self.world = world
        self.slots = slots
        self.gangs: dict[str, SimulatedGang] = {}
        self.clients: list[ConnectedExecutor] = []
        self.epoch = 0
        self.is_up = True
        self.token = 0
        self.was_lost = False
        self.won: dict[str, bool] = {}
        self._behave = behave
        self._on_start = on_start

    # --- what clients ask for ------------------------------------------------------------------

    def submit(self, client: ConnectedExecutor, request: GangRequest) -> None:
        """Queue a gang that is not known."""
        if request.attempt not in self.gangs:
            members = [SimulatedMember(member.name, member.essential) for member in request.members]
            self.gangs[request.attempt] = SimulatedGang(request, client, members=members)
            self.grant()

    def launch(self, attempt: str) -> None:
        """Start a gang that holds its slots."""
        gang = self.gangs.get(attempt)
        if gang is not None and gang.phase is Phase.GRANTED:
            self._start(gang)

    def stop(self, attempt: str, grace_s: float) -> None:
        """Un-queue a gang or ask its members to end."""
        gang = self.gangs.get(attempt)
        if gang is None or gang.phase is Phase.EXITED:
            return
        if gang.phase is Phase.RUNNING:
            self._terminate(gang, grace_s)
        else:
            self._drop(gang)

    def forget(self, attempt: str) -> None:
        """Drop the records of a gang that has ended."""
        gang = self.gangs.get(attempt)
        if gang is not None and gang.phase is Phase.EXITED:
            del self.gangs[attempt]

    def status(self, attempt: str) -> GangStatus:
        """What is known of an attempt."""
        gang = self.gangs.get(attempt)
        return gang.status() if gang else GangStatus(attempt, Phase.UNKNOWN)

    def drop_client(self, client: ConnectedExecutor) -> None:
        """A control process is gone: what of its gangs did not start yet never will."""
        if client in self.clients:
            self.clients.remove(client)
        for gang in list(self.gangs.values()):
            if gang.client is client and gang.phase in (Phase.QUEUED, Phase.GRANTED):
                self._drop(gang)

    # --- what befalls it -----------------------------------------------------------------------

    def kill_supervisor(self) -> None:
        """``kill -9`` of the supervisor: what did not start is gone, what runs is orphaned."""
        self.world.note("the supervisor is killed")
        self._break()
        for attempt, gang in list(self.gangs.items()):
            if gang.phase in (Phase.QUEUED, Phase.GRANTED):
                del self.gangs[attempt]
            elif gang.phase is Phase.RUNNING:
                gang.orphaned = True

    def lose(self) -> None:
        """The node is gone with all its processes and records; an empty one takes its place."""
        self.world.note("the node is lost")
        self._break()
        self.was_lost = True
        for gang in self.gangs.values():
            gang.orphaned = True  # what is due for its members does not happen any more
        self.gangs.clear()

    def preempt(self) -> None:
        """The node is told to go: its supervisor stops everything."""
        self.world.note("the node is preempted")
        for gang in list(self.gangs.values()):
            self.stop(gang.request.attempt, 2.0)

    def revive(self) -> None:
        """Somebody needs a supervisor: the new one ends what the old one left."""
        if self.is_up:
            return
        self.is_up = True
        for gang in self.gangs.values():
            if gang.phase is Phase.RUNNING and gang.orphaned:
                self.world.after(self.world.rng.uniform(0, 3), lambda gang=gang: self._sweep(gang))  # type: ignore[misc]

    def _break(self) -> None:
        self.is_up = False
        self.epoch += 1
        self.clients.clear()

    def _sweep(self, gang: SimulatedGang) -> None:
        if gang.phase is not Phase.RUNNING or self.gangs.get(gang.request.attempt) is not gang:
            return
        if not self.is_up:
            return  # killed again: its successor sweeps
        for member in gang.members:
            if member.ended_at is None:
                member.lost, member.ended_at = True, self.world.now
        self._end(gang)

    def end_members(self, signal: int) -> None:
        """The machine is switched off: it ends all processes, and the supervisor still tells how."""
        for gang in list(self.gangs.values()):
            for member in gang.members if gang.phase is Phase.RUNNING else ():
                self._exit(gang, member, Ending(0.0, None, signal))

    def react(self, attempt: str, choose: Callable[[], tuple[float, Ending | None]]) -> None:
        """Members here see that others of their gang, which may have other supervisors, are gone."""
        for name, gang in self.gangs.items():
            for member in gang.members if name.partition("#")[0] == attempt else ():
                delay_s, ending = choose()
                if member.started_at is not None and member.ended_at is None and ending is not None:
                    self.world.after(
                        delay_s,
                        lambda gang=gang, member=member, ending=ending: self._exit(gang, member, ending),  # type: ignore[misc]
                    )

    # --- the life of a gang ----------------------------------------------------------------------

    def used(self) -> int:
        """Slots that are taken."""
        return sum(g.request.slots for g in self.gangs.values() if g.phase in (Phase.GRANTED, Phase.RUNNING))

    def grant(self) -> None:
        """Give free slots to the gangs that wait."""
        used = self.used()
        group_used: dict[str, int] = {}
        for gang in self.gangs.values():
            if gang.phase in (Phase.GRANTED, Phase.RUNNING):
                group_used[gang.request.group] = group_used.get(gang.request.group, 0) + gang.request.slots
        for gang in list(self.gangs.values()):
            need, group = gang.request.slots, gang.request.group
            in_group = group_used.get(group, 0)
            if gang.phase is not Phase.QUEUED or (used and used + need > self.slots):
                continue
            if in_group and in_group + need > gang.request.group_slots:
                continue
            used += need
            group_used[group] = in_group + need
            if gang.request.hold:
                gang.phase = Phase.GRANTED
                self._changed(gang.request.attempt)
            else:
                self._start(gang)

    def _start(self, gang: SimulatedGang) -> None:
        attempt = gang.request.attempt
        self.world.note(f"{attempt} starts")
        self._on_start(attempt)
        gang.client = None
        gang.phase = Phase.RUNNING
        gang.started_at = self.world.now
        endings = self._behave(gang.request)
        broken = next((ending.error for ending in endings if ending.error), "")
        for member, ending in zip(gang.members, endings, strict=True):
            if broken:
                member.error = broken
                member.ended_at = self.world.now
                continue
            member.started_at = self.world.now
            self.world.after(
                ending.after_s,
                lambda member=member, ending=ending: self._exit(gang, member, ending),  # type: ignore[misc]
            )
        self._changed(attempt)
        if broken:
            self._end(gang)

    def _exit(self, gang: SimulatedGang, member: SimulatedMember, ending: Ending) -> None:
        if member.ended_at is not None or member.is_gone or gang.orphaned:
            return
        member.ended_at = self.world.now
        member.exit_code, member.signal, member.oom = ending.exit_code, ending.signal, ending.oom
        if all(other.ended_at is not None for other in gang.members):
            self._end(gang)
            return
        self._changed(gang.request.attempt)
        rows = [(other.status(), other.essential) for other in gang.members]
        ends = who_ends(rows, asked=gang.stopping)
        if ends == ALL:
            self._terminate(gang, gang.request.grace_s)
        elif ends == SERVERS and not gang.are_servers_asked:
            gang.are_servers_asked = True
            self._ask(gang, [other for other in gang.members if not other.essential], gang.request.grace_s)

    def _terminate(self, gang: SimulatedGang, grace_s: float) -> None:
        if gang.orphaned:
            return
        asked = [member for member in gang.members if not gang.stopping or grace_s <= 0]
        led = [member for member in asked if member.essential and member.ended_at is None]
        gang.stopping = True
        for member in asked:
            member.stopped = member.stopped or member.ended_at is None
        if led and grace_s > 0:  # those that serve them are asked when they have ended
            for member in (each for each in asked if not each.essential):
                self.world.after(grace_s, lambda member=member: self._exit(gang, member, _KILLED))  # type: ignore[misc]
            asked = led
        self._ask(gang, asked, grace_s)

    def _ask(self, gang: SimulatedGang, members: list[SimulatedMember], grace_s: float) -> None:
        for member in members:
            if member.ended_at is not None:
                continue
            member.stopped = True
            heeds = self.world.chance(0.7)
            delay_s = self.world.rng.uniform(0, grace_s) if heeds else grace_s
            code, number = self.world.rng.choice(((0, None), (143, None), (None, 15), (1, None)))
            ending = Ending(delay_s, code, number) if heeds else _KILLED
            self.world.after(delay_s, lambda member=member, ending=ending: self._exit(gang, member, ending))  # type: ignore[misc]

    def _end(self, gang: SimulatedGang) -> None:
        gang.phase = Phase.EXITED
        essential = [member for member in gang.members if member.essential]
        self.won[gang.request.attempt] = all(m.exit_code == 0 and not m.stopped for m in essential)
        gang.ended_at = max(member.ended_at or self.world.now for member in gang.members)
        self.world.note(f"{gang.request.attempt} has ended: {_tell(gang)}")
        self._changed(gang.request.attempt)
        self.grant()

    def _drop(self, gang: SimulatedGang) -> None:
        del self.gangs[gang.request.attempt]
        self._changed(gang.request.attempt)
        self.grant()

    def _changed(self, attempt: str) -> None:
        for client in self.clients:
            client.tell(self.status(attempt))


def _tell(gang: SimulatedGang) -> str:
    words = []
    for member in gang.members:
        how = f"exit {member.exit_code}" if member.exit_code is not None else f"signal {member.signal}"
        how = member.error or ("lost" if member.lost else how)
        words.append(f"{member.name} {how}{' (stopped)' if member.stopped else ''}")
    return ", ".join(words)
