"""Whose turn it is, and where there is room: `Slots` says the one, the engine's reservations the other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from trainmaster.executors.gangs.placement import Placement, lacking, plan_gang
from trainmaster.executors.supervisor.slots import Slots, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainmaster.executors.gangs.engine import Engine
    from trainmaster.executors.gangs.life import ConductedGang, GangPart
    from trainmaster.executors.gangs.nodes import Nodes
    from trainmaster.executors.gangs.placement import LiveNode
    from trainmaster.executors.wire import Message

#: A gang that has waited for so long is told why; nodes that have just been started take as long to appear.
WAITS_S = 8.0
_ANY_SLOTS = 1 << 30
#: Most gangs that wait in a node queue, and how long all of them may take together.
DEPTH = 32
SHORT_S = 0.25
_TOGETHER_S = 0.5
#: A gang that waits so long behind one that takes longer than expected is called back.
PATIENCE_S = 0.5
_SMOOTHING = 0.3


class Placing:
    """The queue of gangs.

    Args:
        gangs: by attempt, as they will be then.
        nodes: those that there are, as they will be then.
        engine: reserves room.
        clock: monotonic time in seconds.
        start: a gang has its place; with its reservation and the node queue that it is in, or empty texts.
        refuse: a gang can have no place, and why.
        tell: has a part's node do something.
    """

    def __init__(
        self,
        gangs: Mapping[str, ConductedGang],
        nodes: Nodes,
        engine: Engine,
        clock: Callable[[], float],
        start: Callable[[ConductedGang, str, str], None],
        refuse: Callable[[ConductedGang, str], None],
        tell: Callable[[GangPart, Message], None],
    ) -> None:
        self._gangs = gangs
        self._nodes = nodes
        self._clock = clock
        self._start = start
        self._refuse = refuse
        self._tell = tell
        self._reservations = engine.reservations(self._placed, lambda: nodes.rooms)
        self._slots = Slots()
        self._node_queues = NodeQueues()
        self._plans: dict[str, Placement] = {}

    def queue(self, gang: ConductedGang) -> None:
        """It wants a place; where there is none even on empty nodes, it waits for nodes."""
        gang.queued_at = gang.queued_at or self._clock()
        request = gang.request
        plan = plan_gang(request, self._nodes.rooms)
        if plan is None:
            return
        self._plans[gang.attempt] = plan
        self._node_queues.expect(plan.shape if gang.simple else None)
        self.offer(gang.run)
        gpus = sum(bundle.gpus for bundle in plan.bundles)
        most = request["group_slots"]
        if most >= self._total():
            most = _ANY_SLOTS  # those that only wait in a queue would count
        self._slots.add(Ticket(gang.attempt, gang.run, request["slots"], _group(gang), most, gpus))

    def hold(self, gang: ConductedGang, record: Message) -> None:
        """It has had its place since before this driver."""
        need, most = record["slots"], record["group_slots"]
        self._slots.hold(Ticket(gang.attempt, gang.run, need, _group(gang), most, record["gpus"]))
        if record["reservation"]:
            nodes = [part.node_id for part in gang.parts]
            self._reservations.adopt(gang.attempt, record["reservation"], nodes)

    def remove_others(self, attempts: Iterable[str]) -> None:
        """Only these hold reservations."""
        self._reservations.remove_others(self._reservations.id_of(attempt) for attempt in attempts)

    def reservation(self, attempt: str) -> str:
        """The id of the one that a gang holds, empty if none."""
        return self._reservations.id_of(attempt)

    def took(self, gang: ConductedGang) -> None:
        """It has ended: how long such gangs take decides how many may wait in a node queue."""
        if gang.simple and not gang.freed and (seconds := gang.seconds()) is not None:
            self._node_queues.took(seconds)

    def give_back(self, gang: ConductedGang) -> None:
        """It needs its place no more, or wants none any more."""
        self._unplan(gang)
        if gang.freed:
            return
        gang.freed = True
        self._slots.remove(gang.attempt)
        held, following = self._node_queues.leave(gang.attempt, self._clock())
        if following:
            self._reservations.hand_over(gang.attempt, following)
        elif held:
            self._reservations.give_back(gang.attempt, self._nodes.alive)

    def again(self, gang: ConductedGang) -> None:
        """Queue it again, at the end."""
        self.give_back(gang)
        gang.freed = False
        self.queue(gang)

    def offer(self, run: str, extra: int = 0) -> None:
        """Tell `Slots` what there is."""
        rooms = self._nodes.rooms
        gpus = [f"{node.key}:{index}" for node in rooms for index in range(node.gpus)]
        self._slots.set_capacity(run, max(1, extra + int(self._total())), gpus)

    def waits(self, run: str) -> dict[str, str]:
        """Gangs of a run without a place for a while although none waits before them, with the reason."""
        rooms = self._nodes.rooms
        now = self._clock()
        found = {}
        for gang in self._gangs.values():
            if gang.run != run or gang.parts or gang.freed or now - gang.queued_at < WAITS_S:
                continue
            if gang.attempt not in self._plans:
                found[gang.attempt] = lacking(gang.request, rooms)
            elif self._reservations.is_late(gang.attempt, WAITS_S):
                found[gang.attempt] = self._unreserved(self._plans[gang.attempt])
        return {attempt: f"it needs {why}" for attempt, why in found.items() if why}

    def _unreserved(self, plan: Placement) -> str:
        """Describe the resources for which no room is found."""
        if self._total() - self._reservations.held < sum(bundle.slots for bundle in plan.bundles):
            return ""  # it waits for others, as it should
        wanted = [
            " ".join([*(f"{name}={value}" for name, value in each.labels), *_amounts(each.resources)])
            for each in plan.bundles
        ]
        return f"room that is not found: {'; '.join(dict.fromkeys(wanted))} ({plan.strategy})"

    def tick(self) -> float | None:
        """Place what can be placed; seconds until there may be more to do."""
        self._recall()
        if self._plans and not self._reservations.stuck():
            total, extra = self._total(), self._node_queues.room(self._clock())
            for run in {self._gangs[attempt].run for attempt in self._plans}:
                self.offer(run, extra)
            for ticket in self._slots.grant():
                self._grant(self._gangs[ticket.key], total - self._reservations.used >= ticket.need)
        return self._reservations.tick()

    def _grant(self, gang: ConductedGang, room: bool) -> None:
        plan = self._plans[gang.attempt]
        if not room and gang.simple and not self._reservations.has_idle(plan):
            node_queue = self._node_queues.join(gang.attempt, plan.shape, self._clock())
            if node_queue is not None:
                self._unplan(gang)
                gang.place(plan.places([node_queue.node]))
                self._start(gang, "", node_queue.name)
                return
        self._reservations.take(gang.attempt, plan, self._nodes.alive)

    def _placed(self, attempt: str, node_ids: list[str], refusal: str = "") -> None:
        """Its reservation is there, or refused, such as labels that the engine does not take."""
        gang = self._gangs[attempt]
        if refusal:
            self._refuse(gang, f"no room can be asked for: {refusal}")
            return
        by_id = {node.node_id: node for node in self._nodes.rooms}
        plan = self._unplan(gang)
        if plan is None or not all(each in by_id for each in node_ids):
            self.again(gang)  # a node went away in that very moment
            return
        nodes = plan.led_by_head([by_id[each] for each in node_ids], gang.dispensable)
        gang.place(plan.places(nodes))
        reservation = self._reservations.id_of(attempt)
        node_queue = ""
        if gang.simple:
            node_queue = f"{reservation}-{attempt}"
            found = NodeQueue(node_queue, by_id[node_ids[0]], gang.request["slots"], plan.shape)
            self._node_queues.open(found, attempt, self._clock())
        self._start(gang, reservation, node_queue)

    def _recall(self) -> None:
        """Those that wait behind one that takes longer than expected are queued again."""
        for attempt in self._node_queues.late(self._clock()):
            gang = self._gangs[attempt]
            if not gang.recalled and gang.parts[0].status is None:
                gang.recalled = True
                self._tell(gang.parts[0], {"do": "recall", "attempts": [attempt]})

    def _unplan(self, gang: ConductedGang) -> Placement | None:
        plan = self._plans.pop(gang.attempt, None)
        if plan is not None:
            self._node_queues.expect(plan.shape if gang.simple else None, -1)
        return plan

    def _total(self) -> float:
        return sum(node.slots for node in self._nodes.rooms)


def _amounts(resources: Mapping[str, float]) -> list[str]:
    return [f"{amount:g} {name}" for name, amount in resources.items()]


def _group(gang: ConductedGang) -> str:
    return f"{gang.run}\0{gang.request['group']}"


class NodeQueue:
    """Short tasks that queue up behind each other on a node: the next one starts without asking anybody.

    It is a reservation, the gang that runs in it, and equal ones that wait at the node's supervisor, to which
    it is a group of one slot. How many may wait follows from how long such gangs have taken: none where they
    take longer than `SHORT_S`, and none behind one that has taken long already.

    Attributes:
        name: of the reservation.
        node: where it is.
        slots: what a gang takes there.
        queue: attempts; the first one runs.
        since: monotonic time since when the first one has been that.
    """

    def __init__(self, name: str, node: LiveNode, slots: float, shape: tuple[object, ...]) -> None:
        self.name = name
        self.node = node
        self.slots = slots
        self.shape = shape
        self.queue: list[str] = []
        self.since = 0.0

    def is_late(self, now: float) -> bool:
        """The first one takes longer than expected."""
        return now - self.since > PATIENCE_S


class NodeQueues:
    """All of them."""

    def __init__(self) -> None:
        self._node_queues: dict[str, NodeQueue] = {}
        self._by_attempt: dict[str, NodeQueue] = {}
        self._waiting: Counter[tuple[object, ...] | None] = Counter()
        self._usual_s = SHORT_S * 2

    def expect(self, shape: tuple[object, ...] | None, count: int = 1) -> None:
        """A gang of this shape has been queued (or, with -1, has ended); None: no node queue takes it."""
        self._waiting[shape] += count
        if self._waiting[shape] <= 0:
            del self._waiting[shape]

    def took(self, seconds: float) -> None:
        """A gang of a node queue has taken so long."""
        self._usual_s += _SMOOTHING * (seconds - self._usual_s)

    def room(self, now: float) -> int:
        """Slots that may be granted beyond those that there are: only while all that wait are alike."""
        if len(self._waiting) != 1 or not (depth := self._depth()):
            return 0
        (shape,) = self._waiting
        return int(
            sum(
                node_queue.slots * max(0, depth + 1 - len(node_queue.queue))
                for node_queue in self._node_queues.values()
                if node_queue.shape == shape and not node_queue.is_late(now)
            )
        )

    def open(self, node_queue: NodeQueue, attempt: str, now: float) -> None:
        """A gang begins a new node queue."""
        self._node_queues[node_queue.name] = node_queue
        node_queue.since = now
        self._enter(node_queue, attempt)

    def join(self, attempt: str, shape: tuple[object, ...], now: float) -> NodeQueue | None:
        """Have a gang wait in the shortest node queue, if there is one."""
        depth = self._depth()
        fitting = [
            each
            for each in self._node_queues.values()
            if each.shape == shape and len(each.queue) <= depth and not each.is_late(now)
        ]
        if not depth or not fitting:
            return None
        node_queue = min(fitting, key=lambda each: len(each.queue))
        self._enter(node_queue, attempt)
        return node_queue

    def leave(self, attempt: str, now: float) -> tuple[bool, str]:
        """A gang has ended, or waits no more: whether it held the reservation, and which one holds it now."""
        node_queue = self._by_attempt.pop(attempt, None)
        if node_queue is None:
            return True, ""
        first = node_queue.queue[0] == attempt
        node_queue.queue.remove(attempt)
        if not node_queue.queue:
            del self._node_queues[node_queue.name]
            return first, ""
        if first:
            node_queue.since = now
        return first, node_queue.queue[0] if first else ""

    def late(self, now: float) -> list[str]:
        """Those that wait behind one that takes long."""
        return [
            attempt
            for node_queue in self._node_queues.values()
            if node_queue.is_late(now)
            for attempt in node_queue.queue[1:]
        ]

    def _enter(self, node_queue: NodeQueue, attempt: str) -> None:
        node_queue.queue.append(attempt)
        self._by_attempt[attempt] = node_queue

    def _depth(self) -> int:
        return 0 if self._usual_s > SHORT_S else min(DEPTH, int(_TOGETHER_S / max(self._usual_s, 0.001)))
