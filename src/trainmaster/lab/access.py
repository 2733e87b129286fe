"""The files by which a lab is used: access for providers, prices, the hosts' keys, ``hosts.yaml``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from trainmaster.lab.instance_types import TYPES, InstanceType
from trainmaster.lab.place import LabPlace
from trainmaster.lab.settings import KEY_NAME, USER, LabSettings
from trainmaster.spec.private_files import write_private

#: Of our own layout of catalogues (docs/offers.md), as far as the lab has something to say.
_COLUMNS: Final = (
    "provider", "region", "zone", "instance_type", "vcpus", "memory_gib", "gpu", "gpus", "gpu_memory_gib",
    "nic_gbps", "price_usd_per_hour", "spot", "billing_quantum_s", "billing_minimum_s", "as_of", "source",
)  # fmt: skip
PROVIDER: Final = "lab"


def write_for_owner(path: Path, text: str) -> None:
    """Write a file that only the directory's owner reads, whole or not at all.

    That is the home's owner, who may have become root for the lab only.
    """
    owner = path.parent.stat()
    write_private(path, text.encode(), (owner.st_uid, owner.st_gid))


def access(place: LabPlace, settings: LabSettings, endpoint: str, inside: str, group: str) -> dict[str, Any]:
    """What a provider needs to rent hosts here; ``inside``: where the API answers hosts."""
    return {
        "endpoint_url": endpoint,
        "inside_endpoint_url": inside,
        "region": settings.region,
        "zones": list(settings.zones),
        "access_key_id": settings.access_key_id,
        "secret_access_key": settings.secret_access_key,
        "image_id": settings.image_id,
        "key_name": KEY_NAME,
        "security_group_id": group,
        "private_key": str(place.private_key),
        "user": USER,
        "known_hosts": str(place.known_hosts),
        "prices": str(place.prices),
        "python": settings.python,
        "scale": settings.scale.as_dict(),
    }


def price_list(settings: LabSettings, today: date) -> str:
    """The price list as a catalogue: per type one offer on demand and one spot."""
    lines = [
        "# The types' published prices in us-east-1, as of `lab up`. "
        f"Hosts have {_scale(settings)} of the sizes."
    ]
    lines.append(",".join(_COLUMNS))
    for kind in TYPES.values():
        for spot in (False, True):
            values = _row(kind, settings.region, spot, today)
            lines.append(",".join(str(values.get(name, "")) for name in _COLUMNS))
    return "\n".join(lines) + "\n"


def _scale(settings: LabSettings) -> str:
    scale = settings.scale
    if scale.cpu == scale.memory == scale.network:
        return f"{scale.cpu:g}"
    return f"{scale.cpu:g} (CPU) {scale.memory:g} (memory) {scale.network:g} (network)"


def _row(kind: InstanceType, region: str, spot: bool, today: date) -> Mapping[str, object]:
    row: dict[str, object] = {
        "provider": PROVIDER,
        "region": region,
        "instance_type": kind.name,
        "vcpus": kind.vcpus,
        "memory_gib": f"{kind.memory_gib:g}",
        "nic_gbps": f"{kind.nic_gbps:g}",
        "price_usd_per_hour": kind.spot_price_usd_per_hour if spot else kind.price_usd_per_hour,
        "spot": "true" if spot else "",
        "billing_quantum_s": 1,
        "billing_minimum_s": 60,
        "as_of": today.isoformat(),
        "source": "lab",
    }
    if kind.gpu:
        row |= {"gpu": kind.gpu, "gpus": kind.gpus, "gpu_memory_gib": f"{kind.gpu_memory_gib:g}"}
    return row


def known_hosts(hosts: Iterable[tuple[tuple[str, ...], str]]) -> str:
    r"""Addresses and key of each host, as ssh reads them.

    >>> known_hosts([(("1.2.3.4", ""), "ssh-ed25519 AAAA")])
    '1.2.3.4 ssh-ed25519 AAAA\n'
    """
    return "".join(f"{','.join(a for a in addresses if a)} {key}\n" for addresses, key in hosts)


def hosts_yaml(place: LabPlace, status: Mapping[str, Any], cpus: Mapping[str, int], python: str) -> str:
    """The running hosts that the lab's own key opens, as the inventory of the provider ``hosts``.

    Those that somebody else has rented (the provider ``lab``, say) are not lent to yet another one.

    Args:
        place: of the lab.
        status: as `Control` gives it.
        cpus: instance type -> CPUs that a host of it sees, which is its slots.
        python: that the hosts have.
    """
    lines = ["# Hosts of the lab, written by `trainmaster lab up --hosts`.", "hosts:"]
    for host in status["hosts"]:
        condition = status["conditions"][host["id"]]
        if host["state"] != "running" or condition.get("key_name") != KEY_NAME:
            continue
        entry = {
            "name": host["id"],
            "address": host["address"],
            "private_address": condition["private_address"],
            "user": USER,
            "key": str(place.private_key),
            "host_key": condition["host_key"],
            "python": python,
            "slots": cpus[host["type"]],
            "gpus": 0,
            "labels": {"type": host["type"], "zone": condition["zone"]},
        }
        lines.append(f"  - {json.dumps(entry)}")
    return "\n".join(lines if len(lines) > 2 else [lines[0], "hosts: []"]) + "\n"
