"""`Offer`: something that can be rented, at one price, as of a date.

`Extras`: what is rented with every machine: its disk and its public address.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.capabilities import capabilities_of


@dataclass(frozen=True, slots=True)
class Extras:
    """What is rented with every machine, and billed by the same seconds.

    Attributes:
        disk_bytes: of its root disk, where a recipe does not say.
        public_address: it has an IPv4 address that the internet knows.
    """

    disk_bytes: int = 0
    public_address: bool = False

    def added_to(self, offer: Offer, disk_bytes: int | None = None) -> Offer:
        """An offer at the price that is billed, as far as the provider's rates are known.

        Args:
            offer: at the price of the machine alone.
            disk_bytes: that the recipe asks for; None leaves it to the provider.
        """
        extras = capabilities_of(offer.provider).billing.extras_usd_per_hour(
            offer.region, disk_bytes or self.disk_bytes, public_address=self.public_address
        )
        if not extras:
            return offer
        return replace(
            offer, price_usd_per_hour=offer.price_usd_per_hour + extras, extras_usd_per_hour=extras
        )


def unknown_extras(provider: str) -> str:
    """A warning about a provider that rents, and whose rates are not known; empty if they are.

    >>> unknown_extras("aws")
    ''
    """
    if capabilities_of(provider).billing.is_whole:
        return ""
    return f"disks and public addresses of {provider} are billed besides: their rates are not known"


#: Spot machines are had, and kept, up to so many times the price that was planned with.
SPOT_RISE: Final = 1.2
#: How CPU time is rationed: not at all, until the credits are used up, or beyond them for a surcharge.
CPU_CREDITS: Final = ("", "standard", "unlimited")


@dataclass(frozen=True, slots=True)
class Offer:
    """One machine at one place for one price; on demand and spot are two offers.

    Attributes:
        provider: that rents it, such as ``aws``.
        region: such as ``ap-southeast-1``; '' where there are none.
        zone: such as ``ap-southeast-1a``; '' is any of the region.
        instance_type: such as ``m4.large``.
        vcpus: as sold, which are hardware threads on most types.
        memory_bytes: main memory.
        accelerator: model of the GPUs such as ``V100``; '' without any.
        accelerators: how many; a share of one on some types.
        accelerator_memory_bytes: memory of one GPU; None if unknown.
        nic_gbps: bandwidth that the network card sustains, Gbit/s; None if unknown.
        nic_burst_gbps: bandwidth for minutes ("up to"), Gbit/s; None if unknown.
        cpu_credits: '' if all of every core may be used always; ``standard`` if the cores slow down when
            the credits are used up, ``unlimited`` if they then cost more.
        price_usd_per_hour: more than 0, unless the machine is the user's own.
        spot: may be taken back by the provider.
        billing_quantum_s: time is rounded up to a multiple of it.
        billing_minimum_s: the least time that is billed.
        currency: of the price; always ``USD``.
        as_of: the day on which the price held.
        source: where the facts come from: a name, a page or a file with its line.
        arch: ``x86_64``, ``arm64``, or '' if unknown.
        cpu_baseline_share: share of its cores that CPU credits sustain; None if unknown or not rationed.
        extras_usd_per_hour: what of the price is for its disk and its public address; 0 where the price is
            that of the machine alone.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    vcpus: float
    memory_bytes: int
    accelerator: str
    accelerators: float
    accelerator_memory_bytes: int | None
    nic_gbps: float | None
    nic_burst_gbps: float | None
    cpu_credits: str
    price_usd_per_hour: float
    spot: bool
    billing_quantum_s: float
    billing_minimum_s: float
    currency: str
    as_of: date
    source: str
    arch: str = ""
    cpu_baseline_share: float | None = None
    extras_usd_per_hour: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what would be chosen by mistake.

        Raises:
            ValueError: a fact that cannot be true, such as a price of 0 for a rented machine.
        """
        if problem := self._problem():
            raise ValueError(problem)

    @property
    def key(self) -> tuple[str, str, str, str, str, float, bool]:
        """What tells it from other offers: there is one price for each key."""
        return (
            self.provider,
            self.region,
            self.zone,
            self.instance_type,
            self.accelerator,
            self.accelerators,
            self.spot,
        )

    def most_usd_per_hour(self, on_demand_usd_per_hour: float = math.inf) -> float:
        """What may be billed for it: the price of spot machines moves.

        Args:
            on_demand_usd_per_hour: of the same machine, without what is rented with it, if known.
        """
        if not self.spot:
            return self.price_usd_per_hour
        price = self.price_usd_per_hour - self.extras_usd_per_hour
        dearest = max(min(SPOT_RISE * price, on_demand_usd_per_hour), price)
        return math.ceil(dearest * 1e6) / 1e6 + self.extras_usd_per_hour  # as it is sent

    @property
    def place(self) -> str:
        """The zone if it is known, else the region."""
        return self.zone or self.region

    def age_days(self, today: date) -> int:
        """Days since the price was known to hold."""
        return (today - self.as_of).days

    def as_dict(self) -> dict[str, Any]:
        """What ``--json`` prints; unknown is None."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        facts["as_of"] = self.as_of.isoformat()
        return facts

    def _problem(self) -> str:
        price = self.price_usd_per_hour
        if not (0 < price < math.inf) and not (price == 0 and _may_be_free(self.provider)):
            return f"the price is {price:g} USD per hour; more than 0 is needed"
        if not (0 < self.vcpus < math.inf):
            return f"it has {self.vcpus:g} vCPUs; more than 0 are needed"
        if self.memory_bytes <= 0:
            return f"its memory is {self.memory_bytes:,} bytes; more than 0 is needed"
        if not (0 <= self.accelerators < math.inf):
            return f"it has {self.accelerators:g} GPUs; 0 or more are needed"
        if bool(self.accelerators) != bool(self.accelerator):
            if self.accelerator:
                return f"a GPU model ({self.accelerator}) without a number of GPUs"
            return f"{self.accelerators:g} GPUs without a model"
        if self.accelerator_memory_bytes is not None and not (
            self.accelerators and self.accelerator_memory_bytes > 0
        ):
            return f"memory of {self.accelerator_memory_bytes:,} bytes on {self.accelerators:g} GPUs"
        return self._problem_of_terms()

    def _problem_of_terms(self) -> str:
        slow, fast = self.nic_gbps, self.nic_burst_gbps
        if slow is not None and not (0 < slow < math.inf):
            return f"its network card carries {slow:g} Gbit/s; more than 0 is needed, or nothing if unknown"
        if fast is not None and not (0 < fast < math.inf):
            return f"its network card bursts to {fast:g} Gbit/s; more than 0 is needed, or nothing if unknown"
        if slow is not None and fast is not None and fast < slow:
            return f"its network card bursts to {fast:g} Gbit/s but sustains {slow:g}"
        if not (0 < self.billing_quantum_s < math.inf and 0 <= self.billing_minimum_s < math.inf):
            return (
                f"it is billed by {self.billing_quantum_s:g} s, at least {self.billing_minimum_s:g} s; "
                "more than 0 is needed"
            )
        if self.cpu_credits not in CPU_CREDITS:
            return f"its CPU credits are {self.cpu_credits!r}; write standard, unlimited, or nothing"
        if self.cpu_baseline_share is not None and not (0 < self.cpu_baseline_share <= 1):
            return f"its CPU baseline is {self.cpu_baseline_share:g}; a share between 0 and 1 is needed"
        if self.currency != "USD":
            return f"its price is in {self.currency or 'no currency'}; all prices are in USD"
        if not (self.provider and self.instance_type):
            return "a provider and an instance type are needed"
        return ""


def _may_be_free(provider: str) -> bool:
    can = capabilities_of(provider)
    return can.may_be_free or not can.costs


def site_offer(
    provider: str,
    instance_type: str,
    vcpus: float,
    memory_bytes: int,
    as_of: date,
    source: str,
    *,
    zone: str = "",
    gpu: str = "",
    gpus: float = 0.0,
    usd_per_hour: float = 0.0,
) -> Offer:
    """What a site or a machine of one's own has: no spot, billed by the second, at its own price or none."""
    return Offer(
        provider=provider,
        region="",
        zone=zone,
        instance_type=instance_type,
        vcpus=float(vcpus),
        memory_bytes=memory_bytes,
        accelerator=gpu or ("GPU" if gpus else ""),
        accelerators=float(gpus),
        accelerator_memory_bytes=None,
        nic_gbps=None,
        nic_burst_gbps=None,
        cpu_credits="",
        price_usd_per_hour=usd_per_hour,
        spot=False,
        billing_quantum_s=1.0,
        billing_minimum_s=0.0,
        currency="USD",
        as_of=as_of,
        source=source,
    )
