"""What the gateway knows of a gang whose members are on several nodes. Pure."""

from __future__ import annotations

import signal
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from trainmaster.executors.base import GangStatus, MemberStatus, Phase

if TYPE_CHECKING:
    from trainmaster.executors.ray.clients import GatewayClient
    from trainmaster.executors.ray.placement import LiveNode, Placement
    from trainmaster.executors.wire import Message

#: Of members that only serve the others; those are a gang of their own to their node's supervisor.
SERVING = "-serving"
_ANY_SLOTS = 1 << 30
#: What a machine that is switched off sends to all that runs there.
_SWITCHED_OFF = (signal.SIGTERM, signal.SIGKILL, signal.SIGHUP)


class Part:
    """The members of a gang that one node's supervisor takes for a gang.

    Attributes:
        name: of the attempt, as the supervisor knows it; no other part has it.
        key: of the node.
        node_id: Ray's id of the node.
        address: of the node.
        members: names, in rank order.
        turn: sequence number of its submission since this gateway began; a part that was
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


def _went_with_its_machine(row: MemberStatus) -> bool:
    """Whether a member was lost, or ended as one does whose machine is switched off.

    Its supervisor may still tell how it ended, so before anybody knows of the machine's end.
    """
    if row.lost or row.stopped:
        return True
    return not (row.oom or row.error) and (row.signal or (row.exit_code or 0) - 128) in _SWITCHED_OFF


class PlacedGang:
    """One attempt.

    Attributes:
        request: as it came over the wire; scripts and environments are taken out once they were handed over.
        client: that submitted or follows it, None once that has hung up.
        parts: empty until it has a place.
        launched: its parts were told to start, or start by themselves.
        kill_at: monotonic time when those that were asked to stop are killed, None before.
        freed: its slots were given back.
        here: what the driver takes the parent of its directory for; None: it wants no copies.
        wrote: members that have written something.
        simple: it may wait in a node queue: one member that starts as soon as it has room.
        recalled: it was asked to leave its node queue.
        queued_at: monotonic time since when it has waited for a place.
    """

    def __init__(self, request: Message, run: str, client: GatewayClient | None) -> None:
        self.request = request
        self.attempt: str = request["attempt"]
        self.directory: str = request["directory"]
        self.grace_s: float = request["grace_s"]
        self.hold: bool = request["hold"]
        self.essential = {member["name"]: bool(member["essential"]) for member in request["members"]}
        self.dispensable = {member["name"] for member in request["members"] if member.get("dispensable")}
        self.run = run
        self.client = client
        self.parts: list[Part] = []
        self.launched = False
        self.kill_at: float | None = None
        self.freed = False
        self.here: list[object] | None = request.get("here")
        self.wrote: dict[str, None] = {}
        self.simple = len(self.essential) == 1 and not self.hold and not request["members"][0]["gpus"]
        self.recalled = False
        self.queued_at = 0.0
        self._refused: dict[str, MemberStatus] = {}

    # -- where it runs

    def place(self, plan: Placement, nodes: list[LiveNode]) -> None:
        """It has got a node for each bundle of its plan."""
        where = {
            name: node for bundle, node in zip(plan.bundles, nodes, strict=True) for name in bundle.members
        }
        by_node: dict[str, list[str]] = {}
        for name in self.essential:
            by_node.setdefault(where[name].key, []).append(name)
        single = len(by_node) == 1
        for names in by_node.values():
            found = where[names[0]]
            node = (found.key, found.node_id, found.address)
            if single:
                self.parts.append(Part(self.attempt, node, tuple(names), leads=True))
                continue
            for leads in (True, False):
                if chosen := tuple(name for name in names if self.essential[name] is leads):
                    name = f"{self.attempt}#{found.key}{'' if leads else SERVING}"
                    self.parts.append(Part(name, node, chosen, leads))
        self.launched = single and not self.hold
        for part in self.parts:
            part.shared = None if self.here else True
            part.complete = not self.here

    @property
    def alone(self) -> bool:
        """All of it is on one node, whose supervisor then knows what to do when a member ends."""
        return len(self.parts) == 1

    def part_request(self, part: Part, node_queue: str) -> Message:
        """What a node's supervisor is told of it: those in the same node queue run one after another."""
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

    def refuse(self, reason: str, now: float) -> None:
        """It never gets a place."""
        self._refused = {name: MemberStatus(name, error=reason, ended_at=now) for name in self.essential}

    def strip(self) -> None:
        """Forget scripts and environments."""
        for member in self.request["members"]:
            member["env"], member["script"] = {}, ""

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
        granted = all(phase is Phase.GRANTED for phase in phases)
        return Phase.GRANTED if self.hold and granted else Phase.QUEUED

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

    def row(self) -> list[Any]:
        """As it goes to the driver: the fields of `GangStatus` but for the addresses, in order."""
        phase = self.phase
        if phase is Phase.EXITED and not all(part.complete for part in self.parts):
            phase = Phase.RUNNING  # the driver still lacks a part of what was written
        if phase is Phase.QUEUED:
            return [self.attempt, phase.value, [], {}, None, None]
        members = list(self.members().values())
        ports: dict[str, tuple[int, ...]] = {}
        if phase is Phase.GRANTED:
            for part in self.parts:
                ports.update(part.status.ports if part.status else {})
        started = [member.started_at for member in members if member.started_at is not None]
        ended = [member.ended_at for member in members if member.ended_at is not None]
        over = phase is Phase.EXITED
        return [
            self.attempt,
            phase.value,
            [list(astuple(member)) for member in members],
            ports,
            min(started, default=None),
            max(ended, default=None) if over else None,
        ]

    def seconds(self) -> float | None:
        """How long it has taken, None if it is not known."""
        rows = self.members().values()
        times = [(row.started_at, row.ended_at) for row in rows]
        spans = [end - start for start, end in times if start is not None and end is not None]
        return max(spans, default=None)

    def addresses(self) -> dict[str, str]:
        """Of the node of each member; empty until it has a place."""
        return {name: part.address for part in self.parts for name in part.members}

    # -- what follows from how it is

    @property
    def failed(self) -> bool:
        """A member has ended badly (or its node has), so that the others cannot go on."""
        rows = self.members()
        # a server that falls over once the first worker is done tells nothing about the gang
        serving = not any(row.exit_code == 0 for name, row in rows.items() if self.essential[name])
        return any(
            row.ended_at is not None and row.exit_code != 0 and (self.essential[name] or serving)
            for name, row in rows.items()
            if not (name in self.dispensable and _went_with_its_machine(row))
        )

    @property
    def served(self) -> bool:
        """All essential members have ended."""
        return all(part.over for part in self.parts if part.leads)

    # -- what is kept of it, for the next gateway

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
                if part.status is not None and part.status.phase is Phase.EXITED
            },
            "parts": [
                [part.name, [part.key, part.node_id, part.address], part.members, part.leads, part.lost_at]
                for part in self.parts
            ],
        }

    @classmethod
    def from_record(cls, record: Message) -> PlacedGang:
        """The contrary of `record`."""
        dispensable = record.get("dispensable", ())
        members = [
            {"name": name, "essential": essential, "dispensable": name in dispensable, "gpus": 0}
            for name, essential in record["members"]
        ]
        gang = cls({**record, "members": members}, record["run"], None)
        gang.launched = True  # what was only held is dropped by its supervisor
        for name, node, names, leads, lost_at in record["parts"]:
            part = Part(name, (node[0], node[1], node[2]), tuple(names), leads)
            part.lost_at = lost_at
            part.assumed = True
            if ended := record.get("ended", {}).get(name):
                part.status = GangStatus(name, Phase.EXITED, tuple(MemberStatus(*row) for row in ended))
            gang.parts.append(part)
        return gang
