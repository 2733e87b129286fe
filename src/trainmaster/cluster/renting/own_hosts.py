"""Clusters of the user's own hosts: which of them suit which role, and how many there are of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.renting.offer_filter import AvailableOffers
from trainmaster.cluster.renting.plan import ROLE_LABEL, Rental, RolePlan
from trainmaster.cluster.renting.requirements import SERVER, WORKER, Needs
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec import Hardware
from trainmaster.spec.errors import UsageError
from trainmaster.spec.units import counted

if TYPE_CHECKING:
    from trainmaster.providers.inventory import InventoryHost

#: Hosts that a note names.
_MOST_NAMED: Final = 3


def plan_own_hosts(
    group: Sequence[Needs], available: AvailableOffers, hosts: Sequence[InventoryHost]
) -> tuple[tuple[RolePlan, ...], list[str]]:
    """What a cluster has of them: all that are wanted, whatever they cost others.

    Args:
        group: experiments that share it.
        available: what there is.
        hosts: of it.

    Returns:
        Its roles, and notes for the user.

    Raises:
        UsageError: a role can never have the hosts that it needs; names it and the most that there is.
    """
    first = group[0]
    where = f"experiments.{first.name}"
    fitting = _suited_hosts(hosts, first.hardware, f"{where}.hardware", available)
    notes = [
        f"{first.name}: hardware.{key} is only a wish on hosts of one's own"
        for key, wish in (
            ("instance", first.hardware.instance),
            ("gpu", first.hardware.gpu),
            ("gpu_memory", first.hardware.gpu_memory_bytes),
            ("spot", first.hardware.spot),
            ("region", first.hardware.region),
            ("any_of", first.hardware.any_of),
        )
        if wish
    ]
    unsaid = [host.name for host in fitting if not host.slots]
    if unsaid and any(needs.tasks > len(fitting) for needs in group):
        others = f" and {len(unsaid) - _MOST_NAMED} more" if len(unsaid) > _MOST_NAMED else ""
        names = ", ".join(unsaid[:_MOST_NAMED])
        notes.append(
            f"{first.name}: each host takes one task at a time, as `slots` is not said of {names}{others} "
            f"in {available.source}"
        )
    servers, server_hardware = max(needs.servers for needs in group), first.server_hardware or Hardware()
    key = f"{where}.distributed.hardware.{SERVER}"
    for_servers = _suited_hosts(hosts, server_hardware, key, available) if servers else []
    either = len({host.name for host in (*fitting, *for_servers)})
    room = len(fitting)
    if server_hardware.gpu_count:  # where workers sit there are no GPUs for servers
        room = min(room, either - servers)
        if len(for_servers) < servers or room < 1:
            raise UsageError(
                f"{key}: {servers} parameter servers with GPUs need hosts of their own: "
                f"{available.source} has {len(for_servers)} that are suited, and {len(fitting)} for workers",
                "List more hosts, or ask for fewer servers.",
            )
    least_gpus = min(host.gpus for host in fitting)
    wanted, share, least, memory_bytes = 1, 1, 1, first.hardware.memory_bytes or 0
    for needs in group:
        gang_nodes, per_node, more = _folded(needs, least_gpus, room, available)
        notes += more
        if memory := available.memory.get(needs.name):
            memory_bytes = max(memory_bytes, memory.least_bytes(per_node))
        wanted = max(wanted, gang_nodes * needs.at_once(gang_nodes, room))
        share = max(share, needs.slots_on(per_node))
        least = max(least, gang_nodes)
    if servers and (len(for_servers) < servers or wanted + servers > either):
        notes.append(f"{first.name}: too few hosts for parameter servers of their own: they sit with workers")
        share += servers * max(needs.node_slots for needs in group)
        servers = 0
    slots = max(min(host.slots for host in fitting), share)
    rental = Rental(slots=slots, gpus=least_gpus, is_rented=capabilities_of(available.provider).rents)
    roles = [_host_role(WORKER, wanted, rental, first.hardware, least, memory_bytes)]
    if servers:
        gpus = min(host.gpus for host in for_servers) if server_hardware.gpu_count else 0
        roles.append(_host_role(SERVER, servers, replace(rental, gpus=gpus), server_hardware))
    return tuple(roles), notes


def _suited_hosts(
    hosts: Sequence[InventoryHost], hardware: Hardware, where: str, available: AvailableOffers
) -> list[InventoryHost]:
    """Hosts that have what the inventory can say of one.

    Raises:
        UsageError: there is none; names the key, what is wanted, and the most that there is.
    """
    gpus, cpus = hardware.gpu_count, hardware.cpus or 0
    fitting = [host for host in hosts if host.gpus >= gpus and (not host.slots or host.slots >= cpus)]
    if not fitting:
        wanted = " and ".join([counted(gpus, "GPU")] * bool(gpus) + [counted(cpus, "slot")] * bool(cpus))
        raise UsageError(
            f"{where}: no host of {available.source} has {wanted}",
            f"The most that one has: {counted(max((host.gpus for host in hosts), default=0), 'GPU')}, "
            f"{counted(max((host.slots for host in hosts), default=0), 'slot')}.",
        )
    return fitting


def _host_role(
    role: str, count: int, rental: Rental, hardware: Hardware, least: int = 0, memory_bytes: int = 0
) -> RolePlan:
    """Whole hosts of one's own, each with what the role asks for."""
    return RolePlan(
        role=role,
        count=count,
        rentals=(rental,),
        labels={ROLE_LABEL: role},
        host_gpus=hardware.gpu_count,
        least=least if least < count else 0,
        memory_bytes=memory_bytes or hardware.memory_bytes or 0,
        cpus=hardware.cpus or 0,
    )


def _folded(needs: Needs, gpus: int, hosts: int, available: AvailableOffers) -> tuple[int, int, list[str]]:
    """Nodes of one task, workers on each, and a note where several share a host that were not meant to."""
    per_node, gang_nodes = needs.per_node(gpus), needs.gang_nodes(gpus)
    if gang_nodes <= hosts:
        return gang_nodes, per_node, []
    if needs.fixed_per_node is not None or needs.hardware.gpu_count:
        raise UsageError(
            f"experiments.{needs.name}: its {needs.workers} workers need {gang_nodes} hosts, "
            f"{available.source} has {hosts} that are suited",
            "Ask for fewer workers, more per node, or list more hosts.",
        )
    per_node = math.ceil(needs.workers / hosts)
    machines = "1 host" if hosts == 1 else f"{hosts} hosts, up to {per_node} on each"
    note = f"{needs.name}: {needs.workers} workers on {machines}"
    return math.ceil(needs.workers / per_node), per_node, [note]
