"""What the gateway knows of a gang beside its life: who wants it, and what is kept of it. Pure."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from trainmaster.executors.base import GangStatus, MemberStatus, Phase
from trainmaster.executors.gangs.life import GangLife, Part

if TYPE_CHECKING:
    from trainmaster.executors.gangs.clients import GatewayClient
    from trainmaster.executors.gangs.placement import LiveNode, Placement
    from trainmaster.executors.wire import Message

_ANY_SLOTS = 1 << 30


class PlacedGang(GangLife):
    """One attempt.

    Attributes:
        request: as it came over the wire; scripts and environments are taken out once they were handed over.
        client: that submitted or follows it, None once that has hung up.
        freed: its slots were given back.
        here: what the driver takes the parent of its directory for; None: it wants no copies.
        wrote: members that have written something.
        simple: it may wait in a node queue: one member that starts as soon as it has room.
        recalled: it was asked to leave its node queue.
        queued_at: monotonic time since when it has waited for a place.
    """

    def __init__(self, request: Message, run: str, client: GatewayClient | None) -> None:
        super().__init__(
            request["attempt"],
            {member["name"]: bool(member["essential"]) for member in request["members"]},
            [member["name"] for member in request["members"] if member.get("dispensable")],
            hold=request["hold"],
            grace_s=request["grace_s"],
        )
        self.request = request
        self.directory: str = request["directory"]
        self.run = run
        self.client = client
        self.freed = False
        self.here: list[object] | None = request.get("here")
        self.wrote: dict[str, None] = {}
        self.simple = len(self.essential) == 1 and not self.hold and not request["members"][0]["gpus"]
        self.recalled = False
        self.queued_at = 0.0

    # -- where it runs

    def place(self, plan: Placement, nodes: list[LiveNode]) -> None:
        """It has got a node for each bundle of its plan."""
        self.split(
            {
                name: (node.key, node.node_id, node.address)
                for bundle, node in zip(plan.bundles, nodes, strict=True)
                for name in bundle.members
            }
        )
        for part in self.parts:
            part.shared = None if self.here else True
            part.complete = not self.here

    def part_request(self, part: Part, node_queue: str) -> Message:
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

    # -- how it is

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
                if part.status is not None and part.over
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
