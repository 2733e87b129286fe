"""`TaskSpread`: which cluster each gang goes to where the tasks of an experiment spread over several places.

A gang is in one place as a whole. It goes to the first place with machines for it that nothing is on, else
to the first that has room beside others, and waits here while none has: so that all machines are used, and
those that come late, or never, hold nothing up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trainmaster.control.decide.budget import SOON_S, Meter
from trainmaster.control.loop.run_state import ExperimentState
from trainmaster.control.task.layout import experiment_of
from trainmaster.executors.base import GangRequest, GangStatus, Phase
from trainmaster.spec.errors import LeaseLostError, TrainmasterError, UsageError, one_line

if TYPE_CHECKING:
    from trainmaster.cluster.cluster_connection import ClusterConnection
    from trainmaster.cluster.member_places import MemberPlaces
    from trainmaster.cluster.record import ClusterRecord
    from trainmaster.cluster.run_costs import RunCosts

#: Connections of an experiment, the first place first.
Order = Sequence["ClusterConnection"]


class TaskSpread:
    """Of all experiments of a run. The run's loop owns it.

    Args:
        places: clusters of each experiment.
        member_places: know the machines of attempts that an earlier driver began.

    Attributes:
        places: the same.
        waiting: gangs that no place has room for now.
        surplus: clusters that are needed no more, as what is left is on others.
    """

    def __init__(self, places: Mapping[str, Order], member_places: MemberPlaces) -> None:
        self.places = places
        self.waiting: dict[str, GangRequest] = {}
        self._member_places = member_places
        self._chosen: dict[str, ClusterConnection] = {}
        self._holds: dict[str, GangRequest | None] = {}  # what an earlier driver sent is None
        self._latest: dict[str, GangRequest] = {}
        self.surplus: list[ClusterConnection] = []
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
        self._latest[experiment_of(gang.attempt)] = gang
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
            if (connection := self._place(gang)) is not None:
                del self.waiting[attempt]
                self._chosen[attempt], self._holds[attempt] = connection, gang
                connection.take(gang)
                found[id(connection)] = connection
        return list(found.values())

    def heard(self, status: GangStatus, connection: ClusterConnection) -> bool:
        """Whether an attempt is known where it was asked for; it stays there then."""
        if status.phase is Phase.UNKNOWN and len(self._order(status.attempt)) > 1:
            return False
        self._chosen[status.attempt] = connection
        self._holds.setdefault(status.attempt, None)
        return True

    def noted(self, status: GangStatus) -> None:
        """One that has ended holds no room; one that is unknown may go elsewhere."""
        if status.phase in (Phase.EXITED, Phase.UNKNOWN):
            self._holds.pop(status.attempt, None)
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
        self._holds.pop(attempt, None)

    def without(
        self, connection: ClusterConnection, error: Exception, how: str = "goes on without machines of"
    ) -> Iterator[str]:
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
            why = one_line(Exception(*error.args))  # what its hint says is of a run in one place
            yield f"{record.plan.name} {how} {record.provider}: {why}"
        for attempt in list(connection.waiting):
            self.waiting[attempt] = connection.waiting.pop(attempt)
            self._chosen.pop(attempt, None)
            self._holds.pop(attempt, None)

    def why_unpaid(
        self, connection: ClusterConnection, costs: RunCosts, record: ClusterRecord, is_least: bool
    ) -> str:
        """See `WhyUnpaid`; empty also where nothing else goes on: the cap ends the run then."""
        if is_least and not self._is_dispensable(connection):
            return ""
        return costs.why_unpaid(connection.loop, record)

    def without_dear(
        self, costs: RunCosts, meter: Meter, now: float, idle: Collection[ClusterConnection] = ()
    ) -> Iterator[str]:
        """Give back what costs, before the cap ends a run that may go on where it costs nothing.

        The dearest first, and no more than is needed; before them what is ``idle``: its experiments are over,
        and it would only be kept warm.
        """
        # What is over costs no more, and cannot be given back.
        every = dict.fromkeys(
            each for order in self.places.values() for each in order if _costs(each) and not each.loop.is_over
        )
        for connection in every:
            if connection.loop.leaves_at < math.inf:
                costs.leave(connection.loop, now)
        growth = {each: costs.grows_usd(each.loop, now) for each in every}
        may_leave = [each for each in every if each in idle or self._is_dispensable(each)]
        meter.saves_nothing = False
        for connection in sorted(may_leave, key=lambda each: (each not in idle, -growth[each])):
            if not meter.must_end(now + SOON_S):
                return
            if growth[connection] > 0 and connection.loop.leaves_at == math.inf:
                why = UsageError(meter.why_over(now + SOON_S))
                costs.leave(connection.loop, now)
                how, record = "gives back the machines of", connection.loop.record
                if connection in idle:  # nothing need go elsewhere
                    self._left.append(connection)
                    yield f"{record.plan.name} {how} {record.provider}: {one_line(why)}"
                else:
                    yield from self.without(connection, why, how)
        left = {each for each in every if each.loop.leaves_at < math.inf}
        meter.saves_nothing = left.union(may_leave) == set(every)

    def leave_surplus(self, connection: ClusterConnection, experiments: Sequence[ExperimentState]) -> bool:
        """Whether nothing more will be on a cluster: what its experiments have left is on others of theirs.

        It is left then: a further attempt goes to those. So hosts of one's own are not given back, as they
        cost nothing; nor is anything where only machines would be left that may be taken back.

        Args:
            connection: of the cluster.
            experiments: those that run on it.
        """
        if connection in self.surplus or connection in self._left:
            return connection in self.surplus
        if not _is_rented(connection) or not all(
            self._is_elsewhere(each, connection) for each in experiments
        ):
            return False
        self.surplus.append(connection)
        self._left.append(connection)
        return True

    # --- private -----------------------------------------------------------------------------------

    def _is_dispensable(self, connection: ClusterConnection) -> bool:
        """Whether all that runs on a cluster that costs may go on where machines cost nothing."""
        orders = {name: self.places[name] for name in self.experiments(connection)}
        return _costs(connection) and all(
            any(self._may_take_over(name, other) for other in order) for name, order in orders.items()
        )

    def _may_take_over(self, experiment: str, other: ClusterConnection) -> bool:
        latest = self._latest.get(experiment)
        is_free = other not in self._left and not _costs(other)
        return is_free and (latest is None or _may_hold(other, latest))

    def _is_elsewhere(self, experiment: ExperimentState, connection: ClusterConnection) -> bool:
        """Whether all tasks that it has left run on other clusters; one may still be made of what is not."""
        if (
            experiment.serves
            or len(self.places[experiment.name]) == 1
            or experiment.created < experiment.total
        ):
            return False
        others = [each for each in self.places[experiment.name] if each not in (connection, *self._left)]
        if not any(_is_lasting(each) for each in others):
            return False
        there = {
            int(attempt.split("/")[2])
            for attempt, place in self._chosen.items()
            if place is not connection and experiment_of(attempt) == experiment.name and _runs(attempt, place)
        }
        return bool(experiment.live) and set(experiment.live) <= there

    def _order(self, attempt: str) -> Order:
        return self.places[experiment_of(attempt)]

    def _place(self, gang: GangRequest) -> ClusterConnection | None:
        """The first with machines that nothing is on, else the first with enough left of those in use."""
        order = [each for each in self._order(gang.attempt) if each not in self._left]
        ever = any(_may_hold(each, gang) for each in order)
        room = {id(each): self._room(each, gang, ever=ever) for each in order}
        return next((each for most in (2, 1) for each in order if room[id(each)] >= most), None)

    def _room(self, connection: ClusterConnection, gang: GangRequest, *, ever: bool) -> int:
        """2: on machines that nothing is on. 1: beside others. 0: there is none now.

        ``ever``: a place has enough machines for it, or will have; else it has one alone, whatever is there.
        """
        plan = connection.loop.record.plan
        there = 0 if connection.executor is None else min(len(connection.executor.nodes()), plan.nodes)
        if there == 0:
            return 0
        here = [each for each, place in self._chosen.items() if place is connection and each in self._holds]
        held = [self._holds[each] or self._latest.get(experiment_of(each)) for each in here]
        if not held and not ever:
            return 2
        nodes = sum(1 if each is None else _nodes_of(each, connection) for each in held)
        slots = sum(1 if each is None else each.slots for each in held)
        gpus = sum(_gpus_of(each) for each in held if each is not None)
        wanted = _nodes_of(gang, connection)
        has_gpus = not plan.gpus or gpus + _gpus_of(gang) <= plan.gpus * there // plan.nodes
        has_slots = not held or slots + gang.slots <= plan.slots * there // plan.nodes
        if not has_slots or not has_gpus or wanted > there:
            return 0
        return 2 if nodes + wanted <= there else 1


def _runs(attempt: str, connection: ClusterConnection) -> bool:
    """Whether it runs there: one that waits for machines there may still have to go elsewhere."""
    status = connection.sent.get(attempt)
    return connection.executor is not None and status is not None and status.phase is Phase.RUNNING


def _is_rented(connection: ClusterConnection) -> bool:
    """Else its machines are the user's own."""
    plan = connection.loop.record.plan
    return any(rental.is_rented for role in plan.roles for rental in role.rentals)


def _costs(connection: ClusterConnection) -> bool:
    plan = connection.loop.record.plan
    return any(rental.at_most.usd_per_hour for role in plan.roles for rental in role.rentals)


def _is_lasting(connection: ClusterConnection) -> bool:
    """Whether it is up, on machines of which none may be taken back."""
    plan = connection.loop.record.plan
    may_go = any(rental.spot for role in plan.roles for rental in role.rentals)
    return connection.executor is not None and not may_go


def _may_hold(connection: ClusterConnection, gang: GangRequest) -> bool:
    """With all of its machines. Places that do not say how many GPUs they have say 0."""
    plan = connection.loop.record.plan
    has_gpus = not plan.gpus or _gpus_of(gang) <= plan.gpus
    return has_gpus and _nodes_of(gang, connection) <= plan.nodes


def _gpus_of(gang: GangRequest) -> int:
    return sum(member.gpus for member in gang.members)


def _nodes_of(gang: GangRequest, connection: ClusterConnection) -> int:
    """On how many machines it is there at least; other roles may share those of its workers."""
    roles = [member.name.rpartition("-")[0] for member in gang.members]
    if gang.per_node:
        return math.ceil(roles.count("worker" if "worker" in roles else roles[0]) / gang.per_node)
    plan = connection.loop.record.plan
    return min(len(roles), math.ceil(gang.slots * plan.nodes / max(plan.slots, 1)))
