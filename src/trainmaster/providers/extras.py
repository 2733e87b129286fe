"""`Extras`: what is rented with every machine: its disk and its public address."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trainmaster.providers.capabilities import capabilities_of

if TYPE_CHECKING:
    from trainmaster.providers.offer import Offer


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
