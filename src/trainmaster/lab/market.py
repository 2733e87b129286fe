"""`Market`: what the cloud has, allows, and gets wrong: capacity, quotas, faults. Pure but for its lock."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.lab.instance_types import TYPES, find_type
from trainmaster.spec.errors import UsageError

#: Every zone, or every type, in a capacity limit.
ANY: Final = "*"
#: vCPUs that an account may have running; Amazon's own start lower and are raised on request.
QUOTAS: Final = {"on-demand": 1000, "spot": 1000}


class ApiRefusal(Exception):  # noqa: N818 - what the API answers
    """What the API answers instead of doing it.

    Attributes:
        code: Amazon's, such as ``InsufficientInstanceCapacity``.
        status: of HTTP.
    """

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


@dataclass(frozen=True, slots=True)
class Running:
    """What a live instance takes of limits."""

    kind: str
    zone: str
    spot: bool


@dataclass
class InjectedFault:
    """Answers that go wrong on request.

    Attributes:
        action: of the API, such as ``RunInstances``, or ``*``.
        code: what it answers instead.
        status: of HTTP; from 500 on clients try again by themselves.
        count: how often still; None for always.
        delay_s: before anything is answered. With an empty code it is only late.
    """

    action: str
    code: str
    status: int = 500
    count: int | None = 1
    delay_s: float = 0.0


@dataclass
class Market:
    """Limits and faults as they are now. Threads may call everything.

    Attributes:
        capacity: (type, zone) -> how many may run there at once; `ANY` for either.
        quotas: ``on-demand`` and ``spot`` -> vCPUs.
        faults: still to happen.
        most_hosts: of the whole lab.
    """

    zones: tuple[str, ...]
    most_hosts: int
    capacity: dict[tuple[str, str], int] = field(default_factory=dict)
    quotas: dict[str, int] = field(default_factory=lambda: dict(QUOTAS))
    faults: list[InjectedFault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def limit(self, kind: str, zone: str, count: int | None) -> None:
        """Set how many of a type there are in a zone, or lift the limit.

        Raises:
            UsageError: no such type or zone, or a negative number.
        """
        if kind != ANY:
            find_type(kind)
        if zone not in (ANY, *self.zones):
            raise UsageError(
                f"the lab has no zone {zone!r}", f"It has {', '.join(self.zones)}, and {ANY} for all."
            )
        if count is not None and count < 0:
            raise UsageError(f"{count} machines cannot be there", "Write 0 or more.")
        with self._lock:
            if count is None:
                self.capacity.pop((kind, zone), None)
            else:
                self.capacity[kind, zone] = count

    def set_quota(self, which: str, vcpus: int) -> None:
        """Set how many vCPUs may run on demand, or as spot machines.

        Raises:
            UsageError: there is no such quota.
        """
        if which not in self.quotas or vcpus < 0:
            raise UsageError(f"no quota {which!r} of {vcpus}", f"There are {', '.join(self.quotas)}, from 0.")
        with self._lock:
            self.quotas[which] = vcpus

    def add_fault(self, fault: InjectedFault) -> None:
        """Let the next calls go wrong."""
        with self._lock:
            self.faults.append(fault)

    def clear_faults(self) -> None:
        """Let nothing go wrong any more."""
        with self._lock:
            self.faults.clear()

    def next_fault(self, action: str) -> InjectedFault | None:
        """The fault that hits this call, if any; counted down."""
        with self._lock:
            for fault in self.faults:
                if fault.action in (action, ANY):
                    if fault.count is not None:
                        fault.count -= 1
                        if fault.count <= 0:
                            self.faults.remove(fault)
                    return fault
        return None

    def choose(
        self, kind: str, zone: str | None, least: int, most: int, spot: bool, running: Iterable[Running]
    ) -> tuple[str, int]:
        """Where, and how many, if somebody asks for this now.

        Args:
            kind: instance type.
            zone: where it must be; None for anywhere.
            least: fewer will not do.
            most: more are not wanted.
            spot: whether they may be taken back.
            running: what there is already.

        Raises:
            ApiRefusal: as Amazon refuses it.
        """
        there = list(running)
        vcpus = TYPES[kind].vcpus
        which = "spot" if spot else "on-demand"
        used = sum(TYPES[r.kind].vcpus for r in there if r.spot == spot)
        with self._lock:
            allowed = (self.quotas[which] - used) // vcpus
            if allowed < least:
                raise _over_quota(which, self.quotas[which])
            best_zone, best = "", -1
            for name in [zone] if zone else self.zones:
                free = min(self._free(kind, name, there), self.most_hosts - len(there))
                if free > best:
                    best_zone, best = name, free
                if free >= most:
                    break
        if best < least:
            raise _no_capacity(kind, zone, self.zones, spot)
        return best_zone, min(most, best, allowed)

    def _free(self, kind: str, zone: str, there: list[Running]) -> int:
        free = self.most_hosts
        for (limited, place), count in self.capacity.items():
            if limited in (kind, ANY) and place in (zone, ANY):
                taken = sum(r.kind == kind or limited == ANY for r in there if place in (r.zone, ANY))
                free = min(free, count - taken)
        return max(0, free)

    def as_dict(self) -> Mapping[str, Any]:
        """For `lab status`."""
        with self._lock:
            return {
                "capacity": [{"type": t, "zone": z, "count": c} for (t, z), c in self.capacity.items()],
                "quotas": dict(self.quotas),
                "faults": [
                    {"action": f.action, "code": f.code, "status": f.status, "count": f.count}
                    for f in self.faults
                ],
            }


def check_max_price(kind: str, max_price: str) -> None:
    """Refuse a spot machine whose price is above what is agreed to.

    Args:
        kind: instance type.
        max_price: dollars per hour as they were sent; empty for whatever it costs.

    Raises:
        ApiRefusal: as Amazon refuses it.
    """
    if not max_price:
        return
    try:
        highest = float(max_price)
    except ValueError:
        raise ApiRefusal("InvalidParameterValue", f"Invalid value '{max_price}' for MaxPrice.") from None
    price = TYPES[kind].spot_price_usd_per_hour
    if not highest >= price:
        raise ApiRefusal(
            "SpotMaxPriceTooLow",
            f"Your Spot request price of {max_price} is lower than the minimum required Spot request "
            f"fulfillment price of {price:.6f}.",
        )


def _over_quota(which: str, limit: int) -> ApiRefusal:
    if which == "spot":
        return ApiRefusal("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    return ApiRefusal(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the "
        "instance bucket that the specified instance type belongs to.",
    )


def _no_capacity(kind: str, zone: str | None, zones: tuple[str, ...], spot: bool) -> ApiRefusal:
    if spot:
        # Amazon's code for a spot machine differs from that for one on demand.
        return ApiRefusal(
            "InsufficientInstanceCapacity",
            "There is no Spot capacity available that matches your request.",
            500,
        )
    where = f"in the Availability Zone you requested ({zone})" if zone else f"in the zones {', '.join(zones)}"
    return ApiRefusal(
        "InsufficientInstanceCapacity", f"We currently do not have sufficient {kind} capacity {where}.", 500
    )
