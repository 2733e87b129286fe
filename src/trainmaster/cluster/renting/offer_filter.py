"""Which offers have what a recipe's ``hardware`` asks for; if none has, what comes nearest. Pure.

`AvailableOffers`: what a provider has, for planning clusters. Pure.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from trainmaster.advisor.market.memory_floor import Memory, Shares, roomy
from trainmaster.dataclass import dataclass, field
from trainmaster.providers import Offer, OfferFilter
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.filters import same_gpu
from trainmaster.providers.offer import Extras, unknown_extras
from trainmaster.spec import Hardware
from trainmaster.spec.errors import UsageError
from trainmaster.spec.hardware import Most, several
from trainmaster.spec.reading import keys_of

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


#: Keys of a recipe's ``hardware`` that are not called as the filter's wishes.
_KEYS: Final = {"instances": "instance", "memory_bytes": "memory", "gpu_memory_bytes": "gpu_memory"}
_GIB: Final = 2**30
#: Of a model's name: the memory that it is to have.
_SIZE: Final = re.compile(r"-\d+GI?B$", re.IGNORECASE)


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
        raise _nothing(available, wishes, where)
    if not hardware.instance and available.arch:
        found = [offer for offer in found if offer.arch in ("", available.arch)] or found
    if untold := unknown_extras(available.provider):
        notes.append(untold)
    billed = [available.extras.added_to(offer, hardware.disk_bytes) for offer in roomy(found, hardware)]
    return billed, notes


def _nothing(available: AvailableOffers, wishes: OfferFilter, where: str) -> UsageError:
    """What was asked for, which wish nothing meets, and what comes nearest."""
    blamed = wishes.blamed(available.offers)
    hints = [hint for name in blamed if (hint := _nearest(available.offers, wishes, name))]
    keys = ", ".join(_KEYS.get(name, name) for name in blamed)
    return UsageError(
        f"{where}: {available.source} has nothing for provider {available.provider} with "
        f"{_asked(wishes) or 'that'}",
        " ".join([f"Change {keys}.", *hints, "`trainmaster offers` shows what there is."]),
    )


def _asked(wishes: OfferFilter) -> str:
    return ", ".join(
        f"{_KEYS.get(name, name)}: {_shown(name, getattr(wishes, name))}"
        for name in wishes.__slots__
        if getattr(wishes, name) not in (None, ()) and (name != "spot" or wishes.spot)
    )


def _of_other_size(offers: Sequence[Offer], gpu: str) -> str:
    """The same model with another memory, where a name such as A100-80GB says how much is wanted."""
    plain = _SIZE.sub("", gpu)
    if plain == gpu:
        return ""
    found = [offer for offer in offers if same_gpu(plain, offer.accelerator)]
    sizes = {size // _GIB for offer in found if (size := offer.accelerator_memory_bytes)}
    known = f", with {' or '.join(map(str, sorted(sizes)))} GiB each" if sizes else ""
    return f" `gpu: {plain}` is there{known}." if found else ""


def _nearest(offers: Sequence[Offer], wishes: OfferFilter, name: str) -> str:
    """What there is instead of one wish."""
    if name == "instances":
        known = sorted({offer.instance_type for offer in offers})
        near = [close for wish in wishes.instances for close in difflib.get_close_matches(wish, known, n=3)]
        return f"The nearest types are {', '.join(dict.fromkeys(near))}." if near else ""
    if name == "gpu":
        models = sorted({offer.accelerator for offer in offers if offer.accelerator})
        other = "".join(_of_other_size(offers, gpu) for gpu in several(wishes.gpu))
        return f"Its GPUs are {', '.join(models)}.{other}" if models else "It has no GPUs."
    if name == "region":
        return f"Its regions are {', '.join(sorted({offer.region for offer in offers}))}."
    if name in ("any_of", "most"):
        return ""
    if name == "spot":
        return "What it has is to be had as spot machines only: set spot: true."
    given: dict[str, Any] = {key: getattr(wishes, key) for key in wishes.__slots__ if key != name}
    without = OfferFilter(**given)
    left = [offer for offer in offers if without.accepts(offer)] or list(offers)
    facts = {"gpus": "accelerators", "cpus": "vcpus", "gpu_memory_bytes": "accelerator_memory_bytes"}
    fact = facts.get(name, name)
    most = max(left, key=lambda offer: float(getattr(offer, fact) or 0), default=None)
    if most is None:
        return ""
    what = f"{most.instance_type}: {_shown(name, getattr(most, fact))}"
    return f"The most {_KEYS.get(name, name)} has {what}."


def _shown(name: str, value: object) -> str:
    if name.endswith(("memory_bytes", "memory")) and isinstance(value, int | float):
        return f"{value / _GIB:.4g} GiB"
    if isinstance(value, OfferFilter):
        return f"{{{_asked(value)}}}"
    if isinstance(value, Most):
        ends = ((key.name, getattr(value, field)) for field, key in keys_of(Most))
        return f"{{{', '.join(f'{key}: {_shown(key, end)}' for key, end in ends if end is not None)}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(_shown(name, each) for each in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if value is True else str(value)
