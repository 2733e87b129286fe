"""Prices of EC2 as AWS tells them to the user's own account: on demand by region, spot by zone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, Final

from trainmaster.providers.aws.client import AwsClient
from trainmaster.providers.aws.requests import AwsRequest
from trainmaster.providers.offer import Offer

#: What these offers name as their source.
ON_DEMAND_SOURCE: Final = "AWS Price List, GetProducts"
SPOT_SOURCE: Final = "EC2, DescribeSpotPriceHistory"
#: The price list is asked there, of whichever region prices are wanted.
_LIST_REGION: Final = "us-east-1"
_PAGE: Final = 100
#: What of a type's many prices is that of a plain Linux machine on demand.
_PLAIN: Final = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
}
_LINUX: Final = "Linux/UNIX"


def read_prices(client: AwsClient, region: str, known: Iterable[Offer], today: date) -> list[Offer]:
    """The prices of a region now, of all types whose facts are known.

    Args:
        client: with the user's credentials.
        region: whose.
        known: offers that tell the facts of types, wherever they are.
        today: the day.

    Raises:
        UsageError: no credentials, no permission, no such region.
        ProviderError: AWS does not answer.
    """
    facts = {offer.instance_type: offer for offer in known}
    usd = on_demand_prices(client.pages(list_request(region)), region)
    spot = spot_prices(page for request in spot_requests(region, facts) for page in client.pages(request))
    named = [(name, "", price) for name, price in usd.items()]
    named += [(name, zone, price) for (name, zone), price in spot.items()]
    return [
        replace(
            facts[name],
            region=region,
            zone=zone,
            price_usd_per_hour=price,
            spot=bool(zone),
            as_of=today,
            source=SPOT_SOURCE if zone else ON_DEMAND_SOURCE,
        )
        for name, zone, price in named
        if name in facts
    ]


def list_request(region: str) -> AwsRequest:
    """Asks for the prices on demand of all types."""
    wanted = {"regionCode": region, **_PLAIN}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    parameters = {"ServiceCode": "AmazonEC2", "Filters": filters, "MaxResults": _PAGE}
    return AwsRequest("GetProducts", parameters, _LIST_REGION, "pricing")


def spot_requests(region: str, types: Iterable[str]) -> Iterator[AwsRequest]:
    """Ask for the spot prices of this moment."""
    names = sorted(types)
    for first in range(0, len(names), _PAGE):
        parameters = {
            "InstanceTypes": names[first : first + _PAGE],
            "ProductDescriptions": [_LINUX],
            "StartTime": datetime.now(UTC),
        }
        yield AwsRequest("DescribeSpotPriceHistory", parameters, region)


def on_demand_prices(pages: Iterable[Mapping[str, Any]], region: str) -> dict[str, float]:
    """Dollars per hour by type; a type that is listed at several prices is left out.

    Args:
        pages: answers to `list_request`.
        region: as asked.
    """
    found: dict[str, set[float]] = {}
    for page in pages:
        for text in page.get("PriceList") or ():
            product = json.loads(text)
            attributes = product.get("product", {}).get("attributes", {})
            wanted = {"regionCode": region, **_PLAIN}
            if any(attributes.get(name, value) != value for name, value in wanted.items()):
                continue
            if attributes.get("marketoption", "OnDemand") != "OnDemand":
                continue
            name = str(attributes.get("instanceType", ""))
            found.setdefault(name, set()).update(_hourly(product))
    return {name: prices.pop() for name, prices in found.items() if name and len(prices) == 1}


def spot_prices(pages: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Dollars per hour by type and zone; of several the newest.

    Args:
        pages: answers to `spot_requests`.
    """
    newest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for page in pages:
        for row in page.get("SpotPriceHistory") or ():
            key = str(row["InstanceType"]), str(row["AvailabilityZone"])
            price = _number(row["SpotPrice"])
            if price and (key not in newest or row["Timestamp"] > newest[key][0]):
                newest[key] = row["Timestamp"], price
    return {key: price for key, (_, price) in newest.items()}


def refreshed(shipped: Sequence[Offer], newer: Sequence[Offer]) -> list[Offer]:
    """Offers with newer ones in place of all of the same provider and region: what is not listed now is gone.

    Args:
        shipped: of any provider.
        newer: that were asked for; of a region of which later ones ship, they do not count.
    """
    ships, asked = _days(shipped), _days(newer)
    is_newer = {place for place, day in asked.items() if day >= ships.get(place, date.min)}
    kept = [offer for offer in shipped if (offer.provider, offer.region) not in is_newer]
    return [*kept, *(offer for offer in newer if (offer.provider, offer.region) in is_newer)]


def _days(offers: Sequence[Offer]) -> dict[tuple[str, str], date]:
    """The latest day of each provider and region."""
    found: dict[tuple[str, str], date] = {}
    for offer in offers:
        place = offer.provider, offer.region
        found[place] = max(offer.as_of, found.get(place, date.min))
    return found


def _hourly(product: Mapping[str, Any]) -> Iterator[float]:
    """Prices on demand; those of 0 are of capacity that was reserved before."""
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for rate in term.get("priceDimensions", {}).values():
            price = _number(rate.get("pricePerUnit", {}).get("USD"))
            if rate.get("unit") == "Hrs" and price:
                yield price


def _number(text: object) -> float:
    """A price as a number; 0 if it is none.

    >>> _number("0.0960000000"), _number(None), _number("nan"), _number("-1")
    (0.096, 0.0, 0.0, 0.0)
    """
    try:
        price = float(str(text))
    except ValueError:
        return 0.0
    return price if 0 < price < math.inf else 0.0
