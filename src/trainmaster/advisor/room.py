"""How large machines are: too small for anything, or less than their offers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from trainmaster.providers import Offer
from trainmaster.spec import Hardware

#: A framework and our own runtime do not fit into less.
LEAST_MEMORY_BYTES: Final = 4_000_000_000


def roomy(offers: Sequence[Offer], hardware: Hardware) -> list[Offer]:
    """Offers without the smallest, unless these were asked for or there are no others.

    Args:
        offers: that have what the recipe asks for.
        hardware: of the recipe: a type or a memory that it names is taken as it is.
    """
    if hardware.instance or hardware.memory_bytes is not None:
        return list(offers)
    return [offer for offer in offers if offer.memory_bytes >= LEAST_MEMORY_BYTES] or list(offers)


@dataclass(frozen=True, slots=True)
class Shares:
    """How much of what is published machines really have, where somebody says so: in a lab.

    Attributes:
        cpu, memory, network: shares. least_memory_bytes: that every machine has.
    """

    cpu: float
    memory: float
    network: float
    least_memory_bytes: int = 0

    def of(self, offer: Offer) -> Offer:
        """An offer with what it really has."""
        return replace(
            offer,
            vcpus=offer.vcpus * self.cpu,
            memory_bytes=max(int(offer.memory_bytes * self.memory), self.least_memory_bytes, 1),
            nic_gbps=offer.nic_gbps and offer.nic_gbps * self.network,
            nic_burst_gbps=offer.nic_burst_gbps and offer.nic_burst_gbps * self.network,
        )
