"""`Catalogue`: the offers of a named source, with what was refused, and as columns of numbers.

`RefusedRow`: a row of a catalogue that is not used, and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.filters import OfferFilter
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that names no offer one could trust.

    Attributes:
        file: where it is written.
        line: from 1; 0 where the file has no lines of its own for it (JSON).
        subject: what it would have offered, such as ``aws ap-southeast-1 m4.large``.
        reason: what is wrong with it.
    """

    file: str
    line: int
    subject: str
    reason: str

    def __str__(self) -> str:
        """As compilers write it.

        >>> str(RefusedRow("mine.csv", 7, "aws m4.large", "the price is 0 USD per hour"))
        'mine.csv:7: aws m4.large: the price is 0 USD per hour'
        """
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.subject, self.reason) if part)


#: Prices older than this are not rented by without being told to.
STALE_DAYS: Final = 180


class StalePrices(UsageError):  # noqa: N818 - the name of what happened
    """Prices too old to rent by.

    Attributes:
        as_of: the oldest of them.
    """

    def __init__(self, catalogue: str, as_of: date, age_days: int) -> None:
        self.as_of = as_of
        super().__init__(
            f"the prices of the catalogue '{catalogue}' are of {as_of.isoformat()}, {age_days} days old; "
            f"at most {STALE_DAYS} days are trusted",
            "Name a newer catalogue with --catalogue FILE, or accept them with --allow-stale.",
        )


@dataclass(frozen=True, slots=True)
class OfferColumns:
    """The offers of a catalogue as arrays, all of one length and in its order; unknown is NaN.

    Attributes:
        price_usd_per_hour: floats. vcpus: floats. memory_bytes: floats. accelerators: floats.
        accelerator_memory_bytes: of one GPU. nic_gbps: sustained. nic_burst_gbps: for minutes.
        billing_quantum_s: floats. billing_minimum_s: floats. cpu_baseline_share: NaN if not rationed.
        spot: booleans.
        instance_type, accelerator, region, provider: texts.
    """

    price_usd_per_hour: NDArray[np.float64]
    vcpus: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    accelerators: NDArray[np.float64]
    accelerator_memory_bytes: NDArray[np.float64]
    nic_gbps: NDArray[np.float64]
    nic_burst_gbps: NDArray[np.float64]
    billing_quantum_s: NDArray[np.float64]
    billing_minimum_s: NDArray[np.float64]
    cpu_baseline_share: NDArray[np.float64]
    spot: NDArray[np.bool_]
    instance_type: NDArray[np.object_]
    accelerator: NDArray[np.object_]
    region: NDArray[np.object_]
    provider: NDArray[np.object_]


@dataclass(frozen=True)
class Catalogue:
    """Offers, in the order of their source.

    Attributes:
        name: ``builtin``, ``fc2-2018``, ``local``, or the file it was read from.
        offers: what may be rented.
        refused: rows that are not offered, and why.
        warnings: what its user should know, sentences.
        by_hand: the user named it, so the age of its prices is the user's business.
    """

    name: str
    offers: tuple[Offer, ...]
    refused: tuple[RefusedRow, ...] = ()
    warnings: tuple[str, ...] = ()
    by_hand: bool = False
    _columns: list[OfferColumns] = field(default_factory=list, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.offers)

    def __iter__(self) -> Iterator[Offer]:
        return iter(self.offers)

    @property
    def as_of(self) -> date | None:
        """The day of its oldest price (machines that cost nothing have none); None without prices."""
        return min((offer.as_of for offer in self.offers if offer.price_usd_per_hour > 0), default=None)

    def where(self, wishes: OfferFilter | None = None, /, **named: Any) -> Catalogue:  # noqa: ANN401 - OfferFilter's fields
        """The same catalogue with only some of its offers.

        Args:
            wishes: which.
            **named: fields of `OfferFilter`, instead of it or besides.
        """
        asked = replace(wishes or OfferFilter(), **named)
        return replace(self, offers=tuple(offer for offer in self.offers if asked.accepts(offer)))

    def with_offers(self, offers: Iterable[Offer]) -> Catalogue:
        """The same catalogue with these offers instead."""
        return replace(self, offers=tuple(offers))

    def cheapest(self, instance_type: str, *, spot: bool = False) -> Offer | None:
        """The cheapest offer of a type, None if there is none. Names compare without case."""
        wanted = instance_type.lower()
        found = (o for o in self.offers if o.spot == spot and o.instance_type.lower() == wanted)
        return min(found, key=lambda offer: offer.price_usd_per_hour, default=None)

    def columns(self) -> OfferColumns:
        """The offers as arrays, made once."""
        if not self._columns:
            self._columns.append(_columns_of(self.offers))
        return self._columns[0]

    def stale(self, today: date) -> tuple[Offer, ...]:
        """The offers whose price is older than 180 days; machines that cost nothing do not age."""
        return tuple(
            offer
            for offer in self.offers
            if capabilities_of(offer.provider).costs and offer.age_days(today) > STALE_DAYS
        )


def _columns_of(offers: tuple[Offer, ...]) -> OfferColumns:
    import numpy as np  # takes longer to import than the catalogue to read

    def array(name: str, kind: str) -> NDArray[Any]:
        values = [getattr(offer, name) for offer in offers]
        if "float" in kind:
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return np.array(values, dtype=np.bool_ if "bool" in kind else np.object_)

    return OfferColumns(**{each.name: array(each.name, str(each.type)) for each in fields(OfferColumns)})
