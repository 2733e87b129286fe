"""What AWS's price list and its spot price history say, as offers."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from trainmaster.providers import load_catalogue
from trainmaster.providers.aws.prices import (
    list_request,
    on_demand_prices,
    read_prices,
    refreshed,
    spot_prices,
    spot_requests,
)

TODAY = date(2026, 11, 21)
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
REGION = "eu-central-1"


def product(name, usd, unit="Hrs", **attributes):
    plain = {
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    found = {**plain, "regionCode": REGION, "instanceType": name, **attributes}
    rate = {"unit": unit, "pricePerUnit": {"USD": usd}}
    return json.dumps(
        {"product": {"attributes": found}, "terms": {"OnDemand": {"t": {"priceDimensions": {"r": rate}}}}}
    )


def history(name, zone, usd, hours_ago=0.0):
    at = NOW - timedelta(hours=hours_ago)
    return {"InstanceType": name, "AvailabilityZone": zone, "SpotPrice": usd, "Timestamp": at}


def test_only_the_price_of_a_plain_linux_machine_on_demand_counts():
    pages = [
        {
            "PriceList": [
                product("m5.large", "0.1070000000"),
                product("m5.large", "0.1150000000", tenancy="Dedicated"),
            ]
        },
        {
            "PriceList": [
                product("m5.xlarge", "0.2140000000"),
                product("m5.xlarge", "0.0000000000", capacitystatus="AllocatedCapacityReservation"),
                product("c5.large", "0.1920000000", operatingSystem="Windows"),
                product("c5.xlarge", "0.0000000000"),
                product("t3.large", "3", unit="Quantity"),
                product("m4.large", "0.1", regionCode="us-east-1"),
                product("m5.2xlarge", "0.3", marketoption="CapacityBlock"),
            ]
        },
        {},
    ]
    assert on_demand_prices(pages, REGION) == {"m5.large": 0.107, "m5.xlarge": 0.214}


def test_a_type_at_two_prices_has_none():
    pages = [
        {"PriceList": [product("m5.large", "0.1"), product("m5.large", "0.2"), product("c5.large", "0.1")]}
    ]
    assert on_demand_prices(pages, REGION) == {"c5.large": 0.1}


def test_the_newest_spot_price_of_each_zone_counts():
    rows = [
        history("m5.large", "eu-central-1a", "0.04", 5),
        history("m5.large", "eu-central-1a", "0.03", 1),
        history("m5.large", "eu-central-1b", "0.05", 3),
        history("m5.large", "eu-central-1c", "0", 3),
    ]
    found = spot_prices([{"SpotPriceHistory": rows[:2]}, {"SpotPriceHistory": rows[2:]}])
    assert found == {("m5.large", "eu-central-1a"): 0.03, ("m5.large", "eu-central-1b"): 0.05}


class Client:
    """Answers as AWS does, page by page."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def pages(self, request):
        self.asked.append(request)
        yield from self.answers[request.operation]


def test_a_region_is_read_with_the_facts_that_are_known():
    shipped = load_catalogue(None, today=TODAY)
    client = Client(
        {
            "GetProducts": [{"PriceList": [product("m5.large", "0.107"), product("x99.large", "9")]}],
            "DescribeSpotPriceHistory": [
                {"SpotPriceHistory": [history("m5.large", "eu-central-1a", "0.03")]}
            ],
        }
    )
    found = read_prices(client, REGION, shipped.where(provider="aws"), TODAY)
    assert [(o.instance_type, o.region, o.zone, o.spot, o.price_usd_per_hour) for o in found][:1] == [
        ("m5.large", REGION, "", False, 0.107)
    ]
    assert {(o.zone, o.spot, o.memory_bytes, o.as_of) for o in found[1:]} == {
        ("eu-central-1a", True, 8 * 2**30, TODAY)
    }
    listed, *spot = client.asked
    assert (listed.service, listed.region) == ("pricing", "us-east-1")
    assert all(request.region == REGION for request in spot)
    assert all(len(request.parameters["InstanceTypes"]) <= 100 for request in spot)


def test_requests_are_as_botocore_knows_them():
    botocore = pytest.importorskip("botocore.session")
    session = botocore.Session()
    for request in (list_request(REGION), *spot_requests(REGION, ["m5.large"])):
        model = session.get_service_model(request.service).operation_model(request.operation)
        assert set(request.parameters) <= set(model.input_shape.members)


def test_newer_prices_replace_all_of_their_region_and_no_others():
    shipped = list(load_catalogue(None, today=TODAY))
    old = next(o for o in shipped if (o.instance_type, o.region) == ("m5.large", REGION))
    newer = replace(old, price_usd_per_hour=0.09, as_of=TODAY)
    spot = replace(newer, spot=True, zone=f"{REGION}a", price_usd_per_hour=0.03)
    found = refreshed(shipped, [newer, spot])
    assert [o for o in found if (o.provider, o.region) == ("aws", REGION)] == [newer, spot]
    assert [o for o in found if o.region != REGION] == [o for o in shipped if o.region != REGION]
    later = replace(old, as_of=TODAY + timedelta(days=9))
    assert refreshed([later], [newer]) == [later], "a later Trainmaster ships newer ones"
