"""What can be rented, and the providers that rent it.

`load_catalogue` finds a `Catalogue` of `Offer` s by name or reads one from a file; `get_provider` finds a
`Provider` by name.

Names are loaded when they are used: a run on this machine needs next to nothing of this.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.providers.base import NoCapacityError as NoCapacityError
    from trainmaster.providers.base import Node as Node
    from trainmaster.providers.base import NodeRequest as NodeRequest
    from trainmaster.providers.base import NodeState as NodeState
    from trainmaster.providers.base import Provider as Provider
    from trainmaster.providers.base import ProviderPlace as ProviderPlace
    from trainmaster.providers.capabilities import Capabilities as Capabilities
    from trainmaster.providers.capabilities import capabilities_of as capabilities_of
    from trainmaster.providers.catalogue import STALE_DAYS as STALE_DAYS
    from trainmaster.providers.catalogue import Catalogue as Catalogue
    from trainmaster.providers.catalogue import OfferColumns as OfferColumns
    from trainmaster.providers.catalogue import RefusedRow as RefusedRow
    from trainmaster.providers.catalogue import StalePrices as StalePrices
    from trainmaster.providers.filters import OfferFilter as OfferFilter
    from trainmaster.providers.loading import NAMED as NAMED
    from trainmaster.providers.loading import load_catalogue as load_catalogue
    from trainmaster.providers.offer import Offer as Offer
    from trainmaster.providers.plugins import get_provider as get_provider

__all__, __getattr__ = lazy_exports(__name__)
