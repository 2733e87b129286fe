"""`KeptCluster`: machines that an earlier run of the team keeps warm; which plan would take them over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from trainmaster.cluster.record import ClusterRecord, ClusterState, as_there, fits, readable
from trainmaster.cluster.renting.plan import ClusterPlan
from trainmaster.cluster.renting.requirements import SERVER, WORKER
from trainmaster.dataclass import dataclass
from trainmaster.service.quotes.phase_records import brought_by

if TYPE_CHECKING:
    from trainmaster.advisor.quote.quote import Rented
    from trainmaster.service.open_home import OpenHome


@dataclass(frozen=True, slots=True)
class KeptCluster:
    """A warm cluster.

    Attributes:
        record: of it. run: that has kept it.
    """

    record: ClusterRecord
    run: str

    def contents(self, service: OpenHome) -> frozenset[str]:
        """Hashes of what `setup` and `container` have brought there."""
        return brought_by(service, self.run, self.record.plan.experiments)

    @property
    def machines(self) -> tuple[Rented, Rented | None]:
        """As quotes have them: of its workers, and of parameter servers on machines of their own."""
        from trainmaster.advisor.quote.quote import Rented

        found = dict[str, Rented]()
        for machine in self.record.rented:
            one, count = machine.rental, found[machine.role].count if machine.role in found else 0
            price, provider = one.usd_per_hour, self.record.provider
            found[machine.role] = Rented(one.instance_type, count + 1, one.spot, provider, one.region, price)
        return found[WORKER], found.get(SERVER)

    @property
    def gpus(self) -> int:
        """Of each of its workers' machines, at least."""
        return min(machine.rental.gpus for machine in self.record.rented if machine.role == WORKER)

    def billed_usd(self, seconds: float) -> float:
        """What its machines cost at most in so long a time."""
        return sum(machine.rental.at_most.billed_usd(seconds) for machine in self.record.rented)


def kept_clusters(service: OpenHome, provider: str, team: str | None) -> Iterator[KeptCluster]:
    """Those of a team at a provider. Somebody else may still be quicker."""
    now = datetime.now(UTC).timestamp()
    rows = service.database.living_clusters(provider, service.home.identity())
    for row in rows:
        if row["state"] == ClusterState.KEPT and row["team"] == team:
            for record in readable([row], lambda _: None):
                if (record.kept_until or 0.0) > now:
                    yield KeptCluster(record, row["run_id"])


def warm_clusters(
    service: OpenHome, plans: Iterable[ClusterPlan], team: str | None
) -> dict[str, KeptCluster]:
    """What is there for plans, by their names; each cluster for one of them."""
    found = dict[str, KeptCluster]()
    for plan in plans:
        taken = {each.record.id for each in found.values()}
        for kept in kept_clusters(service, plan.provider, team):
            if kept.record.id not in taken and fits(kept.record, plan):
                found[plan.name] = kept
                break
    return found


def warm_note(experiments: Iterable[str]) -> str:
    """The note on experiments that take over what is there."""
    return f"{', '.join(experiments)}: an earlier run keeps such machines warm: they are not waited for"


def on_warm(service: OpenHome, plans: Iterable[ClusterPlan], team: str | None) -> tuple[ClusterPlan, ...]:
    """The plans with what a run takes over first: it has neither name nor price of what it would rent."""
    plans = tuple(plans)
    warm = warm_clusters(service, plans, team)
    return tuple(as_there(plan, warm[plan.name].record) if plan.name in warm else plan for plan in plans)
