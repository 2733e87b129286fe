"""Short tasks queue up behind each other on a node, so that the next one starts without asking anybody. Pure.

A node queue is a reservation, the gang that runs in it, and equal ones that wait at the node's supervisor, to
which it is a group of one slot. How many may wait follows from how long such gangs have taken: none where
they take longer than `SHORT_S`, and none behind one that has taken long already.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainmaster.executors.gangs.placement import LiveNode

#: Most gangs that wait in a node queue, and how long all of them may take together.
DEPTH = 32
SHORT_S = 0.25
_TOGETHER_S = 0.5
#: A gang that waits so long behind one that takes longer than expected is called back.
PATIENCE_S = 0.5
_SMOOTHING = 0.3


class NodeQueue:
    """One reservation's queue.

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
