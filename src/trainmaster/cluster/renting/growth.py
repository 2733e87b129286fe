"""`Growth`: from machines on which something ran out of memory to larger ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.renting.plan_clusters import DEARER
from trainmaster.cluster.renting.requirements import SERVER, WORKER
from trainmaster.dataclass import dataclass
from trainmaster.executors.base import GangStatus

if TYPE_CHECKING:
    from trainmaster.cluster.record import ClusterRecord
    from trainmaster.cluster.renting.plan import ClusterPlan, Rental, RolePlan

#: What frameworks say when the memory of a GPU is used up; see `explain_failure`.
_DEVICE: Final = re.compile(r"CUDA|HIP|GPU|RESOURCE_EXHAUSTED")


@dataclass(frozen=True, slots=True)
class Growth:
    """A role of a cluster, and what it is to become.

    Attributes:
        before: as it was when something ran out of memory on ``ran_on``.
        after: with only such machines as have more.
        ran_on: the machine. device: it was the memory of a GPU.
    """

    before: RolePlan
    after: RolePlan
    ran_on: Rental
    device: bool

    @property
    def is_planned(self) -> bool:
        """Whether it has no other machines any more."""
        return all(way.outgrows(self.ran_on, device=self.device) for way in self.before.rentals)

    def words(self, attempt: str) -> str:
        """What happens, why, and what it costs, for people.

        Args:
            attempt: the id of the one that ran out of memory.
        """
        way = self.after.rentals[0]
        return (
            f"{_named(attempt)} ran out of memory on {self._sized(self.ran_on)}: its next attempt gets "
            f"{self.after.count} x {self._sized(way)}, ${way.usd_per_hour:.4g} per hour each instead of "
            f"${self.ran_on.usd_per_hour:.4g}"
        )

    def refused(self, attempt: str, why: str) -> str:
        """Why there is no next attempt, for people."""
        way = self.after.rentals[0]
        return (
            f"{_named(attempt)} ran out of memory on {self._sized(self.ran_on)} and is not tried again "
            f"there: the next larger machine is {self._sized(way)} at ${way.usd_per_hour:.4g} per hour, and "
            f"{why}"
        )

    def _sized(self, way: Rental) -> str:
        gigabytes = (way.gpu_memory_bytes if self.device else way.memory_bytes) / 2**30
        return f"{way.words} with {gigabytes:.3g} GiB{' per GPU' if self.device else ''}"


def growth(record: ClusterRecord, machines: Collection[str], gang: GangStatus, message: str) -> Growth | None:
    """What follows for a cluster from an attempt that ran out of memory; None if nothing does.

    Args:
        record: of the cluster.
        machines: ids of those that the attempt ran on; empty if no longer known.
        gang: how its members ended.
        message: what was read of its end.
    """
    role = _role(record.plan, gang)
    mine = [machine for machine in record.machines if machine.role == role.role]
    known = [machine.rental for machine in mine if machine.id in machines]
    known = known or [machine.rental for machine in mine if not machine.is_over] or [role.rentals[0]]
    device = bool(_DEVICE.search(message))
    ran_on = min(known, key=lambda way: way.gpu_memory_bytes if device else way.memory_bytes)
    after = _larger(role, ran_on, device=device)
    return None if after is None else Growth(role, after, ran_on, device)


def grown(plan: ClusterPlan, roles: Collection[RolePlan]) -> ClusterPlan:
    """A plan with these roles in place of those of the same name."""
    new = {role.role: role for role in roles}
    return replace(plan, roles=tuple(new.get(role.role, role) for role in plan.roles))


def _role(plan: ClusterPlan, gang: GangStatus) -> RolePlan:
    """The role whose members ran out of memory; the workers if unknown."""
    roles = {role.role: role for role in plan.roles}
    out = [member.name for member in gang.members if member.oom]
    is_server = bool(out) and all(name.rpartition("-")[0] == SERVER for name in out)
    return roles[SERVER] if is_server and SERVER in roles else roles.get(WORKER, plan.roles[0])


def _larger(role: RolePlan, ran_on: Rental, *, device: bool) -> RolePlan | None:
    """The role with only such machines as have more memory; None if there are none."""
    ways = [way for way in (*role.rentals, *role.larger) if way.outgrows(ran_on, device=device)]
    if not ways:
        return None
    ways.sort(key=lambda way: way.usd_per_hour)
    near = [way for way in ways if way.usd_per_hour <= DEARER * ways[0].usd_per_hour + 1e-12]
    # As many processes as before share the memory: more of them would need more.
    kept = tuple(replace(way, slots=min(way.slots, ran_on.slots)) for way in near)
    return replace(role, rentals=kept, larger=tuple(way for way in role.larger if way not in near))


def _named(attempt: str) -> str:
    _, experiment, task, _ = attempt.split("/")
    return f"{experiment}/{task}"
