"""The papers' policies behind the same verb: FC2's four, and Anwar's lookup. They know prices, not times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.papers.lookup import looked_up
from trainmaster.advisor.papers.policies import PricedType, cost_opt, scala_opt, time_opt
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Quote, Rented
from trainmaster.providers import Catalogue, Offer, OfferFilter
from trainmaster.spec.errors import UsageError

#: Names for ``--policy``, and where they are from.
POLICIES: Final[Mapping[str, str]] = {
    "quote": "our own: the best cluster that keeps budget and deadline with 90 %",
    "cost-opt": "FC2 section 5.2.2: the cheapest type",
    "time-opt": "FC2 section 5.2.3: the dearest type",
    "scala-opt": "FC2 section 5.2.4: the type of which the fewest saturate the parameter server",
    "scala-opt-m": "FC2 section 5.2.4: the same for the type that hardware.instance names",
    "lookup": "Anwar et al. section 4: the fastest cluster that was measured",
}


#: Types that a note names.
_NAMED: Final = 3


@dataclass(frozen=True)
class PolicyInput:
    """What a policy is given.

    Attributes:
        catalogue: offers. bandwidth_mbps: traffic of one worker, by instance type.
        server: the parameter server's type; None leaves it open.
        max_workers: of one task, without servers. usd_per_hour: of the whole cluster.
        time_weight, cost_weight: of the objective (Anwar's alpha and beta).
    """

    catalogue: Catalogue
    bandwidth_mbps: Mapping[str, float] = field(default_factory=dict)
    server: str | None = None
    max_workers: int | None = None
    usd_per_hour: float | None = None
    time_weight: float = 1.0
    cost_weight: float = 0.0


def policy_quote(
    policy: str,
    workloads: Sequence[Workload],
    given: PolicyInput,
    history: Mapping[str, Sequence[Measurement]] | None = None,
) -> Quote:
    """Quote all experiments by one of the papers' policies; time and cost are None where it knows none.

    Args:
        policy: one of `POLICIES` but ``quote``.
        workloads: at least one. FC2's policies skip those without parameter servers.
        given: prices and bandwidths.
        history: what was measured, by experiment; for ``lookup``.

    Raises:
        UsageError: nothing can be said, with the reason.
    """
    quotes: dict[str, ExperimentQuote] = {}
    skipped: dict[str, str] = {}
    for workload in workloads:
        if policy == "lookup":
            rows = (history or {}).get(workload.name, ())
            quotes[workload.name] = looked_up(
                workload, rows, given.catalogue, given.time_weight or 1.0, given.cost_weight
            )
        elif not workload.servers:
            skipped[workload.name] = f"{policy} sizes clusters with a parameter server; it has none"
        else:
            quotes[workload.name] = _picked(policy, workload, given)
    if not quotes:
        name, why = next(iter(skipped.items()))
        raise UsageError(
            f"experiments.{name}: {why}", "Take --policy quote, or a strategy with parameter servers."
        )
    times = [quote.time_s for quote in quotes.values()]
    known = len(quotes) == 1 and times[0] is not None
    only = next(iter(quotes.values()))
    return Quote(
        quotes,
        only.time_s if known else None,
        only.cost_usd if known else None,
        policy,
        given.catalogue.name,
        given.catalogue.as_of.isoformat() if given.catalogue.as_of else "",
        skipped,
        given.catalogue.warnings,
    )


def _picked(policy: str, workload: Workload, given: PolicyInput) -> ExperimentQuote:
    offers = _cheapest_of_each_type(given.catalogue, OfferFilter.from_hardware(workload.hardware))
    where = f"experiments.{workload.name}.hardware"
    if not offers:
        raise UsageError(
            f"{where}: no offer of the catalogue '{given.catalogue.name}' has all of that",
            "`trainmaster offers` with the same wishes as options shows which one excludes all.",
        )
    workers = [
        PricedType(
            offer.instance_type,
            offer.price_usd_per_hour,
            given.bandwidth_mbps.get(offer.instance_type.lower()),
        )
        for offer in offers
    ]
    wanted = replace(OfferFilter.from_hardware(workload.server_hardware), gpu=None, gpus=None)
    if given.server:
        wanted = OfferFilter(spot=wanted.spot, instances=(given.server,))
    hosts = _cheapest_of_each_type(given.catalogue, wanted)
    if not hosts:
        raise UsageError(
            f"--parameter-server: the catalogue '{given.catalogue.name}' has no "
            f"{given.server or 'offer for distributed.hardware.ps'}",
            "`trainmaster offers --catalogue ...` lists its types.",
        )
    servers = [
        PricedType(o.instance_type, o.price_usd_per_hour, o.nic_gbps * 1000 if o.nic_gbps else None)
        for o in hosts
    ]
    most = _most(workload, given.max_workers)
    if policy == "scala-opt-m" and len(workers) != 1:
        raise UsageError(
            f"{where}.instance: scala-opt-m counts workers of one type, {len(workers)} are possible",
            "Name one type under hardware.instance.",
        )
    rules = {"cost-opt": cost_opt, "time-opt": time_opt}
    pick = rules.get(policy, scala_opt)(
        workers, servers, budget_per_hour=given.usd_per_hour, max_workers=most
    )
    notes = (*_unsuitable(workload, pick.count), *_left_out(pick.skipped))
    if pick.unrounded != pick.count:
        notes += (f"{pick.unrounded:.2f} workers before rounding down, limited by {pick.limit}",)
    by_type = {offer.instance_type: offer for offer in offers}
    host_by_type = {offer.instance_type: offer for offer in hosts}
    server = pick.server
    return ExperimentQuote(
        name=workload.name,
        cluster=ClusterShape(
            worker=Rented.of(by_type[pick.worker.name], pick.count),
            server=Rented.of(host_by_type[server.name], workload.servers) if server else None,
            workers=pick.count,
        ),
        bottleneck=pick.limit,
        candidates=len(workers) * len(servers),
        notes=notes,
    )


def _unsuitable(workload: Workload, count: int) -> tuple[str, ...]:
    """Why the recipe cannot be run with so many workers; FC2's policies know no batch."""
    fewest, most = min(workload.lengths), max(workload.lengths)
    if count < fewest:
        return (f"the recipe wants at least {fewest} workers",)
    if count < most and count not in workload.lengths:
        return (f"the recipe's `batch` cannot be shared evenly by {count} workers",)
    return ()


def _left_out(types: Sequence[str]) -> tuple[str, ...]:
    """One note for all types whose bandwidth nobody has measured."""
    if not types:
        return ()
    some = ", ".join(types[:_NAMED]) + (", ..." if len(types) > _NAMED else "")
    many = "1 type is" if len(types) == 1 else f"{len(types)} types are"
    return (f"{many} left out, for want of a measured bandwidth (--bandwidth FILE): {some}",)


def _most(workload: Workload, asked: int | None) -> int | None:
    """--max-workers, or what the recipe itself allows; None leaves it to the budget."""
    if not workload.is_bounded:
        return asked
    return min(asked or workload.most_workers, workload.most_workers)


def _cheapest_of_each_type(catalogue: Catalogue, wishes: OfferFilter) -> list[Offer]:
    """In the catalogue's order; FC2 knows types, not places."""
    found: dict[str, Offer] = {}
    for offer in catalogue.where(replace(wishes, gpus=wishes.gpus or None)):
        known = found.get(offer.instance_type)
        if known is None or offer.price_usd_per_hour < known.price_usd_per_hour:
            found[offer.instance_type] = offer
    return list(found.values())
