"""How large machines are: too small for anything, or less than their offers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.providers import Offer
from trainmaster.spec import Hardware

#: A framework and our own runtime do not fit into less.
LEAST_MEMORY_BYTES: Final = 4_000_000_000
#: Share of a memory that a job may need: the rest is for the system and our own processes, and for peaks that
#: fall between two looks at the memory.
FULL: Final = 0.92
#: Cores that the engine, the supervisor and the agent take of a machine while a task trains: 3 to 7 % of
#: one, in the lab. Machines of clouds are so large that it does not count.
RUNTIME_CORES: Final = 0.05
_LEAST_CORES: Final = 0.01


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process of a job was measured to need, in bytes; NaN or None where it is not known.

    Attributes:
        main: of main memory. device: of an accelerator's.
    """

    main: float | None = None
    device: float | None = None

    def rules_out(self, offer: Offer, per_node: int) -> bool:
        """Whether an offer cannot hold so many processes, with room to spare (`FULL`).

        Args:
            offer: with what it really has.
            per_node: processes of one task on a machine.
        """
        device = offer.accelerator_memory_bytes
        too_little = (self.main or 0.0) * per_node > FULL * offer.memory_bytes
        return too_little or bool(device and (self.device or 0.0) > FULL * device)

    def least_bytes(self, per_node: int) -> int:
        """Main memory that a machine must have for so many processes; 0 if that is not known.

        >>> Memory(920e6).least_bytes(2), Memory(None).least_bytes(2), Memory(math.nan).least_bytes(1)
        (2000000000, 0, 0)
        """
        needed = (self.main or 0.0) * per_node / FULL
        return math.ceil(needed) if math.isfinite(needed) else 0

    @property
    def words(self) -> str:
        """For people.

        >>> Memory(846e6).words
        '846 MB of main memory were measured in one process, and 8 % of a memory stay free'
        """
        parts = [
            f"{bytes_ / 1e6:,.0f} MB of {what}"
            for bytes_, what in ((self.main, "main memory"), (self.device, "a device's memory"))
            if bytes_ and math.isfinite(bytes_)
        ]
        free = round(100 * (1 - FULL))
        return f"{' and '.join(parts)} were measured in one process, and {free} % of a memory stay free"


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
    """Usable share of the advertised memory and cores, where the provider states it (a lab).

    Attributes:
        cpu, memory, network: shares. least_memory_bytes: that every machine has.
        runtime_cores: that our own processes take of each machine.
    """

    cpu: float
    memory: float
    network: float
    least_memory_bytes: int = 0
    runtime_cores: float = 0.0

    def of(self, offer: Offer) -> Offer:
        """An offer with what it really has."""
        return replace(
            offer,
            vcpus=max(offer.vcpus * self.cpu - self.runtime_cores, _LEAST_CORES),
            memory_bytes=max(int(offer.memory_bytes * self.memory), self.least_memory_bytes, 1),
            nic_gbps=offer.nic_gbps and offer.nic_gbps * self.network,
            nic_burst_gbps=offer.nic_burst_gbps and offer.nic_burst_gbps * self.network,
        )
