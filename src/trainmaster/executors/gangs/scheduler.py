"""The life of gangs on the nodes of a cluster: queued, reserved, started, watched, stopped, forgotten."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.executors.base import GangStatus, Phase
from trainmaster.executors.gangs.copies import Files
from trainmaster.executors.gangs.inbox import Inbox
from trainmaster.executors.gangs.life import ConductedGang, GangOutcome
from trainmaster.executors.gangs.nodes import Nodes
from trainmaster.executors.gangs.placing import Placing
from trainmaster.spec.errors import OtherVersionError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trainmaster.executors.gangs.engine import Engine
    from trainmaster.executors.gangs.life import GangPart, Step
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.wire import Message
    from trainmaster.spec.errors import TrainmasterError


class Scheduler:
    """All gangs that were not forgotten.

    Args:
        engine: knows the nodes.
        loop: for what is to be done later.
        note: writes a line to the log.
        lease: the run of the driver, and the token of its lease.

    Attributes:
        inbox: of the driver that is served, None while there is none.
        refusal: why a node serves no driver like ours.
    """

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        note: Callable[[str], None],
        lease: tuple[str, int] = ("", 0),
    ) -> None:
        self.gangs: dict[str, ConductedGang] = {}
        self.inbox: Inbox | None = None
        self._parts: dict[str, tuple[ConductedGang, GangPart]] = {}
        self.files = Files(
            self._parts,
            self._tell,
            self._announce,
            lambda part: part.node_id in self.nodes.alive,
            lambda *wrote: self.inbox.grew(*wrote) if self.inbox is not None else None,
        )
        self.nodes = Nodes(engine, self, self.files, note, lease)
        self._run = lease[0]
        self._loop = loop
        self._note = note
        self._turns = 0
        self._changed: dict[str, None] = {}
        self.refusal: TrainmasterError | None = None
        self._found: dict[str, list[str]] | None = {}  # parts on nodes, by its id, until it is settled
        self._placing = Placing(
            self.gangs, self.nodes, engine, loop.time, self._start, self._refuse, self._tell
        )
        self.waits = self._placing.waits
        self.wake: Callable[[], None] = lambda: None

    # -- what the driver asks for

    def serve(self, inbox: Inbox | None) -> None:
        """A driver comes in place of another, or goes: what did not start yet never will."""
        if self.inbox is not None:
            self.inbox.close()
        self.inbox = inbox
        self.files.mirror = None if inbox is None else inbox.mirror
        for gang in list(self.gangs.values()):
            if not gang.is_followed:
                continue
            gang.is_followed = False
            if not gang.launched and gang.phase is not Phase.EXITED:
                self._perform(gang, gang.drop())
            elif gang.simple and gang.phase is Phase.QUEUED:
                self._tell(gang.parts[0], {"do": "recall", "attempts": [gang.attempt]})
            for part in gang.parts:
                part.complete = True  # its files have no reader; a driver that comes back asks again
        self.nodes_changed()

    def submit(self, requests: Sequence[Message]) -> None:
        """Queue gangs that are not known yet."""
        for request in requests:
            if request["attempt"] in self.gangs or self.inbox is None:
                continue
            for member in request["members"]:
                if member["container"] is None:
                    member["env"] = {**self.inbox.env, **member["env"]}
            gang = ConductedGang(request, self._run, is_followed=True)
            gang.here, _ = self.inbox.mirror.follow(gang.attempt, gang.directory, gang.essential)
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
        for key, names in by_node.items():
            self.nodes.send(key, None, {"do": "forget", "attempts": names})

    def watch(self) -> None:
        """The driver wants to know which members write; those that have are told now."""
        for gang in self.gangs.values():
            if self.inbox is not None and gang.run == self._run and gang.phase is Phase.RUNNING:
                for member in gang.wrote:
                    self.inbox.grew(gang.attempt, member)

    def observe(self, attempts: Iterable[str]) -> list[GangStatus]:
        """What is known of attempts now; a driver that asks for those of another takes them up."""
        for attempt in attempts:
            gang = self.gangs.get(attempt)
            if self.inbox is not None and gang is not None and gang.parts and not gang.is_followed:
                self.files.take_up(gang)  # it has ended when its files are here
        return [self._status(attempt) for attempt in attempts]

    def _status(self, attempt: str) -> GangStatus:
        gang = self.gangs.get(attempt)
        return GangStatus(attempt, Phase.UNKNOWN) if gang is None else gang.status()

    # -- getting a place

    def tick(self) -> float | None:
        """Place what can be placed; seconds until there may be more to do."""
        return self._placing.tick()

    def _start(self, gang: ConductedGang, reservation: str, node_queue: str) -> None:
        """Hand a gang that has its place to the nodes."""
        record = gang.record(gang.request["group"], reservation)
        for part in gang.parts:
            self._turns += 1
            part.turn = self._turns
            self._parts[part.name] = (gang, part)
            self.files.probe(gang, part)
            self._tell(part, {"do": "record", "part": part.name, "record": record})
            self._tell(part, {"do": "submit", "gangs": [gang.part_request(part, node_queue)]})
        if not gang.simple:
            gang.strip()
        elif reservation:
            self.wake()  # others may wait behind it: tasks that end together would each ask for a place again

    def nodes_changed(self) -> None:
        """There may be room for those that waited, and none any more for those that were queued."""
        for run in {gang.run for gang in self.gangs.values()}:
            self._placing.offer(run)
        for gang in list(self.gangs.values()):
            if not gang.parts and not gang.freed:
                self._placing.again(gang)
        if self.inbox is not None:
            self.inbox.nodes = {
                key: replace(link.node, unreachable_since=link.since)
                for key, link in self.nodes.links.items()
            }
        self.wake()

    # -- what happens on the nodes

    def attempts_on(self, node: LiveNode) -> list[str]:
        """Parts there that have not ended."""
        return [
            name for name, (_, part) in self._parts.items() if part.node_id == node.node_id and not part.over
        ]

    def took(self, node: LiveNode, statuses: Sequence[GangStatus]) -> None:
        """News from a node's supervisor."""
        touched: dict[str, ConductedGang] = {}
        for status in statuses:
            gang, part = self._living_part(node, status.attempt)
            if gang is None or part is None:
                continue
            # It is, or was before it was handed over again: ask in between the two.
            if status.phase is Phase.UNKNOWN:
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

    def attached(self, node: LiveNode, statuses: Sequence[GangStatus], records: Sequence[Message]) -> None:
        """What has become of all that were handed over, and what an earlier driver has left there."""
        there = [status.attempt for status in statuses if status.phase is not Phase.UNKNOWN]
        if self._found is None:
            self._end_strangers(node, there)
        else:
            self._found[node.node_id] = there
            for record in records:
                self._adopt(record)
        for status in statuses:
            gang, part = self._living_part(node, status.attempt)
            if gang is None or part is None or not self._took(gang, part, status):
                continue
            if self._found is None:
                self._after(gang)

    def _adopt(self, record: Message) -> None:
        """A gang of an earlier driver; each of its nodes has a record, perhaps an older one."""
        gang = ConductedGang.from_record(record)
        known = self.gangs.get(gang.attempt)
        if known is not None:
            for part, other in zip(known.parts, gang.parts, strict=False):
                part.lost_at = part.lost_at or other.lost_at
                part.status = part.status or other.status
            return
        self.gangs[gang.attempt] = gang
        for part in gang.parts:
            self._parts[part.name] = (gang, part)
        self._placing.hold(gang, record)

    def _end_strangers(self, node: LiveNode, there: Iterable[str]) -> None:
        """What was declared lost on a node that is back must not go on."""
        for name in there:
            if self._living_part(node, name)[0] is None:
                for command in ({"do": "stop", "grace_s": 0.0}, {"do": "check", "turn": 0}):
                    self.nodes.send(node.key, node.node_id, {**command, "attempt": name})

    def _living_part(self, node: LiveNode, name: str) -> tuple[ConductedGang | None, GangPart | None]:
        gang, part = self._parts.get(name, (None, None))
        if gang is None or part is None or part.node_id != node.node_id or part.over:
            return None, None
        return gang, part

    def _tidy(self, node: LiveNode, status: GangStatus) -> None:
        """What was forgotten while its node was away has ended there."""
        if status.phase is Phase.EXITED and status.attempt not in self._parts:
            self.nodes.send(node.key, node.node_id, {"do": "forget", "attempts": [status.attempt]})

    def _took(self, gang: ConductedGang, part: GangPart, status: GangStatus) -> bool:
        """Keep a part's status; whether anything follows."""
        follows = part.took(status, time.time())
        if follows and part.over and not part.dropped:
            self._record(gang)  # its node may be gone when the next driver asks
        return follows

    def refused(self, node: LiveNode, error: TrainmasterError) -> None:
        """See `Listener.refused`: ours is told so."""
        if isinstance(error, OtherVersionError):
            error = OtherVersionError(f"node {node.key}: {error.args[0]}", error.hint)
        self.refusal = error
        if self.inbox is not None:
            self.inbox.close()

    def lost(self, node: LiveNode) -> None:
        """A node is dead: its members are lost."""
        for gang in list(self.gangs.values()):
            parts = [part for part in gang.parts if part.node_id == node.node_id]
            gone = [part for part in parts if not part.over]
            for part in gone:
                part.lose(time.time())
            for part in parts:
                part.complete = True  # nothing more can be read there
            if gone:
                self._record(gang)
            if parts:
                self._after(gang)
        self.nodes_changed()

    def _after(self, gang: ConductedGang) -> None:
        """Something changed: do what follows."""
        step = gang.after(self._loop.time())
        self._perform(gang, step)
        if step.outcome is GangOutcome.DROPPED:
            return
        if gang.launched and gang.simple:
            gang.strip()
        if step.outcome is GangOutcome.ENDED:
            self._placing.took(gang)
            self._placing.give_back(gang)
            self.wake()
        self._announce(gang)

    def _perform(self, gang: ConductedGang, step: Step) -> None:
        for part, command in step.orders:
            self._tell(part, command)
        if step.press_in_s is not None:
            self._loop.call_later(step.press_in_s, lambda: self._perform(gang, gang.press()))
        if step.outcome is GangOutcome.DROPPED:
            if gang.launched and gang.recalled and gang.is_followed and gang.kill_at is None:
                self._requeue(gang)
            else:
                self._forget(gang)

    # -- starting and ending

    def _refuse(self, gang: ConductedGang, reason: str) -> None:
        """It cannot be started at all: every member says why."""
        gang.refuse(reason, time.time())
        self._placing.give_back(gang)
        self._announce(gang)

    def _forget(self, gang: ConductedGang) -> None:
        """It has not started and never will."""
        for part in gang.parts:
            self._parts.pop(part.name, None)
        self._placing.give_back(gang)
        del self.gangs[gang.attempt]
        self._announce(gang)
        self.wake()

    def _requeue(self, gang: ConductedGang) -> None:
        """It has waited in a node queue and goes to another."""
        for part in gang.parts:
            self._parts.pop(part.name, None)
        gang.parts, gang.launched, gang.recalled = [], False, False
        self._placing.again(gang)
        self.wake()

    def _tell(self, part: GangPart, command: Message) -> None:
        self.nodes.send(part.key, part.node_id, command)

    def _announce(self, gang: ConductedGang) -> None:
        if self.inbox is not None and gang.run == self._run:
            if not self._changed:
                self._loop.call_soon(self._tell_news)
            self._changed[gang.attempt] = None

    def _tell_news(self) -> None:
        changed, self._changed = self._changed, {}
        if self.inbox is not None:
            self.inbox.put(map(self._status, changed))

    # -- what an earlier driver has left

    def settle(self) -> None:
        """The nodes were asked: what is on others is lost, and what none has heard of never started."""
        if self.refusal is None:
            self._placing.remove_others(self.gangs)
        alive = self.nodes.alive
        found, self._found = self._found or {}, None
        for gang in list(self.gangs.values()):
            for part in gang.parts:
                if part.node_id not in alive and not part.over:
                    part.lose(time.time())
            if all(part.dropped for part in gang.parts):
                self._perform(gang, gang.drop())
            else:
                self._after(gang)
        for link in self.nodes.links.values():
            self._end_strangers(link.node, found.get(link.node.node_id, ()))

    def _record(self, gang: ConductedGang) -> None:
        """Its other nodes are told what has become of one."""
        left = [part for part in gang.parts if not part.over]
        if left:
            record = gang.record(gang.request["group"], self._placing.reservation(gang.attempt))
            for part in left:
                self._tell(part, {"do": "record", "part": part.name, "record": record})
