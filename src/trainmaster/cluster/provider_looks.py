"""`ProviderLooks`: when a provider is asked for the machines of a cluster."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from trainmaster.providers.base import Node, NodeState

#: How often a provider is asked for its machines: a cloud's API, and hosts that are logged in to.
LOOK_S: Final = 2.0
#: While all of them are there and answer: a cloud's API counts what an account asks, and all runs share that.
_STEADY_LOOK_S: Final = 5.0
#: While a machine boots: its time is paid for.
BOOT_LOOK_S: Final = 1.0
#: While all that is missing waits in a queue that others use, too: this part of how long it has waited.
_QUEUE_SHARE: Final = 0.1
_QUEUE_LOOK_S: Final = 30.0
#: One that has not answered for a while is asked more rarely.
_LOOK_AGAIN_S: Final = 10.0


class ProviderLooks:
    """By the clock of who asks: each call says what time it is.

    Args:
        is_queue: the provider is one: it ends machines by itself, and is cheap to ask.
    """

    def __init__(self, *, is_queue: bool) -> None:
        self._steady_s = LOOK_S if is_queue else _STEADY_LOOK_S
        self._due_at = self._began_at = self._queued_at = -math.inf

    def is_due(self, now: float) -> bool:
        """Whether it is to be asked."""
        return now >= self._due_at

    def begin(self, nodes: Collection[Node], now: float) -> None:
        """It is asked now; by what it told last, again later."""
        if not any(node.is_queued for node in nodes):
            self._queued_at = now
        self._began_at = now
        self._due_at = now + look_pause_s(nodes, now - self._queued_at, self._steady_s)

    def at_once(self, now: float) -> None:
        """What is known is of before this process slept."""
        self._due_at = now

    def in_a_moment(self, now: float) -> None:
        """What is known of the machines was written down."""
        self._due_at = now + LOOK_S

    def sooner(self, now: float) -> None:
        """Machines were asked for, or given back: what is known of them is not true any more."""
        self._due_at = min(self._due_at, now + BOOT_LOOK_S)

    def knows_more(self) -> None:
        """A machine does not answer, or all are given back: its provider knows more."""
        self._due_at = min(self._due_at, self._began_at + LOOK_S)

    def later(self, now: float) -> None:
        """It has not answered for a while."""
        self._due_at = now + _LOOK_AGAIN_S


def look_pause_s(nodes: Collection[Node], queued_s: float, steady_s: float = _STEADY_LOOK_S) -> float:
    """How long until a provider is asked again for its machines.

    Args:
        nodes: as it told last.
        queued_s: for how long some have waited in its queue, which others ask, too.
        steady_s: while all of them run.
    """
    queue_s = min(max(_QUEUE_SHARE * queued_s, BOOT_LOOK_S), _QUEUE_LOOK_S)
    pauses = {NodeState.STARTING: BOOT_LOOK_S, NodeState.READY: steady_s}
    there = (node for node in nodes if node.state is not NodeState.GONE)
    return min(
        (queue_s if each.is_queued else pauses.get(each.state, LOOK_S) for each in there), default=LOOK_S
    )
