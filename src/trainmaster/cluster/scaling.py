"""`Scaling`: how many machines of a cluster are needed, which are awaited, and which are to spare. Pure.

Replicas of a service come and go: the run's loop says how many machines are enough for those that there are,
and on which ones nothing works. As long as it says nothing, every seat needs a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainmaster.cluster.decision import Stage

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord, Machine


@dataclass(slots=True)
class Scaling:
    """What the run's loop has said.

    Attributes:
        needed: so many machines are enough; None: one for each seat.
        unused: ids of machines on which nothing works, nor is about to.
    """

    needed: int | None = None
    unused: frozenset[str] = frozenset()

    def to_fill(self, free: list[str], held: int) -> list[str]:
        """Which seats are to get a machine.

        Args:
            free: those that have none.
            held: how many have one.

        >>> Scaling(2).to_fill(["worker-1", "worker-2"], 1), Scaling().to_fill(["worker-1"], 1)
        (['worker-1'], ['worker-1'])
        """
        return free if self.needed is None else free[: max(self.needed - held, 0)]

    def least(self, count: int) -> int:
        """How many nodes are enough to begin with, of a role that needs so many otherwise."""
        return count if self.needed is None else min(count, self.needed)

    def to_spare(self, record: ClusterRecord, stages: Mapping[str, Stage]) -> list[Machine]:
        """Nodes that are more than are needed, and on which nothing works; the newest first."""
        if self.needed is None:
            return []
        staying = [m for m in record.live if not m.is_leaving]
        unused = [m for m in staying if m.id in self.unused and stages.get(m.id) is Stage.JOINED]
        return unused[::-1][: max(len(staying) - self.needed, 0)]

    def awaits(self, record: ClusterRecord, stages: Mapping[str, Stage]) -> bool:
        """Whether there are fewer nodes than are needed."""
        there = sum(not m.is_leaving and stages.get(m.id) is Stage.JOINED for m in record.rented)
        return self.needed is not None and there < min(self.needed, len(record.seats))
