"""`ClusterCosts`: a run's rented machines as its quote sees them, read from the records of its clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from trainmaster.advisor.market.phases import ClusterWait, machines_belief
from trainmaster.cluster.record import ClusterRecord, ClusterState
from trainmaster.cluster.renting.plan import Rental
from trainmaster.control.loop.recording import AttemptMachine
from trainmaster.dataclass import dataclass, field
from trainmaster.providers.capabilities import HOST, capabilities_of, measured_name

if TYPE_CHECKING:
    from trainmaster.advisor.quote.forecast import Overhead
    from trainmaster.service.quotes.phase_records import ExperimentPhases


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """A cluster.

    Attributes:
        experiments: that run on it.
        machine: what its workers' machines are called in measurements; see `measured_name`.
        nodes: how many machines its workers have. slots: processes that all of its machines take at once.
        usd_per_hour: of all its machines: as they were had, else as planned.
        is_there: its machines are paid for now.
        provider, region, instance: of its workers' machines.
        phases: what is no training, by experiment.
        gpus: that each of its workers' machines has.
        machines: how many it has in all.
        billed: how each of its machines is billed, and since when; None of one that is not there yet.
        is_over: it is given back.
        was_there: an earlier run had kept it. stays: this one will.
        contents: hashes of what that run has brought there; None: unknown.
        asked_at: Unix seconds since when its machines are waited for; None of one that is there, or to come.
        driver_usd_per_hour: of its machine that drives the run, and stays until all of that is over; 0: none.
    """

    experiments: tuple[str, ...]
    machine: str
    nodes: int
    slots: int
    usd_per_hour: float
    is_there: bool
    provider: str = ""
    region: str = ""
    instance: str = ""
    phases: Mapping[str, ExperimentPhases] = field(default_factory=dict)
    gpus: int = 0
    machines: int = 1
    billed: tuple[tuple[Rental, float | None], ...] = ()
    is_over: bool = False
    was_there: bool = False
    stays: bool = False
    contents: frozenset[str] | None = None
    asked_at: float | None = None
    driver_usd_per_hour: float = 0.0

    @property
    def is_billed(self) -> bool:
        """Whether machines of it are billed already, also before it is there."""
        return any(since is not None for _, since in self.billed)

    def paid_s(self, now: float) -> float:
        """Seconds from now on that are paid already, or will be at least: by the prices of its machines."""
        usd = sum(rental.usd_per_hour for rental, _ in self.billed)
        if not usd:
            return 0.0
        ahead = 0.0
        for rental, since in self.billed:
            had_s = 0.0 if since is None else max(now - since, 0.0)
            ahead += rental.usd_per_hour * (rental.billed_s(had_s) - had_s)
        return ahead / usd

    @property
    def most_usd_per_hour(self) -> float:
        """Of its machines, if spot ones become as dear as they may."""
        return sum(rental.at_most.usd_per_hour for rental, _ in self.billed)

    @property
    def quantum_s(self) -> float:
        """The pieces of time in which its machines are billed: the longest of them."""
        return max((rental.quantum_s for rental, _ in self.billed), default=0.0)

    def beside(self) -> dict[str, Overhead]:
        """What is no training there, by experiment."""
        mine = {name: self.phases[name] for name in self.experiments if name in self.phases}
        there = (self.provider, self.region, self.instance)
        return {
            name: (one.on_warm(self.contents) if self.was_there else one).beside(*there)
            for name, one in mine.items()
        }


class ClusterCosts(Protocol):
    """The machines of a run off this one.

    Attributes:
        provider: whose.
        waited: how long earlier runs waited for its machines.
        gave_back_s: what giving them back took, by provider.
    """

    provider: str
    waited: Sequence[ClusterWait]
    gave_back_s: Mapping[str, Sequence[float]]

    @property
    def ready_at(self) -> float | None:
        """Unix seconds when the first cluster was up; None before."""
        ...

    def spent_usd(self, now: float) -> float:
        """Dollars until now."""
        ...

    def clusters(self) -> Sequence[ClusterFacts]:
        """Those that there are, and those still to come."""
        ...

    def expected(self, cluster: ClusterFacts) -> Sequence[tuple[str, tuple[float, float, float]]]:
        """Seconds that waiting for a cluster, and giving it back, take: p5, p50 and p95 of each phase."""
        ...


class RecordedClusterCosts:
    """See `ClusterCosts`.

    Args:
        provider: whose machines.
        records: gives the present records.
        waited: how long earlier runs waited.
        phases: what comes beside the training, by experiment.
        gave_back_s: what giving machines back took, by provider.
        spent: dollars until a moment, with clusters of earlier sessions; None: of the records.
        own_cluster: id of the one that drives the run; or empty.
    """

    def __init__(
        self,
        provider: str,
        records: Callable[[], Sequence[ClusterRecord]],
        waited: Sequence[ClusterWait] = (),
        phases: Mapping[str, ExperimentPhases] | None = None,
        gave_back_s: Mapping[str, Sequence[float]] | None = None,
        spent: Callable[[float], float] | None = None,
        own_cluster: str = "",
    ) -> None:
        self.provider, self._own_cluster = provider, own_cluster
        self._spent = spent
        self.gave_back_s = gave_back_s or {}
        self._phases = phases or {}
        self.waited = waited
        self._records = records

    @property
    def ready_at(self) -> float | None:
        """See `ClusterCosts`. One that was still warm was there before."""
        ups = [
            max(record.asked_at + record.waited_s, record.paid_from)
            for record in self._records()
            if record.asked_at is not None and record.waited_s is not None
        ]
        return min(ups, default=None)

    def spent_usd(self, now: float) -> float:
        """See `ClusterCosts`."""
        if self._spent is not None:
            return self._spent(now)
        return sum(record.spent_usd(now) for record in self._records())

    def clusters(self) -> Sequence[ClusterFacts]:
        """See `ClusterCosts`."""
        facts = [(each.id == self._own_cluster, _facts(each, self._phases)) for each in self._records()]
        return [
            # Of those that are there: others of its cluster may have been given back.
            replace(each, driver_usd_per_hour=each.usd_per_hour / max(len(each.billed), 1))
            if is_own
            else each
            for is_own, each in facts
        ]

    def expected(self, cluster: ClusterFacts) -> Sequence[tuple[str, tuple[float, float, float]]]:
        """See `ClusterCosts`."""
        provider = cluster.provider or self.provider
        can = capabilities_of(provider)
        wait = machines_belief(
            can.provisioning_s, self.waited, provider, cluster.machine, machines=cluster.machines
        )
        back = can.giving_back_s.learnt(self.gave_back_s.get(provider, ()))
        spans = (
            ("machines", wait.quantiles, cluster.was_there),
            ("giving back", back.quantiles, cluster.stays),
        )
        return [(phase, span) for phase, span, is_none in spans if not is_none]


def clusters_left(clusters: Sequence[ClusterFacts], experiment: str) -> list[ClusterFacts]:
    """Those of an experiment that are not given back; all of its own where none is left.

    Args:
        clusters: of the run.
        experiment: of the run.
    """
    its = [each for each in clusters if experiment in each.experiments]
    return [each for each in its if not each.is_over] or its


def where_in(costs: ClusterCosts, experiment: str) -> AttemptMachine:
    """What an experiment runs on; where its tasks spread over several places, on their first.

    Args:
        costs: of the run.
        experiment: of the run.
    """
    its = clusters_left(costs.clusters(), experiment)
    return _where(its[0]) if its else AttemptMachine(HOST, 1)


def where_on(record: ClusterRecord) -> AttemptMachine:
    """What attempts on a cluster run on, for keeping measurements.

    Args:
        record: of the cluster.
    """
    return _where(_facts(record, {}))


def _where(cluster: ClusterFacts) -> AttemptMachine:
    return AttemptMachine(cluster.machine, max(cluster.slots // cluster.nodes, 1), cluster.was_there)


def _facts(record: ClusterRecord, phases: Mapping[str, ExperimentPhases]) -> ClusterFacts:
    plan = record.plan
    workers = [machine.rental for machine in record.rented if machine.role == plan.roles[0].role]
    rental = workers[0] if workers else plan.roles[0].rentals[0]
    is_there = record.state is ClusterState.ACTIVE and record.waited_s is not None
    return ClusterFacts(
        plan.experiments,
        measured_name(record.provider, rental.instance_type),
        plan.roles[0].count,
        plan.slots,
        record.usd_per_hour() if is_there else plan.usd_per_hour,
        is_there,
        record.provider,
        rental.region,
        rental.instance_type,
        phases,
        rental.gpus,
        sum(role.count for role in plan.roles),
        _billed(record, is_there),
        record.state in (ClusterState.ENDING, ClusterState.ENDED),
        record.paid_from > 0,
        record.keepable_s > 0,
        None if record.brought is None else frozenset(record.brought),
        None if is_there or record.waited_s is not None else record.asked_at,
    )


def _billed(record: ClusterRecord, is_there: bool) -> tuple[tuple[Rental, float | None], ...]:
    """As in `ClusterFacts.billed`: the machines of its price."""
    begun = [(m.rental, m.started_at) for m in record.machines if m.started_at and m.ended_at is None]
    if is_there:
        return tuple(begun)
    planned = [(role.rentals[0], None) for role in record.plan.roles for _ in range(role.count)]
    return (*begun, *planned[len(begun) :])
