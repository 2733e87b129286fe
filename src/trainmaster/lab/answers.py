"""What the API answers of its own accord: types, spot prices, spot requests, quotas."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from trainmaster.lab.cloud import NOTICE_S, Cloud
from trainmaster.lab.instance_types import TYPES, InstanceType
from trainmaster.lab.settings import LabSettings

#: Quotas of vCPUs of spot requests, of all families; any other code of EC2 counts machines on demand.
_SPOT_QUOTAS: Final = frozenset(
    (
        "L-34B43A08",
        "L-3819A6DF",
        "L-7212CCBC",
        "L-85EED4F7",
        "L-88CF9481",
        "L-B5D1601B",
        "L-C4BD4855",
        "L-E3A00192",
    )
)


def description(kind: InstanceType, known: Mapping[str, Any]) -> dict[str, Any]:
    """What DescribeInstanceTypes says of a type; Amazon, and so moto, has forgotten the oldest ones."""
    found = copy.deepcopy(dict(known.get(kind.name) or known["m5.xlarge"]))
    found["InstanceType"] = kind.name
    found["MemoryInfo"] = {"SizeInMiB": int(kind.memory_gib * 1024)}
    found["VCpuInfo"] = {**found.get("VCpuInfo", {}), "DefaultVCpus": kind.vcpus}
    found.setdefault("NetworkInfo", {})["NetworkPerformance"] = f"{kind.nic_gbps:g} Gigabit"
    found.pop("GpuInfo", None)
    if kind.gpu:
        memory = int(kind.gpu_memory_gib * 1024)
        found["GpuInfo"] = {
            "Gpus": [
                {
                    "Name": kind.gpu,
                    "Manufacturer": "NVIDIA",
                    "Count": kind.gpus,
                    "MemoryInfo": {"SizeInMiB": memory},
                }
            ],
            "TotalGpuMemoryInMiB": memory * kind.gpus,
        }
    return found


def spot_prices(
    settings: LabSettings, kinds: list[str], filters: dict[str, Any], response: Any
) -> list[dict[str, Any]]:
    """The history of one moment: prices stand still in the lab.

    Args:
        settings: of the lab.
        kinds: instance types that are asked for; none for all.
        filters: of the call.
        response: the API's own object, for the rest of the call.
    """
    wanted = set(kinds) | set(filters.get("instance-type", []))
    zones = set(filters.get("availability-zone", []))
    if one := response._get_param("AvailabilityZone"):
        zones.add(one)
    products = response._get_param("ProductDescriptions", []) or filters.get("product-description", [])
    if products and not any("Linux" in product for product in products):
        return []
    return [
        {
            "InstanceType": name,
            "ProductDescription": "Linux/UNIX",
            "SpotPrice": f"{kind.spot_price_usd_per_hour:.6f}",
            "AvailabilityZone": zone,
            "Timestamp": datetime.now(UTC),
        }
        for name, kind in TYPES.items()
        for zone in settings.zones
        if (not wanted or name in wanted) and (not zones or zone in zones)
    ]


def spot_requests(cloud: Cloud, known: set[str]) -> list[dict[str, Any]]:
    """The request behind each spot machine that was rented with RunInstances, which moto leaves out.

    Args:
        cloud: of the lab.
        known: instances whose requests moto has.
    """
    found = []
    for instance, _ in cloud.all():
        if instance.lifecycle != "spot" or instance.id in known:
            continue
        state, code, when = "active", "fulfilled", instance.launch_time
        notice = cloud.notice(instance.id)
        if notice is not None:
            # Amazon's notice is this long; one that is shorter is as old as it would be there.
            code = "marked-for-termination"
            when = datetime.fromtimestamp(notice[0], UTC) - timedelta(seconds=NOTICE_S)
        elif instance._state.name not in ("pending", "running"):
            taken = instance.state_reason.code == "Server.SpotInstanceTermination"
            state, code = "closed", f"instance-terminated-{'no-capacity' if taken else 'by-user'}"
        found.append(
            {
                "SpotInstanceRequestId": f"sir-{instance.id[2:10]}",
                "InstanceId": instance.id,
                "State": state,
                "Status": {"Code": code, "Message": "", "UpdateTime": when},
                "Type": "one-time",
                "InstanceInterruptionBehavior": "terminate",
                "CreateTime": instance.launch_time,
                "LaunchedAvailabilityZone": instance._placement.zone,
                "ProductDescription": "Linux/UNIX",
                # Without one, Amazon takes the price on demand.
                "SpotPrice": getattr(instance, "lab_max_price", "")
                or f"{TYPES[instance.instance_type].price_usd_per_hour:.6f}",
            }
        )
    return found


def chosen_requests(
    requests: list[dict[str, Any]], ids: list[str], filters: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """Those that a call asks for."""
    keys = {
        "instance-id": "InstanceId",
        "spot-instance-request-id": "SpotInstanceRequestId",
        "state": "State",
    }
    wanted = [(keys[name], values) for name, values in filters.items() if name in keys]
    if codes := filters.get("status-code"):
        requests = [request for request in requests if request["Status"]["Code"] in codes]
    return [
        request
        for request in requests
        if (not ids or request["SpotInstanceRequestId"] in ids)
        and all(request[key] in values for key, values in wanted)
    ]


def quota(cloud: Cloud, code: str) -> dict[str, Any]:
    """What GetServiceQuota says of EC2."""
    which = "spot" if code in _SPOT_QUOTAS else "on-demand"
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaCode": code,
        "QuotaName": f"Running {which} instances of the lab",
        "Value": float(cloud.market.quotas[which]),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
