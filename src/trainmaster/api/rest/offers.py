"""Routes of offers: what can be rented, for how much, as of when."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from trainmaster.api.rest.bodies import Body
from trainmaster.api.rest.state import Reader, Routes, State, Submitter, asks_places
from trainmaster.service import OfferFilter
from trainmaster.service.offer_list import check_named, list_offers, refresh_prices

router = Routes(tags=["offers"])


class WhichOffers(Body):
    """Wishes, as `trainmaster offers` has them."""

    gpu: str | None = None
    gpus: int | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    max_price_usd_per_hour: float | None = None
    region: str | None = None
    provider: str | None = None
    instance: list[str] = Field(default=[])
    spot: bool | None = None
    catalogue: str | None = None
    sort: str = "price"
    limit: int | None = None
    refused: bool = False


class RefreshPrices(Body):
    """Where prices are asked for."""

    region: str | None = None


@router.get("/offers")
@asks_places
def offers(state: State, caller: Reader, which: Annotated[WhichOffers, Query()]) -> dict[str, Any]:
    """What can be rented, as `trainmaster offers --json` prints it; each price has its date."""
    check_named(which.catalogue)
    kept = {"instance", "catalogue", "sort", "limit", "refused"}
    wishes = OfferFilter(**which.model_dump(exclude=kept), instances=tuple(which.instance))
    service = state.service.of_team(caller.team or None)
    found = list_offers(service, state.environ, wishes, which.catalogue, which.sort, which.limit)
    return {**found.as_dict(with_refused=which.refused), "extras": asdict(found.extras)}


@router.post("/offers/refresh")
@asks_places
def refresh(body: RefreshPrices, state: State, caller: Submitter) -> dict[str, Any]:
    """Ask for the prices of now, with the team's own login or the server's; how many there are, by region."""
    return {"prices": refresh_prices(state.service.of_team(caller.team or None), state.environ, body.region)}
