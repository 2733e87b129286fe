"""What can be rented, and by whom.

`load_catalogue` finds a `Catalogue` of `Offer` s by name or reads one from a file; `get_provider` finds a
`Provider` by name.
"""

from __future__ import annotations

from trainmaster.providers.base import (
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    Provider,
    ProviderError,
)
from trainmaster.providers.catalogue import STALE_DAYS, Catalogue, OfferColumns, StalePrices
from trainmaster.providers.filters import OfferFilter
from trainmaster.providers.finding import get_provider
from trainmaster.providers.loading import NAMED, load_catalogue
from trainmaster.providers.offer import Offer
from trainmaster.providers.place import ProviderPlace
from trainmaster.providers.refusal import Refusal

__all__ = [
    "NAMED",
    "STALE_DAYS",
    "Catalogue",
    "NoCapacityError",
    "Node",
    "NodeRequest",
    "NodeState",
    "Offer",
    "OfferColumns",
    "OfferFilter",
    "Provider",
    "ProviderError",
    "ProviderPlace",
    "Refusal",
    "StalePrices",
    "get_provider",
    "load_catalogue",
]
