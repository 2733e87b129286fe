"""`AvailableOffers`: what a provider has, for planning clusters. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainmaster.advisor.market.memory_floor import Memory, Shares
from trainmaster.providers import Offer
from trainmaster.providers.extras import Extras
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
