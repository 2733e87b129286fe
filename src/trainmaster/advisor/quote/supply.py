"""What can be had for an experiment: the offers that have what it asks for, and whose memory suffices.

The user's own machine as a cluster that is there already: nothing to choose but how much of it to use.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.hourly_cost import least_cap
from trainmaster.advisor.market.machines import Machines
from trainmaster.advisor.market.memory_floor import FULL, Memory, Shares, roomy
from trainmaster.advisor.market.pairs import Pairs
from trainmaster.advisor.market.phases import ClusterWait
from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.knowledge import Knowledge
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.choosing import QuoteLimits
from trainmaster.advisor.quote.infeasible import NoFeasibleQuote
from trainmaster.advisor.quote.timing import Timing
from trainmaster.advisor.quote.timing_by_type import TimingByType
from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Catalogue, OfferFilter
from trainmaster.providers.filters import nothing_with
from trainmaster.providers.offer import Extras, unknown_extras
from trainmaster.spec.errors import UsageError


def own_timing(
    workload: Workload, knowledge: Knowledge, catalogue: Catalogue, slots: int, seed: int = 0
) -> Timing:
    """What draws times on this machine.

    Args:
        workload: what is to be done.
        knowledge: what was measured of it.
        catalogue: with this machine only.
        slots: processes that run at once.
        seed: of all draws.
    """
    machines = Machines.of(catalogue.columns(), np.full(len(catalogue), float(slots)))
    return Timing(workload, knowledge, machines, machines[:0], catalogue.offers, own_machine=True, seed=seed)


def own_load(workload: Workload, some: Candidates, slots: int) -> Floats:
    """(m,) share of the machine that an experiment keeps busy."""
    members = (some.workers + workload.servers + workload.chief) * workload.slots_per_member
    return np.minimum(members * some.at_once / max(slots, 1), 1.0)


def node_share(workload: Workload, one: Candidates, slots: float, gpus: float) -> float:
    """Share of a machine with so many slots and GPUs that a task, or a gang's part there, takes from others.

    >>> from trainmaster.advisor.market.workload import Length
    >>> from trainmaster.providers import load_catalogue
    >>> from trainmaster.spec import Strategy
    >>> job = Workload("main", Strategy.ALLREDUCE, 1, {2: Length(None, 1, None)})
    >>> machines = Machines.of(load_catalogue("local").columns(), np.ones(1))
    >>> two = Candidates.of(job, machines, machines[:0], None)
    >>> node_share(job, two, 4, 0), node_share(job, two, 1, 0)
    (0.25, 1.0)
    """
    nodes = float(one.nodes[0])
    helpers = workload.chief + (0 if one.servers[0] else workload.servers)
    members = math.ceil(float(one.workers[0]) / nodes) + math.ceil(helpers / nodes)
    shares = [max(slots // (members * workload.slots_per_member), 1)]
    if workload.hardware.gpu_count:
        shares.append(max(gpus // (workload.hardware.fixed_gpus or gpus or 1), 1))
    return 1 / min(shares)


def own_cluster(timing: Timing, slots: int, workers: int, at_once: int, nodes: int = 1) -> Candidates:
    """The one candidate with so many workers on so many machines, and so many tasks at once."""
    found = Candidates.of(timing.workload, timing.machines, timing.servers, slots)
    row = int(np.flatnonzero(found.workers == workers)[0])
    return replace(found[np.array([row])], at_once=np.array([float(at_once)]), nodes=np.array([float(nodes)]))


@dataclass(frozen=True)
class Supply:
    """What can be had.

    Attributes:
        catalogue: offers. own_machine: it is the user's machine, where it was measured.
        slots: processes that run at once on it; None where nodes are rented. gpus: that it has; 0: unknown.
        server_types: that parameter servers may have; empty leaves it open.
        waited: what earlier runs waited for machines. gave_back_s: what giving them back took.
        data_leaves: models and checkpoints are kept outside of the cloud that is rented.
        arch: processors that the code is known to run on, as in `Offer`; empty is any.
        hosts: how many machines the user has, all alike; a memory of 1 byte is not known. None where nodes
            are rented, or there is one machine only. are_whole: they do not say how many processes they take.
        shares: of what the offers say; None: all of it.
        servers_apart: parameter servers have machines of their own, also where the recipe does not say which.
        extras: what is rented with every machine.
    """

    catalogue: Catalogue
    own_machine: bool = False
    slots: int | None = None
    gpus: int = 0
    server_types: tuple[str, ...] = ()
    waited: tuple[ClusterWait, ...] = ()
    gave_back_s: tuple[float, ...] = ()
    data_leaves: bool = False
    arch: str = ""
    hosts: int | None = None
    are_whole: bool = False
    shares: Shares | None = None
    servers_apart: bool = True
    extras: Extras = field(default_factory=Extras)

    def has_server_machines(self, workload: Workload) -> bool:
        """Whether machines for its parameter servers are to be chosen; else they sit with the workers."""
        wanted = self.servers_apart or workload.own_servers
        return bool(workload.servers) and wanted and not self.is_there

    @property
    def is_there(self) -> bool:
        """Nothing is rented: what the recipe wishes of machines does not choose any."""
        return self.own_machine or self.hosts is not None

    def real(self, offers: Catalogue) -> Catalogue:
        """Offers with what they really have."""
        return offers if self.shares is None else offers.with_offers(map(self.shares.of, offers))


def offers_for(workload: Workload, supply: Supply) -> Catalogue:
    """What the recipe's ``hardware`` leaves of the catalogue; on demand unless it says spot.

    Machines with other processors than the job was measured on are only taken if they are asked for by
    their names, or if there are no others.

    Raises:
        UsageError: it leaves nothing; names the wish that nothing meets.
    """
    if supply.is_there:
        return supply.catalogue
    found = supply.catalogue.where(_wishes(workload))
    if not len(found):
        asked, instead = nothing_with(_wishes(workload), supply.catalogue)
        raise UsageError(
            f"experiments.{workload.name}.hardware: {supply.catalogue.name} has nothing with {asked}",
            f"{instead} `trainmaster offers` shows what there is.",
        )
    alike = _alike(workload, found, supply.arch)
    chosen = alike if len(alike) else found
    disk_bytes = workload.hardware.disk_bytes
    return chosen.with_offers(
        supply.extras.added_to(offer, disk_bytes) for offer in roomy(chosen.offers, workload.hardware)
    )


def left_aside(workload: Workload, supply: Supply) -> tuple[str, ...]:
    """What of the recipe's ``hardware`` is not looked at, and which offers were not, as notes."""
    if supply.is_there:
        return ()
    notes: tuple[str, ...] = ()
    found = supply.catalogue.where(_wishes(workload))
    alike = _alike(workload, found, supply.arch)
    if 0 < len(alike) < len(found):
        others = len(found) - len(alike)
        notes += (
            f"{others} offers with other processors than {supply.arch} are left out; hardware.instance "
            "takes them by name",
        )
    for provider in sorted({offer.provider for offer in found}):
        if untold := unknown_extras(provider):
            notes += (untold,)
    return notes


def _wishes(workload: Workload) -> OfferFilter:
    return replace(OfferFilter.from_hardware(workload.hardware), gpus=workload.hardware.gpu_count or None)


def _alike(workload: Workload, found: Catalogue, arch: str) -> Catalogue:
    if not arch or workload.hardware.instance:
        return found
    return found.with_offers(offer for offer in found if offer.arch in ("", arch))


def servers_for(workload: Workload, supply: Supply) -> Catalogue:
    """What may be a parameter server.

    Raises:
        UsageError: nothing may.
    """
    wishes = OfferFilter.from_hardware(workload.server_hardware)
    wishes = replace(wishes, spot=bool(workload.server_hardware.spot), gpu=None, gpus=None)
    if supply.server_types:
        wishes = OfferFilter(instances=supply.server_types, spot=False)
    found = supply.catalogue.where(wishes)
    if not supply.server_types and not workload.server_hardware.instance and supply.arch:
        found = found.with_offers(o for o in found if o.arch in ("", supply.arch)) or found
    if not len(found):
        named = " or ".join(supply.server_types)
        raise UsageError(
            f"experiments.{workload.name}: no offer of the catalogue '{supply.catalogue.name}' "
            f"for the parameter server{f' is a {named}' if named else ''}",
            "Name a type of the catalogue with --parameter-server, or widen distributed.hardware.ps.",
        )
    disk_bytes = workload.server_hardware.disk_bytes
    return found.with_offers(supply.extras.added_to(offer, disk_bytes) for offer in found)


def per_node_of(workload: Workload, offers: Catalogue, supply: Supply) -> Floats:
    """Workers (of gangs) or tasks (of single processes) that each offer takes on one node."""
    columns = offers.columns()
    if supply.own_machine:
        return np.full(len(offers), float(supply.slots or 1))
    hardware = workload.hardware
    if workload.per_node is not None:
        return np.full(len(offers), float(workload.per_node))
    is_gang = max(workload.lengths) > 1 or workload.servers > 0
    room = np.floor(columns.vcpus / workload.slots_per_member)  # for single processes
    room = np.ones(len(offers)) if supply.are_whole else np.clip(room, 1.0, float(workload.tasks))
    if hardware.gpu_count:
        fixed = hardware.fixed_gpus
        if max(workload.lengths) == 1:
            takes_all = fixed is None and hardware.gpus is not None
            taken = columns.accelerators if takes_all else hardware.gpu_count
            return np.maximum(np.minimum(np.floor(columns.accelerators / taken), room), 1.0)
        share = float(fixed) if fixed is not None else columns.accelerators
        return np.maximum(np.full(len(offers), share) if isinstance(share, float) else share, 1.0)
    return np.ones(len(offers)) if is_gang else room


def in_one_region(
    workload: Workload,
    wished: Catalogue,
    hosts: Catalogue,
    per_node: Floats,
    known_by: NDArray[np.int_],
    *,
    by_cores: bool,
) -> tuple[Machines, Machines, Pairs]:
    """Machines of workers and of parameter servers, and which of them matter together, all in one region.

    The servers' positions count on after the workers' offers.

    Args:
        workload: what is to be done.
        wished: offers for the workers.
        hosts: offers for the servers.
        per_node: (k,) workers on one node of each of the former.
        known_by: (k,) see `Machines.undominated`.
        by_cores: see `Machines.as_servers`.

    Raises:
        UsageError: no region has both.
    """
    known: dict[tuple[str, str], int] = {}
    places = np.array([known.setdefault((o.provider, o.region), len(known)) for o in [*wished, *hosts]])
    mine, theirs = places[: len(wished)], places[len(wished) :]
    both = np.intersect1d(mine, theirs)
    if not len(both):
        raise UsageError(
            f"experiments.{workload.name}: no region has both the workers' and the servers' machines",
            "Widen hardware.region, or distributed.hardware.ps.",
        )
    here, there = np.isin(mine, both), np.isin(theirs, both)
    machines = Machines.of(wished.columns(), per_node, mine)[here].undominated(known_by[here])
    servers = Machines.of(hosts.columns(), np.ones(len(hosts)), theirs)[there].as_servers(by_cores=by_cores)
    pairs = Pairs.that_matter(machines, servers, known_by[machines.index])
    return machines, replace(servers, index=servers.index + len(wished)), pairs


def that_fit(
    candidates: Candidates, drawing: TimingByType, limits: QuoteLimits
) -> tuple[Candidates, tuple[str, ...]]:
    """Without those whose memory is too small, or that cost too much per hour.

    Args:
        candidates: all of one experiment.
        drawing: knows how much memory the job needs.
        limits: the user's.

    Returns:
        What is left, and notes for the user.

    Raises:
        UsageError: nothing is left.
    """
    name, known = drawing.parts[0].workload.name, drawing.parts[0].knowledge
    fits = ~(_headrooms(candidates, drawing) < 1 - FULL)
    why = Memory(_least_seen(known.memory), _least_seen(known.device_memory)).words
    if not fits.any():
        raise UsageError(
            f"experiments.{name}.batch: does not fit the memory of any offer: {why}",
            "Take a smaller batch, more workers, or devices with more memory.",
        )
    notes: tuple[str, ...] = ()
    if not fits.all():
        kinds = set(candidates.machine.tolist()) - set(candidates.machine[fits].tolist())
        many = "1 kind of machine" if len(kinds) == 1 else f"{len(kinds)} kinds of machines"
        whole = f" ({many} altogether)" if kinds else ""
        notes = (
            f"{int((~fits).sum())} clusters are left out{whole}: their memory is too small for this batch: "
            f"{why}",
        )
    cheap = candidates.price <= limits.usd_per_hour * (1 + 1e-9)  # 3 x $0.10 is $0.30
    if not (fits & cheap).any():
        least = float(candidates.price[fits].min())
        raise NoFeasibleQuote(
            f"experiments.{name}: no cluster costs at most ${limits.usd_per_hour:g} per hour",
            f"The cheapest that can do it costs ${least_cap(least):g} per hour: raise budget.per_hour.",
        )
    return candidates[fits & cheap], notes


def _headrooms(candidates: Candidates, drawing: TimingByType) -> Floats:
    """(m,) share of the memory that stays free, of the device where one is used; NaN if unknown."""
    machines, device = drawing.parts[0].machines, drawing.memory(candidates, device=True)
    there = machines.device_memory[candidates.machine]
    main = drawing.memory(candidates, device=False)
    # of a gang, or of single processes that share a node
    members = candidates.workers * np.where(candidates.workers > 1, 1.0, candidates.at_once)
    on_node = np.minimum(machines.per_node[candidates.machine], members)
    of_device: Floats = 1 - device / there
    of_main: Floats = 1 - main * on_node / machines.memory[candidates.machine]
    return np.fmin(of_device, of_main)


def _least_seen(seen: tuple[tuple[float, float], ...]) -> float | None:
    """Bytes of the smallest measurement: what a process needs at least."""
    return min((peak for _, peak in seen), default=None)


def headroom(one: Candidates, drawing: TimingByType) -> float | None:
    """Share of the memory that stays free with one candidate; None if unknown."""
    value = float(_headrooms(one, drawing)[0])
    return value if math.isfinite(value) else None
