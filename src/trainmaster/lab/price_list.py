"""The lab's part of AWS's price list: GetProducts of EC2's instances, as Amazon's own list has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from trainmaster.lab.instance_types import TYPES, InstanceType
from trainmaster.lab.market import ApiRefusal
from trainmaster.lab.settings import LabSettings

#: How requests for it are signed, and how they say what they ask for.
SERVICE: Final = "pricing"
TARGET: Final = "AWSPriceListService."
_PAGE: Final = 100
#: Machines on hardware of one's own are about so much dearer; the list has both.
_DEDICATED: Final = 1.06


def answer(settings: LabSettings, action: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the price list answers.

    Args:
        settings: of the lab.
        action: ``GetProducts``.
        asked: its parameters.

    Raises:
        ApiRefusal: as Amazon refuses it.
    """
    if action != "GetProducts":
        raise ApiRefusal("UnknownOperationException", f"The lab's price list has no {action}.")
    if asked.get("ServiceCode") != "AmazonEC2":
        raise ApiRefusal("NotFoundException", f"Invalid ServiceCode: {asked.get('ServiceCode')}")
    most = asked.get("MaxResults", _PAGE)
    if not isinstance(most, int) or not 1 <= most <= _PAGE:
        raise ApiRefusal("InvalidParameterException", f"MaxResults must be 1 to {_PAGE}")
    start = asked.get("NextToken") or "0"
    if not str(start).isdecimal():
        raise ApiRefusal("InvalidNextTokenException", "Invalid NextToken")
    found = [each for each in _products(settings) if _is_wanted(each, asked.get("Filters") or [])]
    end = int(start) + most
    page: dict[str, Any] = {
        "FormatVersion": "aws_v1",
        "PriceList": [json.dumps(each, separators=(",", ":")) for each in found[int(start) : end]],
    }
    return page if end >= len(found) else {**page, "NextToken": str(end)}


def _is_wanted(product: Mapping[str, Any], filters: list[Mapping[str, str]]) -> bool:
    attributes = {**product["product"]["attributes"], "productFamily": product["product"]["productFamily"]}
    for wish in filters:
        if wish.get("Type") not in ("TERM_MATCH", "EQUALS"):
            raise ApiRefusal(
                "InvalidParameterException", f"The lab knows no filters of type {wish.get('Type')}"
            )
        if str(attributes.get(wish.get("Field", ""), "")).lower() != str(wish.get("Value")).lower():
            return False
    return True


def _products(settings: LabSettings) -> Iterator[dict[str, Any]]:
    """Each type on demand; on hardware of one's own; and in capacity reserved before, at no price."""
    for kind in TYPES.values():
        price = kind.price_usd_per_hour
        yield _product(settings, kind, price, "Shared", "Used")
        yield _product(settings, kind, round(price * _DEDICATED, 4), "Dedicated", "Used")
        yield _product(settings, kind, 0.0, "Shared", "AllocatedCapacityReservation")


def _product(
    settings: LabSettings, kind: InstanceType, usd: float, tenancy: str, status: str
) -> dict[str, Any]:
    sku = f"LAB{kind.name}{tenancy}{status}".upper().replace(".", "")[:40]
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    attributes = {
        "servicecode": "AmazonEC2",
        "instanceType": kind.name,
        "vcpu": str(kind.vcpus),
        "memory": f"{kind.memory_gib:g} GiB",
        "regionCode": settings.region,
        "locationType": "AWS Region",
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "licenseModel": "No License required",
        "tenancy": tenancy,
        "capacitystatus": status,
        "marketoption": "OnDemand",
        **({"gpu": str(kind.gpus)} if kind.gpu else {}),
    }
    now = datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")
    dimension = {
        "rateCode": rate,
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "description": f"${usd:g} per {kind.name} hour of the lab",
        "appliesTo": [],
        "pricePerUnit": {"USD": f"{usd:.10f}"},
    }
    return {
        "serviceCode": "AmazonEC2",
        "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku},
        "terms": {
            "OnDemand": {
                term: {
                    "sku": sku,
                    "offerTermCode": "JRTCKXETXF",
                    "effectiveDate": now,
                    "priceDimensions": {rate: dimension},
                    "termAttributes": {},
                }
            }
        },
        "version": now,
        "publicationDate": now,
    }
