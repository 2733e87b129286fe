"""`ClusterPlan`: machines that experiments of a run are to have. Pure; its cluster's row holds it as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.advisor.market import hourly_cost
from trainmaster.dataclass import dataclass, field
from trainmaster.spec import Recipe
from trainmaster.spec.errors import UsageError
from trainmaster.spec.frameworks import RECORDED_ENGINE
from trainmaster.spec.plain_json import EXACTLY

if TYPE_CHECKING:
    from trainmaster.providers.base import NodeRequest

#: What ran out of memory gets at least so many times as much: with less it would only do so again.
MORE: Final = 1.25
#: Label of every node that is planned: what it is for.
ROLE_LABEL: Final = "role"
_NOTHING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Rental:
    """One way to have a machine: an offer, as far as renting and billing need it.

    Attributes:
        instance_type, region, zone: as the provider names them; empty for hosts of one's own.
        spot: it may be taken back.
        usd_per_hour: what is expected to be billed for it, disk and address included; 0 for the user's own.
        most_usd_per_hour: what may be billed at most, where its price moves; 0: never more than expected.
        extras_usd_per_hour: what of both is for its disk and its public address.
        quantum_s, minimum_s: how its time is rounded up.
        slots: processes that it takes at once: its vCPUs, or more where the recipe wants more per node.
        gpus: how many it has.
        as_of: the day on which the price held, ISO; empty where nothing is paid.
        memory_bytes: main memory that it really has; 0 if unknown.
        gpu_memory_bytes: the same of one GPU.
        is_rented: what is on it goes with it; hosts of one's own stay. See `Capabilities.rents`.
    """

    __pydantic_config__ = EXACTLY
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    spot: bool = False
    usd_per_hour: float = 0.0
    quantum_s: float = 1.0
    minimum_s: float = 0.0
    slots: int = 1
    gpus: int = 0
    as_of: str = ""
    most_usd_per_hour: float = 0.0
    extras_usd_per_hour: float = 0.0
    memory_bytes: int = 0
    gpu_memory_bytes: int = 0
    is_rented: bool = True

    @property
    def at_most(self) -> Rental:
        """The same at the highest price that it may come to."""
        return replace(self, usd_per_hour=max(self.usd_per_hour, self.most_usd_per_hour))

    @property
    def max_price_usd_per_hour(self) -> float:
        """Maximum spot price per hour without extras; 0 means the provider's default."""
        return max(self.most_usd_per_hour - self.extras_usd_per_hour, 0.0) if self.spot else 0.0

    @property
    def place(self) -> str:
        """The zone if it is known, else the region."""
        return self.zone or self.region

    @property
    def provider(self) -> str:
        """What stands for the place where there is none: the user's own machines."""
        return "hosts"

    @property
    def words(self) -> str:
        """For people.

        >>> Rental("m4.large", "us-east-1", spot=True).words
        'm4.large (spot, us-east-1)'
        """
        inside = ", ".join(part for part in ("spot" * self.spot, self.place) if part)
        return (self.instance_type or "host") + (f" ({inside})" if inside else "")

    def outgrows(self, other: Rental, *, device: bool = False) -> bool:
        """Whether it has clearly more memory than another, and no less of the other kind.

        Args:
            other: of which that is known.
            device: memory of a GPU is meant; else main memory.

        >>> small, large = Rental(memory_bytes=4 << 30), Rental(memory_bytes=8 << 30)
        >>> large.outgrows(small), small.outgrows(large), large.outgrows(large)
        (True, False, False)
        """
        main, gpu = (1.0, MORE) if device else (MORE, 1.0)
        known = other.gpu_memory_bytes if device else other.memory_bytes
        return (
            known > 0
            and self.memory_bytes >= main * other.memory_bytes
            and self.gpu_memory_bytes >= gpu * other.gpu_memory_bytes
        )

    def billed_usd(self, seconds: float, *, at_most: bool = False) -> float:
        """What it costs to have it for so long, as expected or at the highest price.

        >>> round(Rental(usd_per_hour=3.6, minimum_s=60).billed_usd(10), 6)
        0.06
        """
        usd_per_hour = max(self.usd_per_hour, self.most_usd_per_hour) if at_most else self.usd_per_hour
        return self.billed_s(seconds) * usd_per_hour / 3600

    def billed_s(self, seconds: float) -> float:
        """For how long it is billed if it is had for so long.

        >>> Rental(minimum_s=60).billed_s(10), Rental(quantum_s=3600.0).billed_s(4000)
        (60.0, 7200.0)
        """
        return -(-max(seconds, self.minimum_s) // self.quantum_s) * self.quantum_s


@dataclass(frozen=True, slots=True)
class RolePlan:
    """Nodes of one kind.

    Attributes:
        role: ``worker``, or ``ps`` where the recipe gives parameter servers hardware of their own; members
            of other roles go where there is room.
        count: how many nodes.
        rentals: ways to have them, the best first; never empty.
        labels: of the nodes, for placing members.
        require: labels that a host of one's own must have.
        host_slots, host_gpus: how much of a host of one's own is wanted; 0 slots: all of it.
        disk_bytes: of the root disk; 0 for what the provider takes.
        least: how many of them are enough to begin with, and to go on; 0: all.
        larger: ways to have more memory, the least first, for attempts after one that ran out of it.
        memory_bytes, cpus: that a host of one's own must have, where it says (``slots``); 0: any.
    """

    __pydantic_config__ = EXACTLY
    role: str
    count: int
    rentals: tuple[Rental, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    require: Mapping[str, str] = field(default_factory=dict)
    host_slots: int = 0
    host_gpus: int = 0
    disk_bytes: int = 0
    least: int = 0
    larger: tuple[Rental, ...] = ()
    memory_bytes: int = 0
    cpus: int = 0

    def request(self, rental: Rental, token: str) -> NodeRequest:
        """What a provider is asked for, to have all of them in one of the ways.

        Args:
            rental: the way.
            token: of the request.
        """
        from trainmaster.providers.base import NodeRequest

        return NodeRequest(
            role=self.role,
            count=self.count,
            instance_type=rental.instance_type,
            region=rental.region,
            zone=rental.zone,
            spot=rental.spot,
            token=token,
            labels=dict(self.labels),
            require=dict(self.require),
            slots=self.host_slots,
            gpus=self.host_gpus,
            disk_bytes=self.disk_bytes,
            least=self.least,
            max_usd_per_hour=rental.max_price_usd_per_hour,
            memory_bytes=self.memory_bytes,
            cpus=self.cpus,
        )

    @property
    def needed(self) -> int:
        """How many nodes are enough."""
        return self.least or self.count

    def within(self, left_usd_per_hour: float) -> RolePlan:
        """Without those ways to have its machines that cost so much more than the best one."""
        most = max(left_usd_per_hour, 0.0) + _NOTHING
        best = self.rentals[0].usd_per_hour
        return replace(
            self, rentals=tuple(r for r in self.rentals if self.count * (r.usd_per_hour - best) <= most)
        )


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster that is to be had.

    Attributes:
        name: unique in its run: the first of its experiments.
        experiments: that run on it.
        provider: that rents it.
        roles: what it consists of.
        notes: for the user: what was chosen by default, wishes that mean nothing there.
        engine: that makes one cluster of them.
    """

    __pydantic_config__ = EXACTLY
    name: str
    experiments: tuple[str, ...]
    provider: str
    roles: tuple[RolePlan, ...]
    notes: tuple[str, ...] = ()
    engine: str = RECORDED_ENGINE

    @property
    def nodes(self) -> int:
        """How many machines."""
        return sum(role.count for role in self.roles)

    @property
    def usd_per_hour(self) -> float:
        """Price of all machines at the best offers."""
        return sum(role.count * role.rentals[0].usd_per_hour for role in self.roles)

    @property
    def slots(self) -> int:
        """Processes that all its nodes take at once, as the best offers have it."""
        return sum(role.count * role.rentals[0].slots for role in self.roles)

    @property
    def gpus(self) -> int:
        """GPUs of all its nodes, as the best offers have it."""
        return sum(role.count * role.rentals[0].gpus for role in self.roles)


def most_at_once(recipe: Recipe, usd_per_hour: Mapping[str, float], plans: Sequence[ClusterPlan]) -> float:
    """The most that clusters which may be there at the same time cost per hour.

    Two are never there together if every experiment of the one has to wait for every experiment of the other.

    Args:
        recipe: says what waits for what.
        usd_per_hour: of each cluster, by its name.
        plans: the clusters.
    """
    before = hourly_cost.ancestors({name: recipe.experiments[name].depends_on for name in recipe.order()})
    return hourly_cost.most_at_once(usd_per_hour, {plan.name: plan.experiments for plan in plans}, before)


def capped(recipe: Recipe, plans: Sequence[ClusterPlan]) -> tuple[ClusterPlan, ...]:
    """The same clusters without those ways to have machines that ``budget.per_hour`` does not allow.

    Raises:
        UsageError: it does not even allow the cheapest; names what would do.
    """
    cap = recipe.budget.usd_per_hour if recipe.budget else None
    if cap is None:
        return tuple(plans)
    needed = most_at_once(recipe, {plan.name: plan.usd_per_hour for plan in plans}, plans)
    if needed > cap + _NOTHING:
        least = hourly_cost.least_cap(needed)
        raise UsageError(
            f"budget.per_hour: ${cap:g}, but the machines cost ${least:g} per hour: "
            + "; ".join(words(plan) for plan in plans),
            f"Raise budget.per_hour to ${least:g}, or ask for fewer or smaller machines.",
        )
    # Several kinds may have to be had in a dearer way, and all together must stay below the cap.
    left = (cap - needed) / sum(len(plan.roles) for plan in plans)

    return tuple(replace(plan, roles=tuple(role.within(left) for role in plan.roles)) for plan in plans)


def dearest_usd_per_hour(plan: ClusterPlan) -> float:
    """Of a cluster whose machines had to be had in the dearest planned way, at its highest price."""
    return sum(
        role.count * max(rental.at_most.usd_per_hour for rental in role.rentals) for role in plan.roles
    )


def words(plan: ClusterPlan) -> str:
    """A cluster for people: ``2 x m4.xlarge (spot) + 1 x m4.large (ps)``."""
    parts = []
    for role in plan.roles:
        best = role.rentals[0]
        what = best.instance_type or ("host" if role.count == 1 else "hosts")
        kind = [
            word for word in ("spot" if best.spot else "", role.role if role.role != "worker" else "") if word
        ]
        times = f"{role.count} x " if best.is_rented else f"{role.count} "
        parts.append(f"{times}{what}" + (f" ({', '.join(kind)})" if kind else ""))
    return " + ".join(parts)
