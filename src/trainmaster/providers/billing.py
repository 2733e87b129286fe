"""What the providers bill: how they round time, and what they bill beside the machines themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainmaster.providers.aws.ec2_facts import (
    DEAREST_DISK,
    DISK_USD_PER_GIB_MONTH,
    PUBLIC_ADDRESS_USD_PER_HOUR,
)
from trainmaster.providers.aws.settings import DISK_BYTES

if TYPE_CHECKING:
    from trainmaster.providers.offer import Offer

#: (quantum, minimum) in seconds for Linux machines: AWS and Google bill seconds after the first
#: minute, Azure bills seconds.
TERMS: Final = {"aws": (1.0, 60.0), "gcp": (1.0, 60.0), "azure": (1.0, 0.0)}

#: For those of whom nothing is known: whole minutes, so that nobody is promised too little.
UNKNOWN: Final = (60.0, 60.0)
#: Of the shortest month, in which a disk costs most per hour.
_HOURS_PER_MONTH: Final = 28 * 24.0
_GIB: Final = 2**30


def billing_terms(provider: str) -> tuple[float, float]:
    """Quantum and minimum of a provider, seconds."""
    return TERMS.get(provider, UNKNOWN)


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
        if offer.provider != "aws":
            return offer
        gib = -(-(disk_bytes or self.disk_bytes) // _GIB)
        disk = gib * DISK_USD_PER_GIB_MONTH.get(offer.region, DEAREST_DISK) / _HOURS_PER_MONTH
        extras = disk + PUBLIC_ADDRESS_USD_PER_HOUR * self.public_address
        return replace(
            offer, price_usd_per_hour=offer.price_usd_per_hour + extras, extras_usd_per_hour=extras
        )


#: Where nobody has chosen otherwise.
USUAL_EXTRAS: Final = Extras(DISK_BYTES, public_address=True)


def unknown_extras(provider: str) -> str:
    """What is to be told of a provider that rents, and whose rates are not known; empty if they are.

    >>> unknown_extras("aws")
    ''
    """
    if provider in ("aws", "lab", "local", "hosts"):  # the lab bills its hosts only
        return ""
    return f"disks and public addresses of {provider} are billed besides: their rates are not known"
