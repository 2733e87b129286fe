"""The page of what can be rented."""

from __future__ import annotations

import datetime
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response

from trainmaster.api.rest.state import Reader, State, asks_places
from trainmaster.service import OfferFilter
from trainmaster.service.offer_list import list_offers
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.units import counted
from trainmaster.web.rendering import page

#: A phone shows each as three lines.
_ROWS: Final = 25
router = APIRouter(include_in_schema=False)
_SORTS: Final = {"price": "price", "price-per-cpu": "price per CPU", "price-per-gpu": "price per GPU"}
_SORTS_MORE: Final = {"cpus": "CPUs", "memory": "memory", "gpus": "GPUs", "region": "region"}


def old(as_of: datetime.date, today: datetime.date) -> str:
    """How old a price is that is older than a year; else empty.

    >>> day = datetime.date(2026, 11, 26)
    >>> old(datetime.date(2020, 6, 30), day), old(datetime.date(2025, 3, 2), day), old(day, day)
    ('6 years old', '1 year old', '')
    """
    years = (today - as_of).days // 365
    return f"{counted(years, 'year')} old" if years else ""


@router.get("/offers")
@asks_places
def offers(
    request: Request,
    state: State,
    caller: Reader,
    provider: str = "",
    region: str = "",
    instance: str = "",
    gpu: str = "",
    cpus: str = "",
    memory_gb: str = "",
    max_price: str = "",
    spot: str = "",
    sort: str = "price",
    number: int = 1,
) -> Response:
    """Machines with prices and the days on which they held, filtered, a page at a time."""
    wanted = {
        "provider": provider, "region": region, "instance": instance, "gpu": gpu, "cpus": cpus,
        "memory_gb": memory_gb, "max_price": max_price, "spot": spot, "sort": sort,
    }  # fmt: skip
    found, problem = None, ""
    try:
        wishes = OfferFilter(
            gpu=gpu or None,
            cpus=float(cpus) if cpus else None,
            memory_bytes=int(float(memory_gb) * 2**30) if memory_gb else None,
            max_price_usd_per_hour=float(max_price) if max_price else None,
            region=region or None,
            provider=provider or None,
            instances=(instance,) if instance else (),
            spot={"yes": True, "no": False}.get(spot),
        )
        found = list_offers(
            state.service.of_team(caller.team or None),
            state.environ,
            wishes,
            sort=sort,
            limit=number * _ROWS,
            old_last=True,
        )
    except (ValueError, OverflowError):
        problem = "CPUs, memory and price are numbers."
    except TrainmasterError as error:
        problem = str(error)
    is_more = found is not None and found.total > number * _ROWS
    chosen = {key: value for key, value in wanted.items() if value}
    return page(
        request,
        "offers.html",
        422 if problem else 200,
        found=found,
        old=old,
        today=datetime.datetime.now(datetime.UTC).date(),
        offers=() if found is None else found.offers[(number - 1) * _ROWS :],
        more=urlencode({**chosen, "number": number + 1}) if is_more else "",
        wanted=wanted,
        sorts=_SORTS | _SORTS_MORE,
        problem=problem,
    )
