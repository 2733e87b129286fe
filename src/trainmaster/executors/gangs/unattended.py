"""What a node does for its gangs while no driver is there: it ends what waits for a dead peer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmaster.executors.gangs.life import Gang

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainmaster.executors.base import GangStatus
    from trainmaster.executors.gangs.life import Command
    from trainmaster.executors.wire import Message


def parts_of(records: Mapping[str, Message]) -> dict[str, list[str]]:
    """Parts of gangs over several nodes, by the id of their node.

    Args:
        records: see `Gang.record`; by the part that is on this node.
    """
    found: dict[str, dict[str, None]] = {}
    for record in records.values():
        if len(record["parts"]) > 1:
            for name, (_, node_id, _), *_ in record["parts"]:
                found.setdefault(node_id, {})[name] = None
    return {node_id: list(names) for node_id, names in found.items()}


class Unattended:
    """Gangs with a part on this node, from when their driver has gone until one comes.

    Each node decides for all of a gang as a driver would, and acts on its own part alone.

    Attributes:
        gangs: as far as they are known, by the part that is on this node and the gang's reservation: one that
            is submitted again has the same parts.
    """

    def __init__(self) -> None:
        self.gangs: dict[tuple[str, str], Gang] = {}

    def orders(
        self, records: Mapping[str, Message], seen: Mapping[str, GangStatus | None], now: float
    ) -> list[Command]:
        """What its supervisor is to be told.

        Args:
            records: by the part that is on this node.
            seen: of parts on all nodes that answer; None for those whose nodes are dead.
            now: Unix seconds.
        """
        found: list[Command] = []
        for own, record in records.items():
            gang = self.gangs.setdefault((own, record["reservation"]), Gang.from_record(record))
            if gang.alone:
                continue
            for part in gang.parts:
                if part.name not in seen or part.over:
                    continue
                status = seen[part.name]
                if status is None:
                    part.lose(now)
                else:
                    part.took(status, now)
            orders = gang.after(now).orders
            if gang.kill_at is not None and gang.kill_at <= now:
                orders += gang.press().orders
            found += [command for part, command in orders if part.name == own]
        return found
