"""The papers' policies behind the same verb: FC2's four, and Anwar's lookup. They know prices, not times."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.papers.policies import PricedType, cost_opt, scala_opt, time_opt
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Interval, Quote, Rented
from trainmaster.providers import Catalogue, Offer, OfferFilter
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import NotFoundError, UsageError


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table.

    Attributes:
        workers: size of the cluster.
        batch: global batch, samples.
        latency_ms: between the nodes, one way.
        time_s: seconds per epoch; None where the run failed (rows that are blank are passed over).
    """

    workers: int
    batch: float
    latency_ms: float
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """The recommended size and its time in seconds."""

    workers: int
    time_s: float


def lookup(
    table: Iterable[Measured],
    batch: float,
    latency_ms: float,
    *,
    time_weight: float = 1.0,
    cost_weight: float = 0.0,
    usd_per_hour: float = 1.0,
) -> Found:
    """The cluster with the least ``alpha * seconds + beta * USD per hour`` at exactly this batch and latency.

    Section 4, equations 6 to 9; the paper uses alpha = 1, beta = 0 throughout. Ties go to the smaller
    cluster (theirs to the larger; no winning tie occurs in their data).

    Args:
        table: what was measured.
        batch: global batch, samples.
        latency_ms: one way.
        time_weight: the paper's alpha.
        cost_weight: the paper's beta.
        usd_per_hour: price of one worker.

    Raises:
        NotFoundError: nothing was measured there (theirs recommends 0 workers), naming the nearest row.
    """
    rows = [row for row in table if row.time_s is not None]
    here = {row.workers: row.time_s for row in rows if row.batch == batch and row.latency_ms == latency_ms}
    if not here:
        raise NotFoundError(
            f"batch {batch:g} at {latency_ms:g} ms was not measured", _nearest(rows, batch, latency_ms)
        )

    def objective(workers: int) -> tuple[float, int]:
        return time_weight * times[workers] + cost_weight * workers * usd_per_hour, workers

    times = {workers: time for workers, time in here.items() if time is not None}
    best = min(times, key=objective)
    return Found(best, times[best])


def _nearest(rows: Sequence[Measured], batch: float, latency_ms: float) -> str:
    if not rows:
        return "The table has no measured rows."
    row = min(rows, key=lambda r: abs(math.log(r.batch / batch)) + abs(r.latency_ms - latency_ms) / 20)
    return f"The nearest measured row is batch {row.batch:g} at {row.latency_ms:g} ms."


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
            quotes[workload.name] = _looked_up(workload, (history or {}).get(workload.name, ()), given)
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


def _looked_up(workload: Workload, history: Sequence[Measurement], given: PolicyInput) -> ExperimentQuote:
    """Anwar's rule on what was measured of this very job."""
    name = workload.name
    points = [
        (m.point, offer)
        for m in history
        if m.point is not None
        and m.point.step_time_s is not None
        and m.point.workers in workload.lengths
        and (offer := _measured_on(m.offer, given.catalogue)) is not None
    ]
    if not points:
        raise NotFoundError(
            f"experiments.{name}: lookup needs measured clusters, and none of the offers of "
            f"'{given.catalogue.name}' was measured yet",
            "`trainmaster quote` with provider local measures some here; a finished run is one as well.",
        )
    offer = points[0][1]  # the newest measurement's
    seconds: dict[int, list[float]] = {}
    nodes: dict[int, int] = {}
    for point, of in points:
        if of != offer:
            continue
        steps = workload.lengths[point.workers].steps
        if steps is None:
            raise UsageError(
                f"experiments.{name}: its length is unknown", "Set `steps`, or `epochs` and `examples`."
            )
        seconds.setdefault(point.workers, []).append(steps * (point.step_time_s or 0.0))
        nodes.setdefault(point.workers, point.nodes or 1)
    table = [Measured(workers, 1.0, 0.0, median(each)) for workers, each in seconds.items()]
    found = lookup(
        table,
        1.0,
        0.0,
        time_weight=given.time_weight or 1.0,
        cost_weight=given.cost_weight,
        usd_per_hour=offer.price_usd_per_hour,
    )
    shape = ClusterShape(worker=Rented.of(offer, nodes[found.workers]), workers=found.workers)
    hours = found.time_s / 3600
    time_s = Interval(found.time_s, found.time_s, found.time_s)
    cost = Interval(*[hours * shape.usd_per_hour] * 3)
    measurements = sum(map(len, seconds.values()))
    return ExperimentQuote(name, shape, time_s, cost, measurements=measurements, candidates=len(table))


def _measured_on(name: str, catalogue: Catalogue) -> Offer | None:
    """The catalogue's offer that something was measured on; this machine is called ``local`` everywhere."""
    own = next((offer for offer in catalogue if capabilities_of(offer.provider).is_here), None)
    return own if name == "local" else catalogue.cheapest(name)


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
