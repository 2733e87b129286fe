"""`plan_clusters`: from what experiments need, and what there is, to the machines to have. Pure.

A cluster is in one region, as its nodes reach each other by their private addresses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from trainmaster.cluster.renting.offer_filter import AvailableOffers, suited
from trainmaster.cluster.renting.own_hosts import plan_own_hosts
from trainmaster.cluster.renting.plan import ROLE_LABEL, ClusterPlan, Rental, RolePlan
from trainmaster.cluster.renting.requirements import SERVER, WORKER, Needs, QuotedChoice, grouped
from trainmaster.providers import Offer
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.next_offer import in_zones
from trainmaster.spec import Experiment, Hardware, Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.frameworks import engine_for

#: Ways to have a machine that are kept: for when there is no capacity.
MOST_RENTALS: Final = 20
#: Where there is no capacity, machines up to so much dearer are taken, unless the recipe names types.
DEARER: Final = 2.0


def plan_clusters(
    recipe: Recipe, available: AvailableOffers, picks: Mapping[str, QuotedChoice] | None = None
) -> tuple[ClusterPlan, ...]:
    """The clusters of a run, in the order of the recipe.

    Args:
        recipe: with every number of workers settled.
        available: what there is.
        picks: what a quote took, by experiment.

    Raises:
        UsageError: an experiment asks for what is not there; names it and the nearest that is.
    """
    plans = []
    for group in grouped(recipe, dict(picks or {})):
        roles, notes = (
            _rented(group, available)
            if available.hosts is None
            else plan_own_hosts(group, available, available.hosts)
        )
        told = dict.fromkeys([*(note for needs in group for note in needs.notes), *notes])
        names = tuple(needs.name for needs in group)
        plan = ClusterPlan(names[0], names, available.provider, roles, tuple(told))
        plans.append(replace(plan, engine=engine_of(recipe, available.provider, plan.nodes)))
    return tuple(plans)


def engine_of(recipe: Recipe, provider: str, machines: int) -> str:
    """What makes one cluster of so many machines of a provider."""
    return engine_for(recipe.engine, machines, scheduled=capabilities_of(provider).queues)


def pinned(recipe: Recipe, plans: Sequence[ClusterPlan]) -> Recipe:
    """The recipe with what the plans have decided, for placing members on the machines.

    Args:
        recipe: that was planned.
        plans: of all its experiments.

    Returns:
        ``per_node`` is a number, ``gpus`` too where a model is asked for, and hardware of roles that have no
        machines of their own is gone.
    """
    experiments = dict(recipe.experiments)
    for plan in plans:
        roles = {role.role: role for role in plan.roles}
        gpus = min(rental.gpus for rental in roles[WORKER].rentals)
        for name in plan.experiments:
            experiments[name] = _pinned(experiments[name], roles, gpus)
    return recipe.model_copy(update={"experiments": experiments})


def _pinned(experiment: Experiment, roles: Mapping[str, RolePlan], gpus: int) -> Experiment:
    distributed, hardware = experiment.distributed, experiment.hardware
    needs = Needs.of(experiment, 0)
    wanted = needs.hardware
    if wanted.fixed_gpus is None and (wanted.gpus is not None or (distributed and wanted.is_choosy)):
        most = wanted.most.gpus if wanted.most is not None else None
        fixed = {"gpus": gpus if most is None else min(gpus, most), "most": None}
        experiment = experiment.model_copy(update={"hardware": hardware.model_copy(update=fixed)})
    if distributed is None:
        return experiment
    per_node = max(needs.per_node(gpus), math.ceil(needs.workers / roles[WORKER].count))
    own = {name: each for name, each in distributed.hardware.items() if name in roles}
    placed = distributed.model_copy(update={"per_node": per_node, "hardware": own})
    return experiment.model_copy(update={"distributed": placed})


# --- renting ---------------------------------------------------------------------------------------


def _rented(group: Sequence[Needs], available: AvailableOffers) -> tuple[tuple[RolePlan, ...], list[str]]:
    """Of machines that cost something: the cheapest, all in one region."""
    first = group[0]
    pick = next((needs.pick for needs in group if needs.pick is not None), None)
    where = f"experiments.{first.name}.hardware"
    offers, notes = suited(available, first.hardware, where)
    for needs in group:
        offers, more = _that_hold(offers, needs, available)
        notes += more
    servers: list[Offer] | None = None
    if first.server_hardware is not None:
        servers, more = suited(
            available, first.server_hardware, f"experiments.{first.name}.distributed.hardware.{SERVER}"
        )
        notes += more

    def count(offer: Offer) -> int:
        return max(needs.nodes(offer.accelerators) for needs in group)

    def key(offer: Offer) -> tuple[object, ...]:
        return (not _is_picked(offer, pick), count(offer) * offer.price_usd_per_hour, *_better(offer))

    def server_key(offer: Offer) -> tuple[object, ...]:
        picked = pick is not None and offer.instance_type == pick.server
        return (not picked, offer.price_usd_per_hour, *_better(offer))

    regions = {offer.region for offer in offers}
    if servers is not None:
        regions &= {offer.region for offer in servers}
        if not regions:
            raise UsageError(
                f"experiments.{first.name}: no region has both the workers' and the servers' machines",
                "Widen hardware.region, or distributed.hardware.ps.",
            )

    def whole(region: str) -> tuple[object, ...]:
        """How good a region is: what is picked, what all machines cost there, how many kinds it has."""
        here = [offer for offer in offers if offer.region == region]
        best = min(here, key=key)
        usd = count(best) * best.price_usd_per_hour
        if servers is not None:
            server = min((offer for offer in servers if offer.region == region), key=server_key)
            usd += max(needs.server_nodes(best.accelerators) for needs in group) * server.price_usd_per_hour
        return (not _is_picked(best, pick), usd, -len(here), region)

    region = min(regions, key=whole)
    ranked = sorted((offer for offer in offers if offer.region == region), key=key)
    best = ranked[0]
    nodes = count(best)
    enough = [offer for offer in ranked if count(offer) <= nodes]
    rentals = [_rental(offer, group, available) for offer in _kept(enough, first.hardware, available)]
    least = max(needs.gang_nodes(best.accelerators) for needs in group)
    roomier = [
        offer
        for offer in enough
        if all(needs.per_node(offer.accelerators) >= needs.per_node(best.accelerators) for needs in group)
    ]
    tries = max(needs.retries for needs in group)
    larger = _larger(rentals[0], [_rental(offer, group, available) for offer in roomier], tries, available)
    notes += _told_larger(group, larger)
    roles = [_role(WORKER, nodes, rentals, first.hardware, least, larger)]
    if servers is not None and first.server_hardware is not None:
        there = sorted((offer for offer in servers if offer.region == region), key=server_key)
        many = max(needs.server_nodes(best.accelerators) for needs in group)
        slots = max(needs.node_slots for needs in group)
        kept = [
            _as_rental(offer, slots, available) for offer in _kept(there, first.server_hardware, available)
        ]
        larger = _larger(kept[0], [_as_rental(offer, slots, available) for offer in there], tries, available)
        one = max(needs.servers for needs in group)
        roles.append(_role(SERVER, many, kept, first.server_hardware, one, larger))
    return tuple(roles), [*notes, *_silent(group)]


def _that_hold(
    offers: Sequence[Offer], needs: Needs, available: AvailableOffers
) -> tuple[list[Offer], list[str]]:
    """Offers whose memory can hold what was measured, and a note of those that cannot.

    Raises:
        UsageError: none can.
    """
    memory = available.memory.get(needs.name)
    if memory is None:
        return list(offers), []

    def holds(offer: Offer) -> bool:
        real = available.shares.of(offer) if available.shares else offer
        return not memory.rules_out(real, needs.per_node(offer.accelerators))

    fitting = [offer for offer in offers if holds(offer)]
    if not fitting:
        raise UsageError(
            f"experiments.{needs.name}.hardware: the memory of no machine that is allowed suffices: "
            f"{memory.words}",
            "Allow larger types in hardware.instance, or take a smaller batch or fewer workers per node.",
        )
    left = len(offers) - len(fitting)
    return fitting, [f"{needs.name}: {left} of {len(offers)} offers are left out: {memory.words}"] * bool(
        left
    )


def _kept(ranked: Sequence[Offer], hardware: Hardware, available: AvailableOffers) -> list[Offer]:
    """The first so many, one per zone, and not much dearer than the best."""
    most = math.inf if hardware.instance else DEARER * ranked[0].price_usd_per_hour
    near = [offer for offer in ranked if offer.price_usd_per_hour <= most + 1e-12]
    return in_zones(near, available.zones)[:MOST_RENTALS]


def _larger(first: Rental, ways: Sequence[Rental], tries: int, available: AvailableOffers) -> list[Rental]:
    """For each further attempt the cheapest way to have more memory than before, of either kind.

    Args:
        first: what is rented if all goes well.
        ways: that have what is asked for, in the same region.
        tries: further attempts.
        available: knows the zones.
    """
    found: list[Rental] = []
    for device in (False, True):
        last = first
        for _ in range(tries):
            more = [way for way in ways if way.outgrows(last, device=device)]
            if not more:
                break
            last = min(more, key=lambda way: (way.usd_per_hour, -way.memory_bytes, way.instance_type))
            zones = [last.zone] if last.zone else available.zones.get(last.region) or [""]
            found += [replace(last, zone=zone) for zone in zones]
    return list(dict.fromkeys(found))


def _told_larger(group: Sequence[Needs], larger: Sequence[Rental]) -> list[str]:
    """What may be rented beyond what is planned, told before anybody agrees to it."""
    prices = {way.instance_type: f"{way.instance_type} at ${way.usd_per_hour:.4g} per hour" for way in larger}
    if not prices:
        return []
    names = ", ".join(needs.name for needs in group if needs.retries)
    ways = ", then ".join(prices.values())
    return [f"{names}: an attempt that runs out of memory begins again on a larger machine: {ways}"]


def _better(offer: Offer) -> tuple[object, ...]:
    """Of equally dear ones the one that has more; then always the same."""
    nic = offer.nic_gbps or (offer.nic_burst_gbps or 0.0) / 2
    rationed = bool(offer.cpu_credits)
    return (
        -offer.accelerators,
        rationed,
        -offer.vcpus,
        -offer.memory_bytes,
        -nic,
        offer.region,
        offer.instance_type,
        offer.zone,
        offer.spot,
    )


def _is_picked(offer: Offer, pick: QuotedChoice | None) -> bool:
    if pick is None:
        return True
    return (offer.instance_type, offer.spot) == (pick.instance, pick.spot) and pick.region in (
        "",
        offer.region,
    )


def _rental(offer: Offer, group: Iterable[Needs], available: AvailableOffers) -> Rental:
    slots = max(needs.slots_on(needs.per_node(offer.accelerators)) for needs in group)
    return _as_rental(offer, slots, available)


def _as_rental(offer: Offer, least_slots: int, available: AvailableOffers) -> Rental:
    real = available.shares.of(offer) if available.shares else offer
    on_demand = available.on_demand_usd_per_hour(offer) if offer.spot else math.inf
    return Rental(
        instance_type=offer.instance_type,
        region=offer.region,
        zone=offer.zone,
        spot=offer.spot,
        usd_per_hour=offer.price_usd_per_hour,
        quantum_s=offer.billing_quantum_s,
        minimum_s=offer.billing_minimum_s,
        slots=max(int(offer.vcpus), least_slots, 1),
        gpus=int(offer.accelerators),
        as_of=offer.as_of.isoformat(),
        most_usd_per_hour=offer.most_usd_per_hour(on_demand),
        extras_usd_per_hour=offer.extras_usd_per_hour,
        memory_bytes=real.memory_bytes,
        gpu_memory_bytes=int(real.accelerator_memory_bytes or 0),
        is_rented=capabilities_of(available.provider).rents,
    )


def _role(
    role: str,
    count: int,
    rentals: Sequence[Rental],
    hardware: Hardware,
    least: int = 0,
    larger: Sequence[Rental] = (),
) -> RolePlan:
    """Nodes of one kind, of which ``least`` are enough for the largest task."""
    return RolePlan(
        role=role,
        count=count,
        rentals=tuple(rentals),
        labels={ROLE_LABEL: role},
        disk_bytes=hardware.disk_bytes or 0,
        least=least if least < count else 0,
        larger=tuple(larger),
    )


def _silent(group: Sequence[Needs]) -> list[str]:
    """What was decided for the user where the recipe says nothing."""
    return [
        f"{needs.name}: {needs.tasks} tasks share the machines of one at a time; `workers: N` spreads them "
        "over more"
        for needs in group
        if needs.tasks > 1 and needs.spread is None and needs.pick is None
    ]
