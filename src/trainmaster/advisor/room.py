"""Machines that are too small for anything, where the recipe does not say how large they must be."""

from __future__ import annotations

from collections.abc import Sequence
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
