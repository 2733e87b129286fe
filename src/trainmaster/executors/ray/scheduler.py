"""The life of gangs on the nodes of a cluster: queued, reserved, started, watched, stopped, forgotten."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from trainmaster.executors.base import GangStatus, Phase
from trainmaster.executors.gangs.life import Fate
from trainmaster.executors.ray import records as ray_records
from trainmaster.executors.ray.files import Files
from trainmaster.executors.ray.gangs import PlacedGang
from trainmaster.executors.ray.nodes import Nodes
from trainmaster.executors.ray.placing import Placing

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainmaster.executors.gangs.life import Part, Step
    from trainmaster.executors.ray.clients import GatewayClient
    from trainmaster.executors.ray.mirror import Piece
    from trainmaster.executors.ray.nodes import Follow
    from trainmaster.executors.ray.placement import LiveNode
    from trainmaster.executors.wire import Message


class Scheduler:
    """All gangs that were not forgotten.

    Args:
        clients: those that are connected.
        loop: for what is to be done later.
        note: writes a line to the log.
    """

    def __init__(
        self, clients: set[GatewayClient], loop: asyncio.AbstractEventLoop, note: Callable[[str], None]
    ) -> None:
        self.gangs: dict[str, PlacedGang] = {}
        self.nodes = Nodes(self, note)
        self._clients = clients
        self._loop = loop
        self._note = note
        self._parts: dict[str, tuple[PlacedGang, Part]] = {}
        self._turns = 0
        self._records = ray_records.Records()
        self._placing = Placing(self.gangs, self.nodes, loop.time, self._start, self._refuse, self._tell)
        self.waits = self._placing.waits
        self.files = Files(
            self._parts, clients, self._tell, self._announce, lambda part: part.node_id in self.nodes.alive
        )
        self.wake: Callable[[], None] = lambda: None

    # -- what drivers ask for

    def submit(self, client: GatewayClient, requests: Sequence[Message]) -> None:
        """Queue gangs that are not known yet."""
        for request in requests:
            if request["attempt"] in self.gangs:
                continue
            for member in request["members"]:
                if member["container"] is None:
                    member["env"] = {**client.env, **member["env"]}
            gang = PlacedGang(request, client.run, client)
            self.gangs[gang.attempt] = gang
            self._placing.queue(gang)
        self.wake()

    def launch(self, attempt: str, env: Mapping[str, Mapping[str, str]]) -> None:
        """Start a gang that is GRANTED, on all its nodes."""
        if (gang := self.gangs.get(attempt)) is not None:
            self._perform(gang, gang.launch(env))

    def stop(self, attempt: str, grace_s: float, *, stacks: bool = False) -> None:
        """Un-queue a gang or end its processes."""
        if (gang := self.gangs.get(attempt)) is not None:
            self._perform(gang, gang.stop(grace_s, self._loop.time(), stacks=stacks))

    def forget(self, attempts: Iterable[str]) -> None:
        """Drop the records of gangs that have ended."""
        by_node: dict[str, list[str]] = {}
        for attempt in dict.fromkeys(attempts):
            gang = self.gangs.get(attempt)
            if gang is None or gang.phase is not Phase.EXITED:
                continue
            for part in gang.parts:
                self._parts.pop(part.name, None)
                by_node.setdefault(part.key, []).append(part.name)
            del self.gangs[attempt]
            self._records.erase(attempt)
        for key, names in by_node.items():
            self.nodes.send(key, None, {"do": "forget", "attempts": names})

    def watch(self, client: GatewayClient) -> None:
        """A driver wants to know which members write; those that have are told now."""
        client.watches = True
        for gang in self.gangs.values():
            if gang.run == client.run and gang.phase is Phase.RUNNING:
                for member in gang.wrote:
                    client.grew(gang.attempt, member)

    def drop_client(self, client: GatewayClient) -> None:
        """It hung up: what did not start yet never will."""
        for gang in list(self.gangs.values()):
            if gang.client is client:
                gang.client = None
                if not gang.launched and gang.phase is not Phase.EXITED:
                    self._perform(gang, gang.drop())
                elif gang.simple and gang.phase is Phase.QUEUED:
                    self._tell(gang.parts[0], {"do": "recall", "attempts": [gang.attempt]})
                for part in gang.parts:
                    part.complete = True  # its files have no reader; a client that comes back asks again

    def row(self, attempt: str) -> tuple[list[Any], dict[str, str]]:
        """Status and addresses of an attempt, as they go over the wire."""
        gang = self.gangs.get(attempt)
        if gang is None:
            return [attempt, Phase.UNKNOWN.value, [], {}, None, None], {}
        row = gang.row()
        return row, gang.addresses() if row[1] != Phase.QUEUED.value else {}

    @property
    def busy(self) -> bool:
        """Gangs live."""
        return any(not gang.freed for gang in self.gangs.values())

    # -- getting a place

    def tick(self) -> float | None:
        """Place what can be placed; seconds until there may be more to do."""
        return self._placing.tick()

    def _start(self, gang: PlacedGang, reservation: str, node_queue: str) -> None:
        """Hand a gang that has its place to the nodes."""
        self._records.store(gang.record(gang.request["group"], reservation))
        for part in gang.parts:
            self._turns += 1
            part.turn = self._turns
            self._parts[part.name] = (gang, part)
            self.files.probe(gang, part)
            self._tell(part, {"do": "submit", "gangs": [gang.part_request(part, node_queue)]})
        if not gang.simple:
            gang.strip()

    def nodes_changed(self) -> None:
        """There may be room for those that waited, and none any more for those that were queued."""
        for run in {gang.run for gang in self.gangs.values()}:
            self._placing.offer(run)
        for gang in list(self.gangs.values()):
            if not gang.parts and not gang.freed:
                self._placing.again(gang)
        states = [
            {"key": link.node.key, "address": link.node.address, "unreachable_since": link.since}
            for link in self.nodes.links.values()
        ]
        for client in self._clients:
            client.send({"nodes": states})
        self.wake()

    # -- what happens on the nodes

    async def recorded(self) -> None:
        """Until a next gateway would know where all gangs are that have a place."""
        await self._records.written()

    def attempts_on(self, node: LiveNode) -> list[str]:
        """Parts there that have not ended."""
        return [
            name for name, (_, part) in self._parts.items() if part.node_id == node.node_id and not part.over
        ]

    def took(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """News from a node's supervisor."""
        touched: dict[str, PlacedGang] = {}
        for status in statuses:
            gang, part = self._living_part(node, status.attempt)
            if gang is None or part is None:
                continue
            if (
                status.phase is Phase.UNKNOWN
            ):  # or was, before it was handed over again: ask in between the two
                self._tell(part, {"do": "check", "attempt": part.name, "turn": part.turn})
            elif self._took(gang, part, status):
                touched[gang.attempt] = gang
        for gang in touched.values():
            self._after(gang)

    def checked(self, node: LiveNode, statuses: Sequence[tuple[int, GangStatus]]) -> None:
        """What is so for certain, if the part has not been handed over again since."""
        for turn, status in statuses:
            gang, part = self._living_part(node, status.attempt)
            if gang is None or part is None:
                self._tidy(node, status)
            elif part.turn == turn and self._took(gang, part, status):
                self._after(gang)

    def attached(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """What has become of all that were handed over."""
        for status in statuses:
            gang, part = self._living_part(node, status.attempt)
            if gang is not None and part is not None and self._took(gang, part, status):
                self._after(gang)

    def _living_part(self, node: LiveNode, name: str) -> tuple[PlacedGang | None, Part | None]:
        gang, part = self._parts.get(name, (None, None))
        if gang is None or part is None or part.node_id != node.node_id or part.over:
            return None, None
        return gang, part

    def _tidy(self, node: LiveNode, status: GangStatus) -> None:
        """What was forgotten while its node was away has ended there."""
        if status.phase is Phase.EXITED and status.attempt not in self._parts:
            self.nodes.send(node.key, node.node_id, {"do": "forget", "attempts": [status.attempt]})

    def _took(self, gang: PlacedGang, part: Part, status: GangStatus) -> bool:
        """Keep a part's status; whether anything follows."""
        follows = part.took(status, time.time())
        if follows and part.over and not part.dropped and not gang.alone:
            self._store(gang)  # its node may be gone when the next gateway asks
        return follows

    def lost(self, node: LiveNode) -> None:
        """A node is dead: its members are lost."""
        for gang in list(self.gangs.values()):
            parts = [part for part in gang.parts if part.node_id == node.node_id]
            gone = [part for part in parts if not part.over]
            for part in gone:
                self._lose(part)
            for part in parts:
                part.complete = True  # nothing more can be read there
            if gone:
                self._store(gang)
            if parts:
                self._after(gang)
        self.nodes_changed()

    def came(self, node: LiveNode) -> None:
        """A node is there; what was declared lost on it before must not go on."""
        for name in ray_records.take_fences(node.key):
            for command in ({"do": "stop", "grace_s": 0.0}, {"do": "check", "turn": 0}):
                self.nodes.send(node.key, node.node_id, {**command, "attempt": name})

    def _lose(self, part: Part) -> None:
        part.lose(time.time())
        ray_records.fence(part.key, part.name)

    def _after(self, gang: PlacedGang) -> None:
        """Something changed: do what follows."""
        step = gang.after(self._loop.time())
        self._perform(gang, step)
        if step.fate is Fate.DROPPED:
            return
        if gang.launched and gang.simple:
            gang.strip()
        if step.fate is Fate.ENDED:
            self._placing.took(gang)
            self._placing.give_back(gang)
            self.wake()
        self._announce(gang)

    def _perform(self, gang: PlacedGang, step: Step) -> None:
        for part, command in step.orders:
            self._tell(part, command)
        if step.press_in_s is not None:
            self._loop.call_later(step.press_in_s, lambda: self._perform(gang, gang.press()))
        if step.fate is Fate.DROPPED:
            if gang.launched and gang.recalled and gang.client is not None and gang.kill_at is None:
                self._requeue(gang)
            else:
                self._forget(gang)

    # -- files

    def grew(self, written: Sequence[tuple[str, str]]) -> None:
        """See `Files.grew`."""
        self.files.grew(written)

    def probed(self, node: LiveNode, shared: Mapping[str, bool]) -> None:
        """See `Files.probed`."""
        self.files.probed(node, shared)

    def follow(self, node: LiveNode) -> Follow:
        """See `Files.wanted`."""
        return self.files.wanted(node)

    def read_on(
        self, node: LiveNode, asked: Follow, pieces: Sequence[tuple[str, Piece]], behind: set[str]
    ) -> None:
        """See `Files.read_on`."""
        self.files.read_on(node, asked, pieces, behind)

    # -- starting and ending

    def _refuse(self, gang: PlacedGang, reason: str) -> None:
        """It cannot be started at all: every member says why."""
        gang.refuse(reason, time.time())
        self._placing.give_back(gang)
        self._announce(gang)

    def _forget(self, gang: PlacedGang) -> None:
        """It has not started and never will."""
        for part in gang.parts:
            self._parts.pop(part.name, None)
        self._placing.give_back(gang)
        del self.gangs[gang.attempt]
        self._records.erase(gang.attempt)
        self._announce(gang)
        self.wake()

    def _requeue(self, gang: PlacedGang) -> None:
        """It has waited in a node queue and goes to another."""
        for part in gang.parts:
            self._parts.pop(part.name, None)
        self._records.erase(gang.attempt)
        gang.parts, gang.launched, gang.recalled = [], False, False
        self._placing.again(gang)
        self.wake()

    def _tell(self, part: Part, command: Message) -> None:
        self.nodes.send(part.key, part.node_id, command)

    def _announce(self, gang: PlacedGang) -> None:
        for client in self._clients:
            if client.run == gang.run:
                client.changed(gang.attempt)

    # -- what an earlier gateway has left

    def load(self) -> None:
        """Take over what it has started; the nodes then say what became of it."""
        for record in self._records.load():
            gang = PlacedGang.from_record(record)
            self.gangs[gang.attempt] = gang
            for part in gang.parts:
                self._parts[part.name] = (gang, part)
            self._placing.hold(gang, record)
        self._placing.remove_others(self.gangs)

    def settle(self) -> None:
        """The nodes were asked: those that Ray knows no more are lost; unknown ones never were."""
        alive = self.nodes.alive
        for gang in list(self.gangs.values()):
            for part in gang.parts:
                if part.node_id not in alive and not part.over:
                    self._lose(part)
            if all(part.dropped for part in gang.parts):
                self._perform(gang, gang.drop())
            else:
                self._after(gang)
        for link in self.nodes.links.values():
            if link.attached.is_set():
                self.came(link.node)

    def _store(self, gang: PlacedGang) -> None:
        self._records.store(gang.record(gang.request["group"], self._placing.reservation(gang.attempt)))
