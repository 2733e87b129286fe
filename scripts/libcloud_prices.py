"""Apache Libcloud's ``pricing.json``: EC2 on demand, Azure on demand, Google by its parts.

`make_catalogue.py` makes of it what ships with the package. The file has prices only. What EC2's types are is
read from the ``ec2_instance_types.py`` of the same Libcloud if it lies where Libcloud has it, else from the
builtin catalogue. Prices that are no prices are refused: see `judge_prices`.

Machine types of Azure and Google, which their price lists do not describe, are checked by hand.

Azure's sizes are from https://learn.microsoft.com/azure/virtual-machines/sizes; what is not here is unknown.
Google's are its predefined types (https://cloud.google.com/compute/docs/machine-resource): a number of cores
and of GiB, whose prices add up to theirs. Its GPUs are not in the list that we read, so no type has any.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.csv_rows import GIB, CsvRows
from trainmaster.providers.gathering import LoadedFile, gather
from trainmaster.providers.loading import _DATA
from trainmaster.providers.offer import Offer
from trainmaster.providers.own_csv import read_own_csv
from trainmaster.spec.errors import UsageError

# What AWS publishes about EC2's instance types and no price list has, checked by hand. From
# https://docs.aws.amazon.com/ec2/latest/instancetypes/ (network, accelerators, as of 2025) and
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/burstable-credits-baseline-concepts.html (credits).
# What is not here is unknown, not zero.

#: Model and memory (GiB) of one GPU, by family.
GPUS: Final = {
    "p2": ("K80", 12),
    "p3": ("V100", 16),
    "p3dn": ("V100-32GB", 32),
    "p4d": ("A100", 40),
    "p4de": ("A100-80GB", 80),
    "p5": ("H100", 80),
    "p5e": ("H200", 141),
    "p5en": ("H200", 141),
    "g3": ("M60", 8),
    "g3s": ("M60", 8),
    "g4dn": ("T4", 16),
    "g5": ("A10G", 24),
    "g5g": ("T4g", 16),
    "g6": ("L4", 24),
    "gr6": ("L4", 24),
    "g6e": ("L40S", 48),
}

#: Families with accelerators that are no GPUs, which the price list does not count.
OTHER_ACCELERATORS: Final = ("dl", "f1", "f2", "inf", "trn", "vt")

_M5 = {"large": 0.75, "xlarge": 1.25, "2xlarge": 2.5, "4xlarge": 5.0}
_M6I = {"large": 0.781, "xlarge": 1.562, "2xlarge": 3.125, "4xlarge": 6.25}
_M6G = {"medium": 0.5, **_M5}
_M7G = {"medium": 0.52, "large": 0.937, "xlarge": 1.876, "2xlarge": 3.75, "4xlarge": 7.5}
_T3 = {
    "nano": 0.032,
    "micro": 0.064,
    "small": 0.128,
    "medium": 0.256,
    "large": 0.512,
    "xlarge": 1.024,
    "2xlarge": 2.048,
}
#: Gbit/s that a card sustains where the price list only says "up to", by family and size.
NIC_BASELINES: Final = {
    "t3": _T3,
    "t3a": _T3,
    "t4g": _T3,
    "m4": {"large": 0.45, "xlarge": 0.75, "2xlarge": 1.0, "4xlarge": 2.0},
    "m5": _M5,
    "c5": _M5,
    "r5": _M5,
    "m6i": _M6I,
    "c6i": _M6I,
    "r6i": _M6I,
    "m7i": _M6I,
    "c7i": _M6I,
    "m6g": _M6G,
    "c6g": _M6G,
    "m7g": _M7G,
    "p2": {"xlarge": 1.25},
    "p3": {"2xlarge": 2.5},
    "g3": {"4xlarge": 5.0},
    "g4dn": {"xlarge": 5.0, "2xlarge": 10.0, "4xlarge": 20.0},
    "g5": {"xlarge": 2.5, "2xlarge": 5.0, "4xlarge": 10.0},
    "g6": {"xlarge": 2.5, "2xlarge": 5.0, "4xlarge": 10.0},
}

#: What AWS starts machines of these families with unless told otherwise.
CPU_CREDITS: Final = {"t2": "standard", "t3": "unlimited", "t3a": "unlimited", "t4g": "unlimited"}

_T3_SHARES = {
    "nano": 0.05,
    "micro": 0.1,
    "small": 0.2,
    "medium": 0.2,
    "large": 0.3,
    "xlarge": 0.4,
    "2xlarge": 0.4,
}
#: Share of every vCPU that the credits sustain. For ``t2.2xlarge`` AWS prints 17 %; its 81.6 credits an hour
#: are exactly that.
CPU_BASELINE_SHARES: Final = {
    "t2": {
        "nano": 0.05,
        "micro": 0.1,
        "small": 0.2,
        "medium": 0.2,
        "large": 0.3,
        "xlarge": 0.225,
        "2xlarge": 0.17,
    },
    "t3": _T3_SHARES,
    "t3a": _T3_SHARES,
    "t4g": _T3_SHARES,
}


@dataclass(frozen=True, slots=True)
class MachineType:
    """What a cloud rents by one name. Attributes as those of `Offer`."""

    instance_type: str
    vcpus: float
    memory_bytes: int
    accelerator: str = ""
    accelerators: float = 0.0
    accelerator_memory_bytes: int | None = None
    nic_gbps: float | None = None
    nic_burst_gbps: float | None = None
    cpu_credits: str = ""
    arch: str = "x86_64"
    cpu_baseline_share: float | None = None


def _azure(
    name: str,
    vcpus: int,
    memory_gib: int,
    gpu: str = "",
    gpus: int = 0,
    gpu_memory_gib: int | None = None,
    nic_gbps: float | None = None,
) -> MachineType:
    """A size; `nic_gbps` is the published expected bandwidth."""
    gpu_bytes = None if gpu_memory_gib is None else gpu_memory_gib * GIB
    return MachineType(name, float(vcpus), memory_gib * GIB, gpu, float(gpus), gpu_bytes, nic_gbps, nic_gbps)


#: Expected bandwidth of the Dsv3 and Esv3 sizes, Gbit/s by vCPUs.
_V3_GBPS = {2: 1.0, 4: 2.0, 8: 4.0, 16: 8.0, 32: 16.0, 48: 24.0, 64: 30.0}


def _azure_general() -> list[MachineType]:
    small = (2, 4, 8, 16, 32, 48)
    sizes = [_azure(f"Standard_D{n}s_v3", n, 4 * n, nic_gbps=_V3_GBPS[n]) for n in (*small, 64)]
    sizes += [_azure(f"Standard_D{n}s_v4", n, 4 * n) for n in (*small, 64)]
    sizes += [_azure(f"Standard_D{n}as_v4", n, 4 * n) for n in (*small, 64, 96)]
    sizes += [_azure(f"Standard_E{n}s_v3", n, 8 * n, nic_gbps=_V3_GBPS[n]) for n in small]
    sizes += [_azure(f"Standard_E{n}s_v4", n, 8 * n) for n in small]
    sizes += [_azure(f"Standard_F{n}s_v2", n, 2 * n) for n in (*small, 64, 72)]
    return sizes


def _azure_with_gpus() -> list[MachineType]:
    return [
        _azure("Standard_NC6s_v2", 6, 112, "P100", 1, 16),
        _azure("Standard_NC12s_v2", 12, 224, "P100", 2, 16),
        _azure("Standard_NC24s_v2", 24, 448, "P100", 4, 16),
        _azure("Standard_NC6s_v3", 6, 112, "V100", 1, 16),
        _azure("Standard_NC12s_v3", 12, 224, "V100", 2, 16),
        _azure("Standard_NC24s_v3", 24, 448, "V100", 4, 16),
        _azure("Standard_NC24rs_v3", 24, 448, "V100", 4, 16),
        _azure("Standard_NC4as_T4_v3", 4, 28, "T4", 1, 16),
        _azure("Standard_NC8as_T4_v3", 8, 56, "T4", 1, 16),
        _azure("Standard_NC16as_T4_v3", 16, 110, "T4", 1, 16),
        _azure("Standard_NC64as_T4_v3", 64, 440, "T4", 4, 16),
        _azure("Standard_ND6s", 6, 112, "P40", 1, 24),
        _azure("Standard_ND12s", 12, 224, "P40", 2, 24),
        _azure("Standard_ND24s", 24, 448, "P40", 4, 24),
        _azure("Standard_ND40rs_v2", 40, 672, "V100-32GB", 8, 32),
    ]


#: Azure's, by the name in Libcloud's price list: lower case, without underscores.
AZURE_SIZES: Final = {
    size.instance_type.replace("_", "").lower(): size for size in (*_azure_general(), *_azure_with_gpus())
}

_STANDARD_N2: Final = (2, 4, 8, 16, 32, 48, 64, 80)
#: Of Google: family (as in the list), kind, GiB per core, numbers of cores.
_GOOGLE_KINDS: Final = (
    ("n1", "standard", 3.75, (1, 2, 4, 8, 16, 32, 64, 96)),
    ("n1", "highmem", 6.5, (2, 4, 8, 16, 32, 64, 96)),
    ("n1", "highcpu", 0.9, (2, 4, 8, 16, 32, 64, 96)),
    ("n2", "standard", 4.0, _STANDARD_N2),
    ("n2", "highmem", 8.0, _STANDARD_N2),
    ("n2", "highcpu", 1.0, _STANDARD_N2),
    ("n2d", "standard", 4.0, (*_STANDARD_N2, 96, 128, 224)),
    ("e2", "standard", 4.0, (2, 4, 8, 16)),
    ("e2", "highmem", 8.0, (2, 4, 8, 16)),
    ("e2", "highcpu", 1.0, (2, 4, 8, 16)),
    ("c2", "standard", 4.0, (4, 8, 16, 30, 60)),
)

#: Of Google: highest egress bandwidth, Gbit/s: that of the first number of cores which is not smaller. None
#: is promised to be sustained.
_EGRESS: Final = {
    "n1": ((1, 2.0), (7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "n2d": ((7, 10.0), (15, 16.0), (1024, 32.0)),
    "e2": ((3, 4.0), (7, 8.0), (1024, 16.0)),
    "c2": ((7, 10.0), (15, 16.0), (1024, 32.0)),
}


def google_types() -> Iterator[MachineType]:
    """All of Google's."""
    for family, kind, gib_per_core, sizes in _GOOGLE_KINDS:
        for cores in sizes:
            egress = next(gbps for most, gbps in _EGRESS[family] if cores <= most)
            memory_bytes = round(round(cores * gib_per_core, 4) * GIB)
            yield MachineType(f"{family}-{kind}-{cores}", float(cores), memory_bytes, nic_burst_gbps=egress)


#: Published prices are rounded, c4.large by 0.5 %; dedicated machines cost at least 5 % more.
_TOLERANCE: Final = 0.02
_MOST_SURCHARGE: Final = 0.15
_SMALL: Final = {"nano": 0.25, "micro": 0.5, "small": 1.0, "medium": 2.0, "large": 4.0, "xlarge": 8.0}
_XLARGE = re.compile(r"([0-9]+)xlarge")

#: A verdict on each price: type, region, the price, and why it is refused ('' if it is not).
Verdict = tuple[str, str, float, str]


def normalization_factor(instance_type: str) -> float | None:
    """Amazon's factor of a size, where it follows from the name; None for bare metal.

    It does not for families with GPUs whose sizes have the same GPU (g4dn, g5, g6): pass what Amazon lists.

    >>> [normalization_factor(kind) for kind in ("m4.10xlarge", "t2.micro", "m5.metal")]
    [80.0, 0.5, None]
    """
    size = instance_type.rpartition(".")[2]
    if found := _XLARGE.fullmatch(size):
        return 8.0 * int(found[1])
    return _SMALL.get(size)


def judge_prices(
    prices: Mapping[str, Mapping[str, float]], factors: Mapping[str, float]
) -> Iterator[Verdict]:
    """Say of every price whether it is that of shared machines.

    Args:
        prices: by type and region.
        factors: normalization factors by type. Those of a family of which none is given follow from the
            names of its sizes.
    """
    families: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for kind, regions in prices.items():
        for region, price in regions.items():
            if not isinstance(price, int | float) or not price > 0:
                yield kind, region, 0.0, f"{price!r} is no price"
            else:
                families[kind.partition(".")[0], region].append((kind, float(price)))
    for (_, region), sizes in families.items():
        yield from _judge_family(region, sizes, factors)


def _judge_family(
    region: str, sizes: list[tuple[str, float]], factors: Mapping[str, float]
) -> Iterator[Verdict]:
    units: dict[str, float] = {}
    listed = any(
        kind in factors for kind, _ in sizes
    )  # then names do not count: they may be of another scale
    for kind, price in sizes:
        factor = factors.get(kind) if listed else normalization_factor(kind)
        if factor is None:
            yield kind, region, price, "no other size to check it with: perhaps that of dedicated hardware"
        else:
            units[kind] = price / factor
    lowest = min(units.values(), default=0.0)
    agreed = sum(unit <= lowest * (1 + _TOLERANCE) for unit in units.values()) > 1
    for kind, price in sizes:
        if kind not in units:
            continue
        excess = units[kind] / lowest - 1
        if not agreed:
            reason = "no other size of its family agrees with it: perhaps that of dedicated hardware"
        elif excess > _MOST_SURCHARGE:
            reason = f"{excess:.0%} more than other sizes of its family: it cannot be checked with them"
        elif excess > _TOLERANCE:
            reason = f"{excess:.0%} more than other sizes of its family: that of dedicated hardware"
        else:
            reason = ""
        yield kind, region, price, reason


#: The stamp in the file is that of EC2's prices. These tables have not changed in Libcloud's history since
#: the dates given; another content has another hash and gets the stamp.
_OLD_TABLES: Final = {
    "c1159523": date(2020, 6, 30),  # gce_instances
    "aab4703b": date(2020, 8, 30),  # azure_linux
}
_NETWORK = re.compile(r"(up to )?([0-9.]+) (gigabit|megabit)", re.IGNORECASE)


def libcloud_catalogue(path: Path) -> Catalogue:
    """Offers of the whole file that may be trusted.

    Raises:
        UsageError: it is not Libcloud's.
    """
    reading = read_libcloud_json(path, str(path))
    offers, refused = gather(reading, datetime.now(UTC).date())
    return Catalogue(reading.file, offers, refused, tuple(reading.warnings), by_hand=True)


def read_libcloud_json(path: Path, file: str) -> LoadedFile:
    """Read the whole file.

    Raises:
        UsageError: it is not Libcloud's.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        tables = dict(content["compute"])
        updated = datetime.fromtimestamp(int(content["updated"]), UTC).date()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}", "Name a file.") from None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise UsageError(
            f"{file}: is no price list of Apache Libcloud",
            "It has a file data/pricing.json; or name a CSV file.",
        ) from None
    reading = LoadedFile(file)
    _read_ec2(reading, _table(tables, "ec2_linux"), _ec2_types(path), updated)
    azure = _table(tables, "azure_linux")
    _read_azure(reading, azure, _date_of(azure, updated))
    google = _table(tables, "gce_instances")
    _read_gce(reading, google, _date_of(google, updated))
    if not reading.rows:
        raise UsageError(
            f"{file}: has no price of EC2, Azure or Google that could be used", "Name another file."
        )
    return reading


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name)
    return (
        {key: row for key, row in table.items() if isinstance(row, dict)} if isinstance(table, dict) else {}
    )


def _date_of(table: Mapping[str, Any], stamp: date) -> date:
    text = json.dumps(table, sort_keys=True).encode()
    fingerprint = hashlib.md5(text, usedforsecurity=False).hexdigest()[:8]
    return min(stamp, _OLD_TABLES.get(fingerprint, stamp))


def _add(
    reading: LoadedFile,
    place: tuple[str, str],
    machine: MachineType,
    price: object,
    as_of: date,
    source: str,
    *,
    spot: bool = False,
) -> None:
    """Take one price up, or refuse it; ``place`` is the provider and its region."""
    provider, region = place
    subject = f"{provider} {region} {machine.instance_type}"
    if not isinstance(price, int | float) or not price > 0:
        reading.refuse(0, subject, f"{price!r} is no price")
        return
    billing = capabilities_of(provider).billing
    try:
        offer = Offer(
            provider=provider,
            region=region,
            zone="",
            price_usd_per_hour=float(price),
            spot=spot,
            billing_quantum_s=billing.quantum_s,
            billing_minimum_s=billing.minimum_s,
            currency="USD",
            as_of=as_of,
            source=source,
            **{name: getattr(machine, name) for name in MachineType.__slots__},
        )
    except ValueError as error:
        reading.refuse(0, subject, str(error))
    else:
        reading.rows.append((offer, 0))


def _read_ec2(
    reading: LoadedFile,
    prices: Mapping[str, Any],
    types: Mapping[str, tuple[MachineType, float | None]],
    as_of: date,
) -> None:
    factors = {name: factor for name, (_, factor) in types.items() if factor}
    for name, region, price, reason in judge_prices(prices, factors):
        machine, _ = types.get(name, (None, None))
        if not reason and machine is None:
            reason = "its vCPUs and memory are unknown"
        elif not reason and name.startswith(OTHER_ACCELERATORS):
            reason = "its accelerators are unknown"
        if reason or machine is None:
            reading.refuse(0, f"aws {region} {name}", reason)
        else:
            _add(reading, ("aws", region), machine, price, as_of, "libcloud ec2_linux")


def _ec2_types(path: Path) -> dict[str, tuple[MachineType, float | None]]:
    """Each type with its normalization factor, if that is known."""
    constants = path.resolve().parent.parent / "compute/constants/ec2_instance_types.py"
    try:
        tree = ast.parse(constants.read_text(encoding="utf-8"))
        listed = ast.literal_eval(next(node.value for node in tree.body if isinstance(node, ast.Assign)))
    except (OSError, SyntaxError, ValueError, StopIteration):
        return _builtin_types()
    types = {}
    for name, row in listed.items():
        try:
            types[name] = _ec2_type(name, row)
        except (KeyError, ValueError, TypeError):
            continue  # refused by name later on: unknown
    return types


def _ec2_type(name: str, row: Mapping[str, Any]) -> tuple[MachineType, float | None]:
    """One entry of Libcloud's table.

    Raises:
        KeyError, ValueError, TypeError: its vCPUs or memory are missing, or its GPUs are of an unknown model.
    """
    family, _, size = name.partition(".")
    extra = row["extra"]
    gpus = float(extra.get("gpu", 0))
    model, gpu_memory_gib = GPUS[family] if gpus else ("", None)
    nic_gbps, burst_gbps = None, None
    if found := _NETWORK.fullmatch(extra.get("networkPerformance", "").strip()):
        burst_gbps = float(found[2]) / (1000 if found[3].lower() == "megabit" else 1)
        nic_gbps = None if found[1] else burst_gbps
    if nic_gbps is None:
        nic_gbps = NIC_BASELINES.get(family, {}).get(size)
    arm = "Graviton" in extra.get("physicalProcessor", "")
    factor = extra.get("normalizationSizeFactor", "NA")
    machine = MachineType(
        name,
        float(extra["vcpu"]),
        int(row["ram"]) * (1 << 20),
        model,
        gpus,
        None if gpu_memory_gib is None else gpu_memory_gib * GIB,
        nic_gbps,
        burst_gbps,
        CPU_CREDITS.get(family, ""),
        "arm64" if arm else "x86_64",
        CPU_BASELINE_SHARES.get(family, {}).get(size),
    )
    return machine, None if factor == "NA" else float(factor)


def _builtin_types() -> dict[str, tuple[MachineType, float | None]]:
    path = _DATA / "builtin.csv"
    types: dict[str, tuple[MachineType, float | None]] = {}
    cheapest: dict[str, float] = {}
    for offer, _ in read_own_csv(CsvRows(path, path.name), date.min).rows:
        if offer.provider != "aws" or offer.price_usd_per_hour > cheapest.get(offer.instance_type, 1e9):
            continue
        cheapest[offer.instance_type] = offer.price_usd_per_hour
        machine = MachineType(**{name: getattr(offer, name) for name in MachineType.__slots__})
        # Sizes with one GPU of the same kind are priced by a factor of their own: their price in one
        # region is as good as it.
        is_factor = offer.accelerators and offer.region == "us-east-1"
        types[offer.instance_type] = machine, offer.price_usd_per_hour if is_factor else None
    return types


def _read_azure(reading: LoadedFile, prices: Mapping[str, Any], as_of: date) -> None:
    for listed, regions in prices.items():
        size = AZURE_SIZES.get(listed)
        if size is None:
            reading.refuse(0, f"azure {listed}", "its vCPUs and memory are unknown")
            continue
        for region, price in regions.items():
            _add(reading, ("azure", region), size, price, as_of, "libcloud azure_linux")


def _read_gce(reading: LoadedFile, prices: Mapping[str, Any], as_of: date) -> None:
    for machine in google_types():
        memory_gib = round(machine.memory_bytes / GIB, 4)
        for market, spot in (("on_demand", False), ("preemptible", True)):
            parts = prices.get(machine.instance_type.partition("-")[0], {})
            cores, memory = (_part(parts, name, market) for name in ("cpu", "ram"))
            for region in [region for region in cores if region in memory]:
                price = round(machine.vcpus * cores[region] + memory_gib * memory[region], 6)
                source = "libcloud gce cpu+ram"
                _add(reading, ("gcp", region), machine, price, as_of, source, spot=spot)


def _part(parts: Mapping[str, Any], name: str, market: str) -> dict[str, float]:
    """The price of a core or a GiB by region; parts without a price are left out, and with them the sum."""
    regions = parts.get(name, {}).get(market, {})
    if not isinstance(regions, dict):
        return {}
    return {
        region: float(row["price"])
        for region, row in regions.items()
        if isinstance(row, dict) and isinstance(row.get("price"), int | float) and row["price"] > 0
    }
