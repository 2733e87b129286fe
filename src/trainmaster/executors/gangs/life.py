"""Gangs over several supervisors: `ConductedGang` is told what happens, and says what to send to whom. Pure.

Each part is a gang of its own to a supervisor. All parts are held before any is launched; when a member fails
the others are stopped, and those that only serve the others last; what was on a node that died is lost.
"""

from __future__ import annotations

from dataclasses import astuple, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.who_ends import NONE_ENDS, SERVERS, has_served, who_ends

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trainmaster.executors.wire import Message

Command = dict[str, Any]
_ANY_SLOTS = 1 << 30


class GangPart:
    """The members of a gang that one node's supervisor takes for a gang.

    Attributes:
        name: of the attempt, as the supervisor knows it; no other part has it.
        key: of the node.
        node_id: of this life of the node.
        address: of the node.
        members: names, in rank order.
        turn: sequence number of its submission since this driver began; a part that was
            un-queued may come back under the same name.
        leads: some of its members are essential.
        status: newest news, None before the first.
        assumed: it was found in the records and its node has not answered yet.
        lost_at: Unix time in seconds when its node was found dead, or it was dropped.
        dropped: its supervisor does not know it any more, and it had not ended.
        asked: seconds of grace it was given last, None before.
        shared: the driver sees the node's attempt directory; None while that is not known.
        have: bytes of each file that the driver was sent.
        complete: the driver has all that its files hold, after its end.
    """

    def __init__(self, name: str, node: tuple[str, str, str], members: tuple[str, ...], leads: bool) -> None:
        self.name = name
        self.key, self.node_id, self.address = node
        self.members = members
        self.leads = leads
        self.turn = 0
        self.status: GangStatus | None = None
        self.assumed = False
        self.lost_at: float | None = None
        self.dropped = False
        self.asked: float | None = None
        self.shared: bool | None = True
        self.have: dict[str, int] = {}
        self.complete = True

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        if self.over:
            return Phase.EXITED
        if self.status is None:
            return Phase.RUNNING if self.assumed else Phase.QUEUED
        return self.status.phase

    @property
    def over(self) -> bool:
        """Nothing more will come of it."""
        return self.lost_at is not None or (self.status is not None and self.status.phase is Phase.EXITED)

    @property
    def started(self) -> bool:
        """A process of it has been started, as far as is known."""
        return self.assumed or (
            self.status is not None and self.status.phase in (Phase.RUNNING, Phase.EXITED)
        )

    def took(self, status: GangStatus, now: float) -> bool:
        """Keep what its supervisor says, in Unix seconds; whether anything follows."""
        if self.over or status.phase is Phase.QUEUED:  # it waits in its node queue
            return False
        self.assumed = False
        if status.phase is Phase.UNKNOWN:
            self.dropped = True
            self.lose(now)
        else:
            self.status = status
        return True

    def lose(self, now: float) -> None:
        """Its node is dead since then, in Unix seconds, or knows nothing of it."""
        self.lost_at, self.complete = now, True

    def rows(self) -> dict[str, MemberStatus]:
        """What is known of its members."""
        found = {name: MemberStatus(name) for name in self.members}
        if self.status is not None:
            found.update((member.name, member) for member in self.status.members)
        if self.lost_at is None:
            return found
        return {
            name: row if row.ended_at is not None else replace(row, lost=True, ended_at=self.lost_at)
            for name, row in found.items()
        }


class GangOutcome(Enum):
    """What becomes of a gang: it goes on, has ended, or never starts, so that it may be submitted again."""

    GOES_ON = auto()
    ENDED = auto()
    DROPPED = auto()


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from something that happened.

    Attributes:
        outcome: of the gang.
        orders: commands for the supervisors of parts.
        press_in_s: after so many seconds `ConductedGang.press` is due; None for never.
    """

    outcome: GangOutcome = GangOutcome.GOES_ON
    orders: tuple[tuple[GangPart, Command], ...] = ()
    press_in_s: float | None = None


class ConductedGang:
    """One attempt. Times without a unit in their name are monotonic seconds.

    Attributes:
        request: as it came over the wire; scripts and environments are taken out once they were handed over.
        run: whose it is.
        is_followed: the driver that is served has submitted it, or asked for it.
        essential: whether each member is, in rank order.
        parts: empty until it has a place.
        launched: its parts were told to start, or start by themselves.
        kill_at: when those that were asked to stop are killed, None before.
        stacks: they are asked to write their stacks, too.
        freed: its slots were given back.
        here: what the driver takes the parent of its directory for; None: it wants no copies.
        wrote: members that have written something.
        simple: it may wait in a node queue: one member that starts as soon as it has room.
        recalled: it was asked to leave its node queue.
        queued_at: since when it has waited for a place.
    """

    def __init__(self, request: Message, run: str, *, is_followed: bool = False) -> None:
        members = request["members"]
        self.request = request
        self.run = run
        self.is_followed = is_followed
        self.attempt: str = request["attempt"]
        self.directory: str = request["directory"]
        self.essential = {member["name"]: bool(member["essential"]) for member in members}
        self.dispensable = {member["name"] for member in members if member.get("dispensable")}
        self.hold: bool = request["hold"]
        self.grace_s: float = request["grace_s"]
        self.parts: list[GangPart] = []
        self.launched = False
        self.kill_at: float | None = None
        self.stacks = False
        self.freed = False
        self.here: list[object] | None = None
        self.wrote: dict[str, None] = {}
        self.simple = len(members) == 1 and not self.hold and not members[0]["gpus"]
        self.recalled = False
        self.queued_at = 0.0
        self._refused: dict[str, MemberStatus] = {}

    # -- where it runs

    def place(self, nodes: Mapping[str, tuple[str, str, str]]) -> None:
        """Each member has got its node: key, id and address."""
        by_node: dict[str, list[str]] = {}
        for name in self.essential:
            by_node.setdefault(nodes[name][0], []).append(name)
        single = len(by_node) == 1
        for key, names in by_node.items():
            for leads in (True, False):
                chosen = tuple(names if single else (n for n in names if self.essential[n] is leads))
                if not chosen or (single and not leads):
                    continue
                name = self.attempt if single else f"{self.attempt}#{key}{'' if leads else '-serving'}"
                part = GangPart(name, nodes[names[0]], chosen, leads)
                part.shared, part.complete = None if self.here else True, not self.here
                self.parts.append(part)
        self.launched = single and not self.hold

    def part_request(self, part: GangPart, node_queue: str) -> Message:
        """As it is sent to a node's supervisor: those in the same node queue run one after another."""
        members = [dict(member) for member in self.request["members"] if member["name"] in part.members]
        for member in members:
            member["essential"] = self.essential[member["name"]] if self.alone else True
        return {
            "attempt": part.name,
            "directory": self.directory,
            "slots": 1,
            "group": node_queue or "all",
            "group_slots": 1 if node_queue else _ANY_SLOTS,
            "hold": self.hold or not self.alone,
            "grace_s": self.grace_s,
            "share_gpus": self.request["share_gpus"],
            "members": members,
        }

    def strip(self) -> None:
        """Forget scripts and environments."""
        for member in self.request["members"]:
            member["env"], member["script"] = {}, ""

    @property
    def alone(self) -> bool:
        """All of it is on one node, whose supervisor then knows what to do when a member ends."""
        return len(self.parts) == 1

    def refuse(self, reason: str, now: float) -> None:
        """It never gets a place; since then, in Unix seconds."""
        self._refused = {name: MemberStatus(name, error=reason, ended_at=now) for name in self.essential}

    # -- how it is

    @property
    def phase(self) -> Phase:
        """How far it has come."""
        phases = [part.phase for part in self.parts]
        if not phases:
            return Phase.EXITED if self._refused else Phase.QUEUED
        if all(phase is Phase.EXITED for phase in phases):
            return Phase.EXITED
        if self.launched:
            if any(phase in (Phase.RUNNING, Phase.EXITED) for phase in phases):
                return Phase.RUNNING
            return Phase.GRANTED if self.hold and Phase.GRANTED in phases else Phase.QUEUED
        return Phase.GRANTED if self.hold and self.granted else Phase.QUEUED

    @property
    def granted(self) -> bool:
        """Each part holds its ports."""
        return bool(self.parts) and all(part.phase is Phase.GRANTED for part in self.parts)

    def members(self) -> dict[str, MemberStatus]:
        """What is known of each member, in rank order; those that never started say why."""
        found = dict(self._refused)
        for part in self.parts:
            found.update(part.rows())
        cause = next((row for row in found.values() if row.error), None)
        if cause is not None:
            reason = f"not started, because {cause.name} could not be: {cause.error}"
            for name, row in found.items():
                if row.lost and row.pid is None:
                    found[name] = replace(row, lost=False, error=reason, ended_at=cause.ended_at)
        return {name: found[name] for name in self.essential if name in found}

    def status(self) -> GangStatus:
        """What its driver is told."""
        phase = self.phase
        if phase is Phase.EXITED and not all(part.complete for part in self.parts):
            phase = Phase.RUNNING  # the driver still lacks a part of what was written
        if phase is Phase.QUEUED:
            return GangStatus(self.attempt, phase)
        members = tuple(self.members().values())
        ports: dict[str, tuple[int, ...]] = {}
        if phase is Phase.GRANTED:
            for part in self.parts:
                ports.update(part.status.ports if part.status else {})
        started = [member.started_at for member in members if member.started_at is not None]
        ended = [member.ended_at for member in members if member.ended_at is not None]
        return GangStatus(
            self.attempt,
            phase,
            members,
            ports,
            min(started, default=None),
            max(ended, default=None) if phase is Phase.EXITED else None,
            {name: part.address for part in self.parts for name in part.members},
        )

    def seconds(self) -> float | None:
        """How long it has taken, None if it is not known."""
        rows = self.members().values()
        times = [(row.started_at, row.ended_at) for row in rows]
        spans = [end - start for start, end in times if start is not None and end is not None]
        return max(spans, default=None)

    def _rows(self) -> list[tuple[MemberStatus, bool]]:
        return [(row, self.essential[name]) for name, row in self.members().items()]

    # -- what is asked for, and what follows from how it is

    def launch(self, env: Mapping[str, Mapping[str, str]]) -> Step:
        """Start it, if it is GRANTED, on all its nodes."""
        if self.phase is not Phase.GRANTED or self.launched or self.kill_at is not None:
            return Step()
        return self._launch(env)

    def stop(self, grace_s: float, now: float, *, stacks: bool = False) -> Step:
        """Un-queue it or end its processes."""
        self.stacks = self.stacks or stacks
        if self.phase is Phase.EXITED:
            return Step()
        return self._terminate(grace_s, now) if self.launched else self.drop()

    def drop(self) -> Step:
        """It has not started and never will."""
        stops = [(part, _stop(part, 0.0)) for part in self.parts if not part.over]
        return Step(GangOutcome.DROPPED, tuple(stops))

    def press(self) -> Step:
        """The grace of those that were asked is over: now the servers', too."""
        return Step(orders=self._ask(0.0, serving=True))

    def after(self, now: float) -> Step:
        """Something changed."""
        step = Step()
        if not self.launched:
            if any(part.lost_at is not None for part in self.parts):
                return self.drop()  # never started: it may be submitted again
            if any(part.over for part in self.parts):
                self.launched = True  # refused: it comes to its end now
                step = self._terminate(0.0, now)
            elif self.granted and not self.hold:
                step = self._launch({})
        elif all(part.dropped and not part.started for part in self.parts):
            return self.drop()
        if self.phase is Phase.EXITED:
            return replace(step, outcome=GangOutcome.ENDED)
        if not self.launched or self.alone:
            return step
        ends = who_ends(self._rows(), self.dispensable, asked=self.kill_at is not None)
        if ends == NONE_ENDS:
            return step
        if ends == SERVERS:
            orders = self._ask(max(0.0, (self.kill_at or now) - now), serving=True)
            return replace(step, orders=step.orders + orders)
        return self._terminate(self.grace_s, now)

    def _launch(self, env: Mapping[str, Mapping[str, str]]) -> Step:
        self.launched = True
        orders = []
        for part in self.parts:
            own = {name: dict(env[name]) for name in part.members if name in env}
            orders.append((part, {"do": "launch", "attempt": part.name, "env": own}))
        return Step(orders=tuple(orders))

    def _terminate(self, grace_s: float, now: float) -> Step:
        """Those that are served first: they may need the others to save their work."""
        if self.kill_at is not None and self.kill_at <= now + grace_s:
            return Step()
        self.kill_at = now + grace_s
        orders = self._ask(grace_s, serving=False)
        if self.alone:
            return Step(orders=orders)
        if has_served(self._rows()):
            return Step(orders=orders + self._ask(grace_s, serving=True))
        return Step(orders=orders, press_in_s=grace_s)

    def _ask(self, grace_s: float, *, serving: bool) -> tuple[tuple[GangPart, Command], ...]:
        asked = [
            part
            for part in self.parts
            if not part.over and part.leads is not serving and (part.asked is None or part.asked > grace_s)
        ]
        for part in asked:
            part.asked = grace_s
        return tuple((part, {**_stop(part, grace_s), "stacks": self.stacks}) for part in asked)

    # -- what is kept of it, for the next driver

    def record(self, group: str, reservation: str) -> Message:
        """No script and no environment."""
        return {
            "attempt": self.attempt,
            "run": self.run,
            "directory": self.directory,
            "grace_s": self.grace_s,
            "hold": self.hold,
            "slots": self.request["slots"],
            "group": group,
            "group_slots": self.request["group_slots"],
            "share_gpus": self.request["share_gpus"],
            "gpus": sum(member["gpus"] for member in self.request["members"]),
            "members": list(self.essential.items()),
            "dispensable": sorted(self.dispensable),
            "reservation": reservation,
            "ended": {
                part.name: [list(astuple(member)) for member in part.status.members]
                for part in self.parts
                if part.status is not None and part.over
            },
            "parts": [
                [part.name, [part.key, part.node_id, part.address], part.members, part.leads, part.lost_at]
                for part in self.parts
            ],
        }

    @classmethod
    def from_record(cls, record: Message) -> ConductedGang:
        """The contrary of `record`."""
        dispensable = record.get("dispensable", ())
        members = [
            {"name": name, "essential": essential, "dispensable": name in dispensable, "gpus": 0}
            for name, essential in record["members"]
        ]
        members[0]["gpus"] = record["gpus"]  # only how many there are in all is needed from now on
        gang = cls({**record, "members": members}, record["run"])
        gang.launched = True  # what was only held is dropped by its supervisor
        for name, node, names, leads, lost_at in record["parts"]:
            part = GangPart(name, (node[0], node[1], node[2]), tuple(names), leads)
            part.lost_at = lost_at
            part.assumed = True
            if ended := record.get("ended", {}).get(name):
                part.status = GangStatus(name, Phase.EXITED, tuple(MemberStatus(*row) for row in ended))
            gang.parts.append(part)
        return gang


def _stop(part: GangPart, grace_s: float) -> Command:
    return {"do": "stop", "attempt": part.name, "grace_s": grace_s}


def parts_elsewhere(records: Mapping[str, Message]) -> dict[tuple[str, str], list[str]]:
    """Parts of gangs that are on other nodes than this one, by the id and address of their node.

    Args:
        records: see `ConductedGang.record`; by the part that is on this node.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for record in records.values():
        for name, (_, node_id, address), *_ in record["parts"]:
            found.setdefault((node_id, address), {})[name] = None
    return {node: list(names) for node, names in found.items() if not records.keys() & names.keys()}


class UnattendedGangs:
    """Gangs with a part on this node that have no driver now.

    Each node decides for all of a gang as a driver would, and acts on its own part alone.

    Args:
        silent_s: a node that does not answer for so long is dead, once any has answered: only then is it sure
            that nodes reach each other. None: others say which are dead.
        met: ids of nodes that have answered while the driver was there.

    Attributes:
        gangs: as far as they are known, by the part that is on this node and the gang's reservation: one that
            is submitted again has the same parts.
    """

    def __init__(self, silent_s: float | None = None, met: Iterable[str] = ()) -> None:
        self.gangs: dict[tuple[str, str], ConductedGang] = {}
        self._silent_s = silent_s
        self._met = frozenset(met)
        self._heard: dict[str, float] = {}
        self._began: float | None = None

    def orders(
        self, records: Mapping[str, Message], seen: Mapping[str, GangStatus | None], now: float, unix_s: float
    ) -> list[Command]:
        """What its supervisor is to be told, and which records are to be kept.

        Args:
            records: by the part that is on this node.
            seen: of parts on all nodes that answer; None for those whose nodes are dead.
            now: monotonic seconds.
            unix_s: Unix time in seconds.
        """
        self._hear(records, seen, now)
        found: list[Command] = []
        for own, record in records.items():
            gang = self.gangs.setdefault((own, record["reservation"]), ConductedGang.from_record(record))
            if gang.alone:
                continue
            losses = []
            for part in gang.parts:
                if part.over:
                    continue
                status = seen.get(part.name)
                if status is not None:
                    part.took(status, unix_s)
                elif part.name in seen or self._is_dead(part.node_id, now):
                    part.lose(unix_s)
                    losses.append(f"node {part.key} is lost while no process drives the run")
            orders = gang.after(now).orders
            if gang.kill_at is not None and gang.kill_at <= now:
                orders += gang.press().orders
            if losses:  # the next driver hears of it, and why the others were stopped
                kept = gang.record(record["group"], record["reservation"])
                found.append({"do": "record", "part": own, "record": kept})
            why = {"why": "; ".join(losses)} if losses else {}
            found += [{**command, **why} for part, command in orders if part.name == own]
        return found

    def lives(self, records: Mapping[str, Message]) -> bool:
        """Whether a gang over several nodes still has a part on this one."""
        own = [gang for (name, _), gang in self.gangs.items() if name in records and not gang.alone]
        return any(not part.over for gang in own for part in gang.parts if part.name in records)

    def _hear(
        self, records: Mapping[str, Message], seen: Mapping[str, GangStatus | None], now: float
    ) -> None:
        self._began = now if self._began is None else self._began
        for (node_id, _), names in parts_elsewhere(records).items():
            if any(seen.get(name) is not None for name in names):
                self._heard[node_id] = now

    def _is_dead(self, node_id: str, now: float) -> bool:
        if self._silent_s is None or self._began is None or not (self._heard or self._met):
            return False
        return now - self._heard.get(node_id, self._began) >= self._silent_s
