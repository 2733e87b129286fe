"""`offers_of`: what can be rented, as a server lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import date
from typing import Any

from trainmaster.providers import Offer
from trainmaster.providers.catalogue import RefusedRow
from trainmaster.providers.offer import Extras
from trainmaster.service.offer_list import OfferList


def offers_of(found: Mapping[str, Any]) -> OfferList:
    """From the object of ``GET /api/v1/offers`` with ``refused``."""
    refused = (RefusedRow(r["file"], r["line"], r["offer"], r["reason"]) for r in found["refused_rows"])
    return OfferList(
        tuple(_offer(row) for row in found["offers"]),
        found["total"],
        found["catalogue"],
        None if found["as_of"] is None else date.fromisoformat(found["as_of"]),
        tuple(found["warnings"]),
        tuple(refused),
        Extras(found["extras"]["disk_bytes"], found["extras"]["public_address"]),
    )


def _offer(row: Mapping[str, Any]) -> Offer:
    known = {each.name: row[each.name] for each in fields(Offer) if each.name in row}
    return Offer(**{**known, "as_of": date.fromisoformat(row["as_of"])})
