"""`UnmeasuredCluster`: the cheapest machines that can do an experiment of which nothing was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.quote.quote import ClusterShape, Rented
from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer
from trainmaster.providers.capabilities import capabilities_of, measured_name
from trainmaster.service.quotes.quote_options import QuoteOptions
from trainmaster.service.quotes.worker_counts import allowed_workers, quoted_workload
from trainmaster.spec import Experiment, Recipe

if TYPE_CHECKING:
    from trainmaster.advisor.quote.supply import Supply
    from trainmaster.spec.log_normal import LogNormal


@dataclass(frozen=True, slots=True)
class UnmeasuredCluster:
    """With as few workers as the recipe allows, or on just so many machines as one of several places has.

    Attributes:
        workload: of the experiment.
        offer: that each of its machines is.
        shape: of the cluster.
    """

    workload: Workload
    offer: Offer
    shape: ClusterShape

    @classmethod
    def of(
        cls, recipe: Recipe, experiment: Experiment, supply: Supply, options: QuoteOptions
    ) -> UnmeasuredCluster:
        """Choose it.

        Args:
            recipe: that is quoted.
            experiment: one of it.
            supply: what there is to be had.
            options: of the quote.

        Raises:
            UsageError: there is no machine on which a worker can run.
        """
        from trainmaster.advisor.quote.supply import offers_for

        workload, workers = quoted_workload(recipe, experiment, options), allowed_workers(experiment)[0]
        best = min(offers_for(workload, supply).offers, key=lambda offer: offer.price_usd_per_hour)
        servers = Rented.of(best, workload.servers) if supply.has_server_machines(workload) else None
        machines = Rented.of(best, 1 if supply.is_there else workload.machines or workers)
        return cls(workload, best, ClusterShape(machines, servers, workers))

    def wait(self, supply: Supply) -> LogNormal:
        """How long its machines are waited for."""
        from trainmaster.advisor.market.phases import machines_belief

        servers = self.shape.server
        return machines_belief(
            capabilities_of(self.offer.provider).provisioning_s,
            supply.waited,
            self.offer.provider,
            measured_name(self.offer.provider, self.offer.instance_type),
            self.offer.vcpus,
            self.shape.worker.count + (servers.count if servers else 0),
        )

    def to_measure(self, provider: str) -> dict[str, Any]:
        """Its machines, for `Quote.to_measure`: of one worker, which shows what a step takes.

        How many steps there are only as many workers show as the recipe has.

        Args:
            provider: that rents them.
        """
        instance, workers = self.offer.instance_type, self.shape.workers
        found = {
            "workers": [instance],
            "servers": [instance] if self.workload.servers else [],
            "usd_per_hour": {instance: self.offer.price_usd_per_hour},
            "traffic_mbps": {},
            "traffic": False,
            "provider": provider,
        }
        if self.workload.has_length or workers == 1:
            return found
        servers = self.shape.server.count if self.shape.server is not None else 0
        return found | {"processes": workers, "machines": {instance: workers + servers}}
