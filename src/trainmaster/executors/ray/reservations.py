"""Room for gangs: Ray's placement groups, all of a gang's bundles or none.

A reservation outlives the gateway, which finds it again by its id. One that a gang has given back is kept for
a moment for the next gang of the same shape: making one takes Ray 2 ms, but up to a second when another has
just been removed on the same node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from trainmaster.executors.gangs.placement import Placement

PREFIX = "trainmaster/"
_IDLE_S = 5.0
#: A reservation that Ray cannot grant for so long holds back all later ones, so that it gets its turn.
STUCK_S = 1.0
_LOOK_S = (0.002, 0.1)


class Reservation:
    """A placement group, and the node of each bundle once it is there."""

    def __init__(self, group: Any, shape: tuple[object, ...]) -> None:  # noqa: ANN401 - Ray's
        self.group = group
        self.shape = shape
        self.since = time.monotonic()
        self.slots = 0.0
        self.nodes: list[str] = []

    @property
    def id(self) -> str:
        """Ray's, in hexadecimal."""
        return str(self.group.id.hex())


class PlacementGroups:
    """All of them; see `Reservations` of `gangs/engine.py`.

    Args:
        ready: told the attempt and the node of each bundle.
    """

    def __init__(self, ready: Callable[[str, list[str]], None]) -> None:
        self._ready = ready
        self._pending: dict[str, Reservation] = {}
        self._held: dict[str, Reservation] = {}
        self._idle: list[Reservation] = []
        self._pause_s = _LOOK_S[0]
        self._look_at = 0.0
        self._count = 0

    def take(self, attempt: str, plan: Placement, alive: Container[str]) -> None:
        """Reserve room; ``ready`` is told when it is there."""
        for reservation in self._idle:
            if reservation.shape == plan.shape and all(node in alive for node in reservation.nodes):
                self._idle.remove(reservation)
                self._held[attempt] = reservation
                self._ready(attempt, reservation.nodes)
                return
        self._clear_idle(float("inf"))  # they may take the room that is wanted now
        from ray.util import placement_group

        self._count += 1
        group = placement_group(
            [bundle.resources for bundle in plan.bundles],
            strategy=plan.strategy,
            name=f"{PREFIX}{time.time_ns()}-{self._count}",
            lifetime="detached",
            bundle_label_selector=[dict(bundle.labels) for bundle in plan.bundles],
        )
        reservation = Reservation(group, plan.shape)
        reservation.slots = sum(bundle.slots for bundle in plan.bundles)
        self._pending[attempt] = reservation
        self._pause_s, self._look_at = _LOOK_S[0], 0.0

    def give_back(self, attempt: str, alive: Container[str]) -> None:
        """The gang needs it no more, or never will."""
        if pending := self._pending.pop(attempt, None):
            _remove(pending)
        if held := self._held.pop(attempt, None):
            if held.shape and all(node in alive for node in held.nodes):
                held.since = time.monotonic()
                self._idle.append(held)
            else:
                _remove(held)

    @property
    def used(self) -> float:
        """Slots of all that are held or waited for."""
        return sum(each.slots for group in (self._held, self._pending) for each in group.values())

    @property
    def held(self) -> float:
        """Slots of those that are held."""
        return sum(each.slots for each in self._held.values())

    def is_late(self, attempt: str, patience_s: float) -> bool:
        """Ray has not found room for it for so long."""
        pending = self._pending.get(attempt)
        return pending is not None and time.monotonic() - pending.since > patience_s

    def has_idle(self, plan: Placement) -> bool:
        """One of that shape may be there at once."""
        return any(each.shape == plan.shape for each in self._idle)

    def hand_over(self, attempt: str, following: str) -> None:
        """Another gang holds it from now on."""
        if held := self._held.pop(attempt, None):
            self._held[following] = held

    def id_of(self, attempt: str) -> str:
        """Of the reservation that a gang holds, empty if none."""
        held = self._held.get(attempt)
        return held.id if held else ""

    def adopt(self, attempt: str, group_id: str, nodes: list[str]) -> None:
        """A gang of an earlier gateway holds it."""
        from ray._raylet import PlacementGroupID
        from ray.util.placement_group import PlacementGroup

        reservation = Reservation(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))), ())
        reservation.nodes = nodes
        self._held[attempt] = reservation

    def remove_others(self, kept: Iterable[str]) -> None:
        """Remove what an earlier gateway has left, but for these."""
        from ray._raylet import PlacementGroupID
        from ray.util.placement_group import PlacementGroup, placement_group_table

        keep = set(kept)
        for group_id, row in placement_group_table().items():
            if row["name"].startswith(PREFIX) and row["state"] != "REMOVED" and group_id not in keep:
                _remove(Reservation(PlacementGroup(PlacementGroupID(bytes.fromhex(group_id))), ()))

    def stuck(self) -> bool:
        """One waits for longer than it should."""
        now = time.monotonic()
        return any(now - each.since > STUCK_S for each in self._pending.values())

    def tick(self) -> float | None:
        """Look what has become ready; seconds until the next look, None when there is nothing to look at."""
        now = time.monotonic()
        self._clear_idle(now - _IDLE_S if not self._pending else float("inf"))
        if not self._pending:
            return _IDLE_S if self._idle else None
        if now < self._look_at:
            return self._look_at - now
        from ray.util.placement_group import placement_group_table

        for attempt, reservation in list(self._pending.items()):
            row = placement_group_table(reservation.group)
            if row.get("state") != "CREATED":
                continue
            nodes = row["bundles_to_node_id"]
            reservation.nodes = [nodes[index] for index in range(len(nodes))]
            del self._pending[attempt]
            self._held[attempt] = reservation
            self._pause_s = _LOOK_S[0]
            self._ready(attempt, reservation.nodes)
        self._pause_s = min(self._pause_s * 2, _LOOK_S[1])
        self._look_at = time.monotonic() + self._pause_s
        return self._pause_s if self._pending else _IDLE_S

    def _clear_idle(self, before: float) -> None:
        kept = []
        for reservation in self._idle:
            if reservation.since < before:
                _remove(reservation)
            else:
                kept.append(reservation)
        self._idle = kept


def _remove(reservation: Reservation) -> None:
    from ray.util import remove_placement_group

    remove_placement_group(reservation.group)
