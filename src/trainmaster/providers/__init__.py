"""What can be rented: `load_catalogue` finds a `Catalogue` of `Offer` s by name or reads one from a file."""

from __future__ import annotations

from trainmaster.providers.catalogue import STALE_DAYS, Catalogue, OfferColumns, StalePrices
from trainmaster.providers.filters import OfferFilter
from trainmaster.providers.loading import NAMED, load_catalogue
from trainmaster.providers.offer import Offer
from trainmaster.providers.refusal import Refusal

__all__ = [
    "NAMED",
    "STALE_DAYS",
    "Catalogue",
    "Offer",
    "OfferColumns",
    "OfferFilter",
    "Refusal",
    "StalePrices",
    "load_catalogue",
]
