"""`SharedOut`: which cluster each gang goes to where the tasks of an experiment spread over several places.

A gang is in one place as a whole. It goes to the first place that has room for it now, and waits here while
none has: so that machines that come late, or never, hold nothing up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.executors.base import GangRequest, GangStatus, Phase
from trainmaster.spec.errors import LeaseLostError, TrainmasterError, one_line

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_connection import ClusterConnection
    from trainmaster.cluster.member_places import MemberPlaces

#: Connections of an experiment, the first place first.
Order = Sequence["ClusterConnection"]


class SharedOut:
    """Of all experiments of a run. The run's loop owns it.

    Args:
        places: clusters of each experiment.
        member_places: know the machines of attempts that an earlier driver began.

    Attributes:
        places: the same.
        waiting: gangs that no place has room for now.
    """

    def __init__(self, places: Mapping[str, Order], member_places: MemberPlaces) -> None:
        self.places = places
        self.waiting: dict[str, GangRequest] = {}
        self._member_places = member_places
        self._chosen: dict[str, ClusterConnection] = {}
        self._slots: dict[str, int] = {}
        self._left: list[ClusterConnection] = []

    @property
    def slots(self) -> int:
        """The most processes that the clusters of one experiment take at once."""
        return max(sum(each.loop.record.plan.slots for each in order) for order in self.places.values())

    def connection(self, attempt: str) -> ClusterConnection:
        """Where an attempt is; the first place of one that is nowhere yet."""
        order = self._order(attempt)
        if len(order) == 1 or attempt in self._chosen:
            return self._chosen.get(attempt, order[0])
        machines = {machine for _, machine in self._member_places.machines(attempt, {})}
        had = (each for each in order if machines & {one.id for one in each.loop.record.machines})
        return next(had, order[0])

    def candidates(self, attempt: str) -> Order:
        """Where an attempt may be."""
        return (self._chosen[attempt],) if attempt in self._chosen else self._order(attempt)

    def experiments(self, connection: ClusterConnection) -> list[str]:
        """That run on a cluster."""
        return [name for name, order in self.places.items() if connection in order]

    def take(self, gang: GangRequest) -> bool:
        """Have a gang wait here for room in any of its places; False of what has one place only."""
        order = self._order(gang.attempt)
        if len(order) == 1 or gang.attempt in self._chosen:
            return False
        for connection in order:
            connection.loop.want()
        self.waiting[gang.attempt] = gang
        return True

    def send(self) -> list[ClusterConnection]:
        """Give gangs that wait to places that have room; to which."""
        found: dict[int, ClusterConnection] = {}
        for attempt, gang in list(self.waiting.items()):
            room = (each for each in self._order(attempt) if self._has_room(each, gang.slots))
            if (connection := next(room, None)) is not None:
                del self.waiting[attempt]
                self._chosen[attempt], self._slots[attempt] = connection, gang.slots
                connection.take(gang)
                found[id(connection)] = connection
        return list(found.values())

    def heard(self, status: GangStatus, connection: ClusterConnection) -> bool:
        """Whether an attempt is known where it was asked for; it stays there then."""
        if status.phase is Phase.UNKNOWN and len(self._order(status.attempt)) > 1:
            return False
        self._chosen[status.attempt] = connection
        self._slots.setdefault(status.attempt, len(status.members) or 1)
        return True

    def noted(self, status: GangStatus) -> None:
        """One that has ended holds no room; one that is unknown may go elsewhere."""
        if status.phase in (Phase.EXITED, Phase.UNKNOWN):
            self._slots.pop(status.attempt, None)
        if status.phase is Phase.UNKNOWN:
            self._chosen.pop(status.attempt, None)

    def stop(self, attempt: str) -> None:
        """One that waits here is given up where it would have been first."""
        if (gang := self.waiting.pop(attempt, None)) is not None:
            self._order(attempt)[0].waiting[attempt] = gang

    def forget(self, attempt: str) -> None:
        """Its end is recorded."""
        self.waiting.pop(attempt, None)
        self._chosen.pop(attempt, None)
        self._slots.pop(attempt, None)

    def without(self, connection: ClusterConnection, error: Exception) -> Iterator[str]:
        """Go on without a cluster that cannot be had, where all of its experiments have another one.

        What waits there for machines waits here again.

        Raises:
            Exception: that, if there is none, or somebody else drives the run.
        """
        if isinstance(error, LeaseLostError):
            raise error
        if connection not in self._left:
            self._left.append(connection)
            orders = [self.places[name] for name in self.experiments(connection)]
            is_other = all(any(other not in self._left for other in order) for order in orders)
            if not isinstance(error, TrainmasterError) or not is_other:
                raise error
            record = connection.loop.record
            yield f"{record.plan.name} goes on without machines of {record.provider}: {one_line(error)}"
        for attempt in list(connection.waiting):
            self.waiting[attempt] = connection.waiting.pop(attempt)
            self._chosen.pop(attempt, None)
            self._slots.pop(attempt, None)

    # --- private -----------------------------------------------------------------------------------

    def _order(self, attempt: str) -> Order:
        return self.places[attempt.split("/")[1]]

    def _has_room(self, connection: ClusterConnection, slots: int) -> bool:
        """Whether it is up, and its nodes have so many slots left."""
        if connection.executor is None or connection in self._left:
            return False
        plan, there = connection.loop.record.plan, len(connection.executor.nodes())
        used = sum(self._slots.get(each, 0) for each, other in self._chosen.items() if other is connection)
        return used == 0 or used + slots <= plan.slots * min(there, plan.nodes) // max(plan.nodes, 1)
