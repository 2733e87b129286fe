"""What can be rented, and by whom.

`load_catalogue` finds a `Catalogue` of `Offer` s by name or reads one from a file; `get_provider` finds a
`Provider` by name.

Names are loaded when they are used: a run on this machine needs next to nothing of this.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
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

_MODULES = {
    "Catalogue": "catalogue",
    "NAMED": "loading",
    "Offer": "offer",
    "OfferColumns": "catalogue",
    "OfferFilter": "filters",
    "ProviderPlace": "place",
    "Refusal": "refusal",
    "STALE_DAYS": "catalogue",
    "StalePrices": "catalogue",
    "get_provider": "finding",
    "load_catalogue": "loading",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'base')}")
    return getattr(module, name)
