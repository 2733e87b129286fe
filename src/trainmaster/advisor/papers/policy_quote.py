"""The papers' policies behind the same verb: FC2's four, and Anwar's lookup. They know prices, not times.

What one worker of each type was measured to send: in runs, and by ``quote --bandwidth FILE``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.papers.lookup import LookupLimits, looked_up
from trainmaster.advisor.papers.policies import (
    HEADROOM,
    BandwidthUnknown,
    PricedType,
    choose_server,
    cost_opt,
    scala_opt,
    time_opt,
)
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Quote, Rented, Types
from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Catalogue, Offer, OfferFilter
from trainmaster.providers.filters import nothing_with
from trainmaster.providers.offer import Extras
from trainmaster.spec.errors import UsageError, fails_as


def traffic_mbps(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Traffic of one worker (FC2's b_t), Mbit/s, by instance type in small letters: the larger direction.

    Of each type the newest measurement with the fewest workers counts: behind a server that is saturated
    a worker sends less than it would.

    Args:
        measurements: of one job.
    """
    best: dict[str, tuple[tuple[float, float], float]] = {}
    for each in measurements:
        point = each.point
        if each.offer == "local" or point is None or not point.step_time_s:
            continue
        most_bytes = max(point.bytes_in or 0.0, point.bytes_out or 0.0)
        rank, name = (point.workers, -each.measured_at), each.offer.lower()
        if most_bytes > 0 and (name not in best or rank < best[name][0]):
            best[name] = rank, 8e-6 * most_bytes / point.step_time_s
    return {name: mbps for name, (_, mbps) in best.items()}


def read_bandwidth(path: Path) -> dict[str, float]:
    """Measured traffic of one worker, Mbit/s, by instance type in small letters.

    Args:
        path: CSV with the columns ``instance`` and ``mbps``.

    Raises:
        UsageError: naming the line.
    """
    with fails_as(f"{path}: cannot be read", "Write a CSV `instance,mbps`."):
        text = path.read_text(encoding="utf-8-sig")
    with fails_as(f"{path}: is no CSV", "Write a CSV `instance,mbps`.", on=csv.Error):
        first, *rows = [*csv.reader(text.splitlines())] or [[]]
    header = [cell.strip().lower() for cell in first]
    if header != ["instance", "mbps"]:
        raise UsageError(
            f"{path}:1: the columns are {','.join(header) or 'missing'}", "The first line is `instance,mbps`."
        )
    found: dict[str, float] = {}
    for number, row in enumerate(rows, start=2):
        if not any(cell.strip() for cell in row):
            continue
        name, value, *_ = [*(cell.strip() for cell in row), "", ""]
        name = name.lower()
        try:
            mbps = float(value)
        except ValueError:
            mbps = math.nan
        if len(row) != 2 or not name or not (0 < mbps < math.inf):
            raise UsageError(
                f"{path}:{number}: '{','.join(row)}' is no type with its Mbit/s",
                "Write for instance t2.xlarge,140.",
            )
        if name in found:
            raise UsageError(f"{path}:{number}: {name} is there twice", "Leave one of them out.")
        found[name] = mbps
    return found


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
#: GiB of memory per vCPU: compute families have less, general purpose ones are between, others have more.
_GENERAL: Final = (3.0, 5.0)
#: A worker with less holds no framework and a batch.
_LEAST_BYTES: Final = 4 * 2**30


@dataclass(frozen=True)
class PolicyInput:
    """What a policy is given.

    Attributes:
        catalogue: offers. bandwidth_mbps: traffic of one worker, by instance type.
        servers, workers: types to choose from (FC2's L^p and L^w), instead of what the recipe's hardware
            says; without either, `usual_servers` and `usual_workers`.
        max_workers: of one task, without servers. usd_per_hour: of the whole cluster.
        usd: of the whole training, for ``lookup``. time_weight, cost_weight: Anwar's alpha and beta.
        p: share of the servers' bandwidth that the workers may use.
        extras: what is rented with every machine. arch: processors that the code is known to run on.
        provider: that has the offers.
    """

    catalogue: Catalogue
    bandwidth_mbps: Mapping[str, float] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    max_workers: int | None = None
    usd_per_hour: float | None = None
    usd: float | None = None
    time_weight: float = 1.0
    cost_weight: float = 0.0
    p: float = HEADROOM
    extras: Extras = field(default_factory=Extras)
    arch: str = ""
    provider: str = ""


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
        history: what was measured, by experiment; for ``lookup`` and the traffic of workers.

    Raises:
        UsageError: nothing can be said, with the reason.
    """
    quotes: dict[str, ExperimentQuote] = {}
    skipped: dict[str, str] = {}
    unknown: list[BandwidthUnknown] = []
    for workload in workloads:
        if policy == "lookup":
            disk_bytes = workload.hardware.disk_bytes
            billed = given.catalogue.with_offers(
                given.extras.added_to(each, disk_bytes) for each in given.catalogue
            )
            limits = LookupLimits(
                _most(workload, given.max_workers),
                given.usd_per_hour,
                given.usd,
                given.time_weight,
                given.cost_weight,
            )
            found = looked_up(workload, (history or {}).get(workload.name, ()), billed, limits)
            notes = (*found.notes, *_unsuitable(workload, found.cluster.workers))
            quotes[workload.name] = replace(found, notes=notes)
        elif not workload.servers:
            skipped[workload.name] = f"{policy} sizes clusters with a parameter server; it has none"
        else:
            traffic = traffic_mbps((history or {}).get(workload.name, ()))
            told = replace(given, bandwidth_mbps={**traffic, **given.bandwidth_mbps})
            try:
                quotes[workload.name] = _picked(policy, workload, told)
            except BandwidthUnknown as error:
                unknown.append(error)
    if unknown:  # all that is to be measured is told at once
        chosen = {name: one.types.as_dict() for name, one in quotes.items() if one.types}
        unknown[0].types = {name: each for error in unknown for name, each in error.types.items()} | chosen
        raise unknown[0]
    if not quotes:
        name, why = next(iter(skipped.items()))
        raise UsageError(
            f"experiments.{name}: {why}", "Take the policy quote, or a strategy with parameter servers."
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


def usual_workers(offers: Sequence[Offer]) -> list[Offer]:
    """FC2's list L^w by default: GPUs, compute families, and what cannot be a server.

    All of them if that leaves none.
    """
    return [
        offer
        for offer in offers
        if offer.memory_bytes >= _LEAST_BYTES
        and (
            offer.accelerators
            or _gib_per_cpu(offer) < _GENERAL[0]
            or (not offer.nic_gbps and _gib_per_cpu(offer) <= _GENERAL[1])
        )
    ] or list(offers)


def usual_servers(offers: Sequence[Offer]) -> list[Offer]:
    """FC2's list L^p by default: general purpose types whose network card is known.

    All of them if that leaves none.
    """
    return [
        offer
        for offer in offers
        if offer.nic_gbps
        and not offer.accelerators
        and not offer.cpu_credits
        and _GENERAL[0] <= _gib_per_cpu(offer) <= _GENERAL[1]
    ] or list(offers)


def _gib_per_cpu(offer: Offer) -> float:
    return offer.memory_bytes / 2**30 / max(offer.vcpus, 1.0)


def types_of(workload: Workload, given: PolicyInput) -> tuple[list[Offer], list[Offer]]:
    """The cheapest offer of each type that workers, and of each that parameter servers may be, in one region.

    Args:
        workload: with parameter servers.
        given: the offers, and types that the caller names.

    Raises:
        UsageError: there are none, or they cost nothing.
    """
    where = f"experiments.{workload.name}"
    hardware, own = workload.hardware, workload.server_hardware
    wanted = OfferFilter.from_hardware(hardware)
    wanted = replace(wanted, gpus=hardware.gpu_count or None, instances=given.workers or hardware.instance)
    is_open = not (wanted.instances or wanted.gpu or wanted.gpus or wanted.cpus or wanted.memory_bytes)
    workers = _found(wanted, given, f"{where}.hardware")
    servers_wanted = OfferFilter(
        instances=given.servers or own.instance,
        region=own.region,
        spot=bool(own.spot),
        cpus=own.cpus if workload.own_servers else None,
        memory_bytes=own.memory_bytes if workload.own_servers else None,
    )
    servers = _found(servers_wanted, given, f"{where}.distributed.hardware.ps")
    if is_open:
        workers = usual_workers(workers)
    if not (servers_wanted.instances or servers_wanted.cpus or servers_wanted.memory_bytes):
        servers = usual_servers(servers)

    def places(offers: Sequence[Offer]) -> set[tuple[str, str]]:
        return {(offer.provider, offer.region) for offer in offers}

    def rank(place: tuple[str, str]) -> tuple[object, ...]:
        here = [[o for o in some if (o.provider, o.region) == place] for some in (workers, servers)]
        usd = sum(min(offer.price_usd_per_hour for offer in some) for some in here)
        return -len({offer.instance_type for offer in here[0]}), usd, place

    both = places(workers) & places(servers)
    if not both:
        raise UsageError(
            f"{where}: no region has both the workers' and the servers' machines",
            "Widen hardware.region, or distributed.hardware.ps.",
        )
    place = min(both, key=rank)
    found = [
        _cheapest_of_each_type(
            given.extras.added_to(offer, wishes.disk_bytes)
            for offer in some
            if (offer.provider, offer.region) == place
        )
        for some, wishes in ((workers, hardware), (servers, own))
    ]
    if not all(offer.price_usd_per_hour > 0 for some in found for offer in some):
        raise UsageError(
            f"{where}: FC2's policies choose by prices, and machines of '{place[0]}' have none",
            "Take the policy quote, or prices of another catalogue.",
        )
    return found[0], found[1]


def _found(wanted: OfferFilter, given: PolicyInput, where: str) -> list[Offer]:
    offers = list(given.catalogue.where(wanted))
    if not offers:
        asked, instead = nothing_with(wanted, given.catalogue)
        raise UsageError(
            f"{where}: {given.catalogue.name} has nothing with {asked}",
            f"{instead} `trainmaster offers` shows what there is.",
        )
    if wanted.instances or not given.arch:
        return offers
    return [offer for offer in offers if offer.arch in ("", given.arch)] or offers


def _picked(policy: str, workload: Workload, given: PolicyInput) -> ExperimentQuote:
    offers, hosts = types_of(workload, given)
    workers = [
        PricedType(
            offer.instance_type,
            offer.price_usd_per_hour,
            given.bandwidth_mbps.get(offer.instance_type.lower()),
        )
        for offer in offers
    ]
    many = workload.servers  # all of them are paid for, and share the traffic
    servers = [
        PricedType(
            o.instance_type, many * o.price_usd_per_hour, many * o.nic_gbps * 1000 if o.nic_gbps else None
        )
        for o in hosts
    ]
    types = Types(
        tuple(each.name for each in workers),
        tuple(each.name for each in choose_server(servers)),
        {each.name: each.mbps for each in workers if each.mbps is not None},
        {each.instance_type: each.price_usd_per_hour for each in (*offers, *hosts)},
        given.provider,
    )
    if policy == "scala-opt-m" and len(workers) != 1:
        raise UsageError(
            f"experiments.{workload.name}.hardware.instance: scala-opt-m counts workers of one type, "
            f"{len(workers)} are possible",
            "Name one type under hardware.instance.",
        )
    most = _most(workload, given.max_workers)
    limits: dict[str, Any] = {"budget_per_hour": given.usd_per_hour, "max_workers": most}
    if policy in ("cost-opt", "time-opt"):
        pick = (cost_opt if policy == "cost-opt" else time_opt)(workers, servers, **limits)
    else:
        try:
            pick = scala_opt(workers, servers, **limits, headroom=given.p)
        except BandwidthUnknown as error:
            error.types = {workload.name: types.as_dict()}
            raise
    by_type = {offer.instance_type: offer for offer in offers}
    host_by_type = {offer.instance_type: offer for offer in hosts}
    worker, server = by_type[pick.worker.name], pick.server
    each = _per_node(workload, worker)
    count = pick.count * each if most is None else min(pick.count * each, most)
    notes = (*_unsuitable(workload, count), *_left_out(pick.skipped))
    if pick.unrounded != pick.count:
        notes += (f"{pick.unrounded:.2f} workers before rounding down, limited by {pick.limit}",)
    return ExperimentQuote(
        name=workload.name,
        cluster=ClusterShape(
            worker=Rented.of(worker, math.ceil(count / each)),
            server=Rented.of(host_by_type[server.name], many) if server else None,
            workers=count,
        ),
        bottleneck=pick.limit,
        candidates=len(workers) * len(servers),
        notes=notes,
        types=types,
    )


def _per_node(workload: Workload, offer: Offer) -> int:
    """Training processes on a machine, as a run places them."""
    hardware = workload.hardware
    if workload.per_node is not None:
        return workload.per_node
    if not hardware.gpu_count:
        return 1
    return max(1, int(hardware.fixed_gpus if hardware.fixed_gpus is not None else offer.accelerators))


def _unsuitable(workload: Workload, count: int) -> tuple[str, ...]:
    """Why the recipe cannot be run with so many workers; FC2's policies know no batch."""
    fewest, most = min(workload.lengths), max(workload.lengths)
    if count < fewest:
        return (f"the recipe wants at least {fewest} workers",)
    if count < most and count not in workload.lengths:
        return (f"the recipe's `batch` cannot be shared evenly by {count} workers",)
    return ()


def _left_out(types: Sequence[str]) -> tuple[str, ...]:
    """One note for all types of unmeasured bandwidth."""
    if not types:
        return ()
    some = ", ".join(types[:_NAMED]) + (", ..." if len(types) > _NAMED else "")
    many = "1 type is" if len(types) == 1 else f"{len(types)} types are"
    return (f"{many} left out, for want of a measured bandwidth: {some}",)


def _most(workload: Workload, asked: int | None) -> int | None:
    """--max-workers, or what the recipe itself allows; None leaves it to the budget."""
    if not workload.is_bounded:
        return asked
    return min(asked or workload.most_workers, workload.most_workers)


def _cheapest_of_each_type(offers: Iterable[Offer]) -> list[Offer]:
    """In the catalogue's order."""
    found: dict[str, Offer] = {}
    for offer in offers:
        known = found.get(offer.instance_type)
        if known is None or offer.price_usd_per_hour < known.price_usd_per_hour:
            found[offer.instance_type] = offer
    return list(found.values())
