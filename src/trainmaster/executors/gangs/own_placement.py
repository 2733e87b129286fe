"""Room for gangs where the nodes are ours alone: counted here, not asked for. Pure but for its clock."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainmaster.executors.gangs.placement import assign

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from trainmaster.executors.gangs.placement import LiveNode, Placement

#: One that has waited for so long holds back all later ones, so that it gets its turn.
STUCK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    """Node, slots and GPUs of each bundle."""

    bundles: tuple[tuple[str, float, int], ...]

    @property
    def slots(self) -> float:
        return sum(slots for _, slots, _ in self.bundles)


@dataclass(frozen=True, slots=True)
class _Pending:
    plan: Placement
    since: float

    @property
    def slots(self) -> float:
        return sum(bundle.slots for bundle in self.plan.bundles)


class OwnPlacement:
    """See `Reservations` of `gangs/engine.py`.

    Args:
        ready: told the attempt and the node of each bundle.
        nodes: those that can be reached now.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        ready: Callable[[str, list[str]], None],
        nodes: Callable[[], Sequence[LiveNode]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ready = ready
        self._nodes = nodes
        self._clock = clock
        self._pending: dict[str, _Pending] = {}
        self._held: dict[str, _Held] = {}

    @property
    def used(self) -> float:
        """Slots of all that are held or waited for."""
        return self.held + sum(each.slots for each in self._pending.values())

    @property
    def held(self) -> float:
        """Slots of those that are held."""
        return sum(each.slots for each in self._held.values())

    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """Reserve room; ``ready`` is told at once if there is some."""
        del alive
        self._pending[attempt] = _Pending(plan, self._clock())
        self._place(attempt)

    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """The gang needs it no more, or never will."""
        del alive
        self._pending.pop(attempt, None)
        self._held.pop(attempt, None)

    def hand_over(self, attempt: str, following: str) -> None:
        """Another gang holds it from now on."""
        if held := self._held.pop(attempt, None):
            self._held[following] = held

    def id_of(self, attempt: str) -> str:
        """What `adopt` needs to know of what a gang holds, empty if nothing."""
        held = self._held.get(attempt)
        return json.dumps(held.bundles) if held else ""

    def adopt(self, attempt: str, reservation: str, nodes: list[str]) -> None:
        """A gang of an earlier gateway holds it."""
        del nodes
        bundles = json.loads(reservation)
        self._held[attempt] = _Held(tuple((node, slots, gpus) for node, slots, gpus in bundles))

    def remove_others(self, kept: Iterable[str]) -> None:
        """Nothing: an earlier gateway has left only what was adopted."""

    def has_idle(self, plan: Placement) -> bool:
        """Whether there is room for it now."""
        return self._find(plan) is not None

    def is_late(self, attempt: str, patience_s: float) -> bool:
        """No room has been found for it for so long."""
        pending = self._pending.get(attempt)
        return pending is not None and self._clock() - pending.since > patience_s

    def stuck(self) -> bool:
        """One waits for longer than it should: later ones are held back."""
        now = self._clock()
        return any(now - each.since > STUCK_S for each in self._pending.values())

    def tick(self) -> float | None:
        """Place what there is room for by now, the oldest first."""
        for attempt in list(self._pending):
            if attempt in self._pending:
                self._place(attempt)
        return STUCK_S if self._pending else None

    def _place(self, attempt: str) -> None:
        plan = self._pending[attempt].plan
        nodes = self._find(plan)
        if nodes is None:
            return
        del self._pending[attempt]
        self._held[attempt] = _Held(
            tuple((node, each.slots, each.gpus) for node, each in zip(nodes, plan.bundles, strict=True))
        )
        self._ready(attempt, nodes)

    def _find(self, plan: Placement) -> list[str] | None:
        """A node for each bundle."""
        left = {node.node_id: node for node in self._nodes()}
        for held in self._held.values():
            for node_id, slots, gpus in held.bundles:
                if (node := left.get(node_id)) is not None:
                    left[node_id] = replace(node, slots=node.slots - slots, gpus=node.gpus - gpus)
        return assign(plan.bundles, list(left.values()), plan.strategy)
