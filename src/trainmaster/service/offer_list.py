"""`list_offers`: what can be rented, where, for how much, as ``trainmaster offers`` lists it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers import NAMED, Catalogue, Offer, OfferFilter, load_catalogue
from trainmaster.providers.catalogue import RefusedRow
from trainmaster.providers.filters import nothing_with
from trainmaster.providers.offer import Extras
from trainmaster.service.quotes.candidate_offers import extras_of, own_list_of
from trainmaster.service.quotes.prices import Prices, named_regions
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    from trainmaster.service.open_home import OpenHome

_SORTS: Final[dict[str, Callable[[Offer], Any]]] = {
    "price": lambda o: o.price_usd_per_hour,
    "price-per-cpu": lambda o: _share(o.price_usd_per_hour, o.vcpus),
    "price-per-gpu": lambda o: _share(o.price_usd_per_hour, o.accelerators),
    "cpus": lambda o: -o.vcpus,
    "memory": lambda o: -o.memory_bytes,
    "gpus": lambda o: -o.accelerators,
    "nic": lambda o: -(o.nic_gbps or 0.0),
    "region": lambda o: o.place,
    "instance": lambda o: o.instance_type,
}
#: Of what a catalogue has instead, so much is told.
_YEAR_DAYS: Final = 365


@dataclass(frozen=True, slots=True)
class OfferList:
    """What can be rented.

    Attributes:
        offers: sorted; perhaps only the first ones.
        total: how many there are.
        catalogue: its name.
        as_of: of the oldest price; None without any.
        warnings: for people.
        refused: rows of the catalogue that are not offered.
        extras: what prices of AWS hold.
    """

    offers: tuple[Offer, ...]
    total: int
    catalogue: str
    as_of: date | None
    warnings: tuple[str, ...]
    refused: tuple[RefusedRow, ...]
    extras: Extras

    def as_dict(self, *, with_refused: bool) -> dict[str, Any]:
        """The object of ``trainmaster offers --json``."""
        rows = [
            {"file": r.file, "line": r.line, "offer": r.subject, "reason": r.reason} for r in self.refused
        ]
        return {
            "offers": [offer.as_dict() for offer in self.offers],
            "total": self.total,
            "catalogue": self.catalogue,
            "as_of": None if self.as_of is None else self.as_of.isoformat(),
            "warnings": list(self.warnings),
            "refused": len(self.refused),
            **({"refused_rows": rows} if with_refused else {}),
        }


def check_named(catalogue: str | None) -> None:
    """Refuse a catalogue that is a file: on a server that would be one of the server's.

    Raises:
        UsageError: it has no name.
    """
    if catalogue is not None and catalogue not in (*NAMED, "local"):
        raise UsageError(f"there is no catalogue {catalogue!r}", f"Take one of {', '.join(NAMED)}.")


def list_offers(
    service: OpenHome,
    environ: Mapping[str, str],
    wishes: OfferFilter,
    catalogue: str | None = None,
    sort: str = "price",
    limit: int | None = None,
    *,
    old_last: bool = False,
) -> OfferList:
    """What can be rented; see `ClientProtocol.offers`.

    Args:
        service: the home whose prices they are, as a team sees it.
        environ: variables of its owner.
        wishes: which.
        catalogue: by name or file; None for that of the home.
        sort: one of `_SORTS`.
        limit: at most so many.
        old_last: first those whose price is at most a year older than the newest one.
    """
    order = _order(sort)
    whole = _catalogue(service, environ, wishes.provider, catalogue)
    extras = extras_of(Prices.of(service, environ).place.environ)
    billed = whole.where(replace(wishes, max_price_usd_per_hour=None))
    found = billed.with_offers(extras.added_to(offer) for offer in billed).where(wishes)
    warnings = _warnings(found)
    if not len(found):
        asked, instead = nothing_with(wishes, whole)
        warnings.append(f"{whole.name} has nothing with {asked}. {instead}")
    newest = max((offer.as_of for offer in found), default=date.min)
    # What was paid years ago is low, and is not paid any more.
    is_old = {o.as_of: old_last and (newest - o.as_of).days > _YEAR_DAYS for o in found}
    offers = tuple(sorted(found, key=lambda offer: (is_old[offer.as_of], order(offer)))[:limit])
    return OfferList(offers, len(found), found.name, found.as_of, tuple(warnings), whole.refused, extras)


def _catalogue(
    service: OpenHome, environ: Mapping[str, str], provider: str | None, named: str | None
) -> Catalogue:
    """The one that is named; else the provider's own list, if it has one; else that of the home."""
    if named is not None:
        return load_catalogue(named)
    own = provider and own_list_of(provider, service, environ, datetime.now(UTC).date())
    return own.catalogue if own else Prices.of(service, environ).catalogue()


def refresh_prices(service: OpenHome, environ: Mapping[str, str], region: str | None) -> dict[str, int]:
    """Ask for the prices of now; see `ClientProtocol.refresh_prices`."""
    prices = Prices.of(service, environ)
    return prices.refresh(named_regions(region, prices.catalogue(), prices.place.environ))


def _order(sort: str) -> Callable[[Offer], Any]:
    if sort not in _SORTS:
        import difflib

        near = difflib.get_close_matches(sort, _SORTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(_SORTS)}."
        raise UsageError(f"--sort: offers cannot be sorted by {sort!r}", hint)
    key = _SORTS[sort]
    return lambda o: (key(o), o.price_usd_per_hour, o.provider, o.place, o.instance_type, o.spot)


def _warnings(found: Catalogue) -> list[str]:
    notes = list(found.warnings)
    today = datetime.now(UTC).date()
    if old := found.stale(today):
        oldest, newest = min(o.as_of for o in old), max(o.as_of for o in old)
        dates = f"{oldest}" if oldest == newest else f"{oldest} to {newest}"
        notes.append(f"warning: old prices ({dates}): they may have changed since")
    return notes


def _share(price: float, count: float) -> float:
    return price / count if count else float("inf")
