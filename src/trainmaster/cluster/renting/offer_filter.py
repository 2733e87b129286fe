"""Which offers have what a recipe's ``hardware`` asks for; if none has, what comes nearest. Pure.

`AvailableOffers`: what a provider has, for planning clusters. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trainmaster.advisor.market.memory_floor import Memory, Shares, roomy
from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Offer, OfferFilter
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.filters import nothing_with
from trainmaster.providers.offer import Extras, unknown_extras
from trainmaster.spec import Hardware
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.providers.inventory import InventoryHost


@dataclass(frozen=True)
class AvailableOffers:
    """What there is to be had.

    Attributes:
        provider: whose.
        offers: of a provider that rents.
        zones: by region, where they are known.
        hosts: the user's own machines; None if machines are rented.
        arch: processors that the code is known to run on, as in `Offer`; empty is any.
        source: where the offers, or the hosts, are listed.
        extras: what is rented with every machine.
        shares: how much of what offers say machines really have; None: all of it.
        memory: what a process of an experiment was measured to need, by name.
    """

    provider: str
    offers: tuple[Offer, ...] = ()
    zones: Mapping[str, Sequence[str]] = field(default_factory=dict)
    hosts: tuple[InventoryHost, ...] | None = None
    arch: str = ""
    source: str = ""
    extras: Extras = field(default_factory=Extras)
    shares: Shares | None = None
    memory: Mapping[str, Memory] = field(default_factory=dict)

    def on_demand_usd_per_hour(self, offer: Offer) -> float:
        """The price of the same machine on demand, without what is rented with it; infinite if unknown."""
        same = (o for o in self.offers if o.instance_type == offer.instance_type and o.region == offer.region)
        return min((o.price_usd_per_hour for o in same if not o.spot), default=math.inf)


def suited(available: AvailableOffers, hardware: Hardware, where: str) -> tuple[list[Offer], list[str]]:
    """The offers that have what is asked for, and what had to be given up.

    Raises:
        UsageError: there are none, or spot machines are asked of a provider that rents none.
    """
    provider = capabilities_of(available.provider)
    if hardware.spot and not provider.spot:
        why = f": {provider.no_spot}" if provider.no_spot else ""
        raise UsageError(
            f"{where}.spot: provider {available.provider} rents no spot machines{why}",
            "Leave it out to rent on demand, at that price, or rent with `provider: aws`.",
        )
    wishes = replace(OfferFilter.from_hardware(hardware), gpus=hardware.gpu_count or hardware.gpus)
    notes = []
    found = [offer for offer in available.offers if wishes.accepts(offer)]
    if not found and hardware.spot:
        found = [offer for offer in available.offers if replace(wishes, spot=False).accepts(offer)]
        if found:
            notes.append(f"{where}.spot: {available.source} has no such machines; they are rented on demand")
    if not found:
        asked, instead = nothing_with(wishes, available.offers)
        raise UsageError(
            f"{where}: {available.source} has nothing with {asked}",
            f"{instead} `trainmaster offers` shows what there is.",
        )
    if not hardware.instance and available.arch:
        found = [offer for offer in found if offer.arch in ("", available.arch)] or found
    if untold := unknown_extras(available.provider):
        notes.append(untold)
    billed = [available.extras.added_to(offer, hardware.disk_bytes) for offer in roomy(found, hardware)]
    return billed, notes
