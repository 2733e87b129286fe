"""`gather`: from rows that were read to offers that do not contradict each other."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta

from trainmaster.dataclass import dataclass, field
from trainmaster.providers.catalogue import RefusedRow
from trainmaster.providers.offer import Offer


@dataclass(slots=True)
class LoadedFile:
    """What a loader found in one file.

    Attributes:
        file: its name as people gave it.
        rows: offers with their line (0 where there are no lines).
        refused: what is no offer, and why.
        warnings: sentences.
        strict: a refused row is a mistake of the user, who wrote the file.
    """

    file: str
    rows: list[tuple[Offer, int]] = field(default_factory=list)
    refused: list[RefusedRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    strict: bool = False

    def refuse(self, line: int, subject: str, reason: str) -> None:
        """Note a row that is not used."""
        self.refused.append(RefusedRow(self.file, line, subject, reason))


def subject_of(offer: Offer) -> str:
    """How a refusal names an offer."""
    words = (offer.provider, offer.place, offer.instance_type, "spot" if offer.spot else "")
    return " ".join(word for word in words if word)


def gather(reading: LoadedFile, today: date) -> tuple[tuple[Offer, ...], tuple[RefusedRow, ...]]:
    """Offers that may be trusted, in their order, and everything that was refused, by line.

    Refused here, because it takes more than one row or the calendar to see it: a price of the
    future, one thing at two prices (both rows: which is right is unknown), and a spot machine
    that is dearer than the same on demand. A row that only repeats another is left out silently.
    """
    rows = _without_the_future(reading, today)
    rows = _without_two_prices(reading, rows)
    rows = _without_dear_spot(reading, rows)
    refused = sorted(reading.refused, key=lambda refusal: refusal.line)
    return tuple(offer for offer, _ in rows), tuple(refused)


def _without_the_future(reading: LoadedFile, today: date) -> list[tuple[Offer, int]]:
    latest = today + timedelta(days=1)  # it may be tomorrow already where the file was written
    kept = []
    for offer, line in reading.rows:
        if offer.as_of > latest:
            reason = f"its price is of {offer.as_of.isoformat()}, which is in the future"
            reading.refuse(line, subject_of(offer), reason)
        else:
            kept.append((offer, line))
    return kept


def _without_two_prices(reading: LoadedFile, rows: Iterable[tuple[Offer, int]]) -> list[tuple[Offer, int]]:
    first: dict[object, tuple[Offer, int]] = {}
    contradicted: dict[object, str] = {}
    for offer, line in rows:
        known, known_line = first.setdefault(offer.key, (offer, line))
        if (difference := _difference(known, offer)) and known is not offer:
            where = f"line {known_line}" if known_line else "another row"
            reading.refuse(line, subject_of(offer), f"the same as {where} with {difference}")
            contradicted.setdefault(offer.key, f"line {line}" if line else "another row")
    for key, where in contradicted.items():
        offer, line = first.pop(key)
        reading.refuse(line, subject_of(offer), f"contradicted by {where}")
    return list(first.values())


def _difference(known: Offer, other: Offer) -> str:
    if known.price_usd_per_hour != other.price_usd_per_hour:
        return f"another price: {other.price_usd_per_hour:g} instead of {known.price_usd_per_hour:g} USD"
    if (known.vcpus, known.memory_bytes) != (other.vcpus, other.memory_bytes):
        return "another number of vCPUs or another memory"
    return ""


def _without_dear_spot(reading: LoadedFile, rows: list[tuple[Offer, int]]) -> list[tuple[Offer, int]]:
    if not any(offer.spot for offer, _ in rows):
        return rows
    on_demand: dict[tuple[object, ...], float] = {}
    for offer, _ in rows:
        if not offer.spot:
            gpus = offer.accelerator, offer.accelerators
            machine = (offer.provider, offer.region, offer.instance_type, *gpus)
            on_demand[*machine, offer.zone] = offer.price_usd_per_hour
            dearest = max(offer.price_usd_per_hour, on_demand.get(machine, 0.0))
            on_demand[machine] = dearest  # where the zone is unknown, any zone's price excuses it
    kept = []
    for offer, line in rows:
        machine = (offer.provider, offer.region, offer.instance_type, offer.accelerator, offer.accelerators)
        limit = on_demand.get((*machine, offer.zone), on_demand.get(machine)) if offer.spot else None
        if limit is not None and offer.price_usd_per_hour > limit:
            reason = f"spot for {offer.price_usd_per_hour:g} USD is dearer than on demand for {limit:g}"
            reading.refuse(line, subject_of(offer), reason)
        else:
            kept.append((offer, line))
    return kept
