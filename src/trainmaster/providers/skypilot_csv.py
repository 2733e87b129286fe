"""SkyPilot's catalogue files, such as ``~/.sky/catalogs/v8/aws/vms.csv``.

They come in one file per cloud; the cloud is not in the file but in the folder's name. They have
no network bandwidth and no date of their own; the columns ``NetworkGbps``, ``NetworkBurstGbps``,
``BillingQuantumS``, ``AsOf``, ``Source`` and ``Provider`` are read where somebody added them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import lru_cache
from pathlib import PurePath
from typing import Final

from trainmaster.providers.csv_rows import (
    BadCell,
    CsvRows,
    OfferCells,
    Reader,
    complete,
    day,
    gibibytes,
    lower,
    number,
    optional,
    words,
)
from trainmaster.providers.gathering import LoadedFile
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

_MIB: Final = 1 << 20
_SIZE = re.compile(r"SizeInMiB'?\"?\s*:\s*([0-9.]+)")
_ARCHES: Final = {
    "x86_64": "x86_64",
    "amd64": "x86_64",
    "x64": "x86_64",
    "arm64": "arm64",
    "aarch64": "arm64",
}
_CLOUDS: Final = frozenset(
    (
        "aws",
        "azure",
        "cudo",
        "do",
        "fluidstack",
        "gcp",
        "hyperbolic",
        "ibm",
        "lambda",
        "nebius",
        "oci",
        "paperspace",
        "runpod",
        "scp",
        "seeweb",
        "shadeform",
        "vast",
        "vsphere",
    )
)
_LOOKS: Final = (
    ("azure", re.compile(r"Standard_\w+")),
    ("aws", re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")),
    ("gcp", re.compile(r"[a-z][0-9]+[a-z]?-[a-z]+-[0-9a-z]+")),
)


def is_skypilot(header: Sequence[str]) -> bool:
    """Whether a header is SkyPilot's."""
    return "InstanceType" in header and ("Price" in header or "SpotPrice" in header)


def read_skypilot_csv(rows: CsvRows, file_date: date) -> LoadedFile:
    """Read the whole file: 50,000 rows in less than a second.

    Args:
        rows: the file.
        file_date: the date of its prices, unless a column ``AsOf`` tells it.

    Raises:
        UsageError: a column without which there is no offer is missing.
    """
    if missing := [name for name in ("vCPUs", "MemoryGiB", "Price") if name not in rows.header]:
        raise UsageError(
            f"{rows.file}:1: a catalogue of SkyPilot without {', '.join(missing)}", "Name its vms.csv."
        )
    reading = LoadedFile(rows.file)
    folder = PurePath(rows.file).parent.name.lower()
    table, prices = OfferCells(rows.header, _CELLS), OfferCells(rows.header, _PRICES)
    for line, cells in rows:
        subject = ""
        try:
            told = prices.facts(cells)
            kind, spot = told["instance_type"], told["spot"]
            subject = f"{told['region']} {kind}".strip()
            if not kind:
                raise BadCell("InstanceType: nothing; this is the price of a part, not of a machine")
            if not told["price"] and not spot:
                raise BadCell("Price and SpotPrice: nothing; one of them is needed")
            facts = table.facts(cells)
            facts["provider"] = facts["provider"] or (folder if folder in _CLOUDS else _guess(kind))
            if not facts["accelerator"]:
                facts["accelerator_memory_bytes"] = None
            facts = complete(facts, f"{rows.file}:{line}", file_date)
            for column, is_spot in (("Price", False), ("SpotPrice", True)):
                if text := told["spot" if is_spot else "price"]:
                    offer = Offer(**facts, price_usd_per_hour=number(column, text), spot=is_spot)
                    reading.rows.append((offer, line))
        except ValueError as error:
            reading.refuse(line, subject, str(error))
    if "AsOf" not in rows.header:
        reading.warnings.append(
            f"{rows.file}: has no dates; the file's own, {file_date.isoformat()}, is taken "
            "(SkyPilot renews it also when it could not fetch new prices)"
        )
    return reading


@lru_cache(maxsize=4096)
def _gpu_memory(info: str) -> int | None:
    """Bytes of one GPU from the text of ``GpuInfo``; None where it does not say.

    >>> _gpu_memory("{'Gpus': [{'Name': 'V100', 'MemoryInfo': {'SizeInMiB': 16384}}]}") // 2**30
    16
    """
    found = _SIZE.search(info)
    return round(float(found[1]) * _MIB) or None if found else None


@lru_cache(maxsize=4096)
def _guess(kind: str) -> str:
    """The cloud whose instance types look like this."""
    return next((cloud for cloud, looks in _LOOKS if looks.fullmatch(kind)), "unknown")


#: The column of each attribute of an offer, and how it is read.
_CELLS: Final[dict[str, tuple[str, Reader]]] = {
    "provider": ("Provider", lower),
    "region": ("Region", words),
    "zone": ("AvailabilityZone", words),
    "instance_type": ("InstanceType", words),
    "vcpus": ("vCPUs", number),
    "memory_bytes": ("MemoryGiB", gibibytes),
    "accelerator": ("AcceleratorName", words),
    "accelerators": ("AcceleratorCount", optional(number)),
    "accelerator_memory_bytes": ("GpuInfo", lambda _, text: _gpu_memory(text)),
    "nic_gbps": ("NetworkGbps", optional(number)),
    "nic_burst_gbps": ("NetworkBurstGbps", optional(number)),
    "billing_quantum_s": ("BillingQuantumS", optional(number)),
    "as_of": ("AsOf", optional(day)),
    "source": ("Source", words),
    "arch": ("Arch", lambda _, text: _ARCHES.get(text.strip().lower(), "")),
}
_PRICES: Final = {
    "instance_type": ("InstanceType", words),
    "region": ("Region", words),
    "price": ("Price", words),
    "spot": ("SpotPrice", words),
}
