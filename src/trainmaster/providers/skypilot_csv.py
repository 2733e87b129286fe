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

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.csv_rows import BadCell, CsvRows, day, gibibytes, number, number_or_none
from trainmaster.providers.gathering import Reading
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

_Before = tuple[str, str, str, str, float, int, str, float, int | None, float | None, float | None, str]
_After = tuple[float, float, str, date, str, str]


def is_skypilot(header: Sequence[str]) -> bool:
    """Whether a header is SkyPilot's."""
    return "InstanceType" in header and ("Price" in header or "SpotPrice" in header)


def read_skypilot_csv(rows: CsvRows, file_date: date) -> Reading:
    """Read the whole file: 50,000 rows in less than a second.

    Args:
        rows: the file.
        file_date: the date of its prices, unless a column ``AsOf`` tells it.

    Raises:
        UsageError: a column without which there is no offer is missing.
    """
    index = {name: place for place, name in enumerate(rows.header)}
    if missing := [name for name in ("vCPUs", "MemoryGiB", "Price") if name not in index]:
        raise UsageError(
            f"{rows.file}:1: a catalogue of SkyPilot without {', '.join(missing)}", "Name its vms.csv."
        )
    reading = Reading(rows.file)
    folder = PurePath(rows.file).parent.name.lower()
    width = len(rows.header)
    table = _Table(index, width, folder if folder in _CLOUDS else "", rows.file, file_date)
    for line, cells in rows:
        if len(cells) != width:
            reading.refuse(line, "", f"it has {len(cells)} cells; the header has {width} columns")
            continue
        table.read(reading, line, cells)
    if "AsOf" not in index:
        reading.warnings.append(
            f"{rows.file}: has no dates; the file's own, {file_date.isoformat()}, is taken "
            "(SkyPilot renews it also when it could not fetch new prices)"
        )
    return reading


class _Table:
    """Where the columns are, and the defaults of this file."""

    def __init__(self, index: dict[str, int], width: int, provider: str, file: str, file_date: date) -> None:
        self._provider, self._file, self._date = provider, file, file_date

        def place(name: str) -> int:
            return index.get(name, width)  # that of the empty cell which `read` adds

        self._type, self._region, self._zone = (
            place("InstanceType"),
            place("Region"),
            place("AvailabilityZone"),
        )
        self._vcpus, self._memory = place("vCPUs"), place("MemoryGiB")
        self._gpu, self._gpus, self._info = (
            place(name) for name in ("AcceleratorName", "AcceleratorCount", "GpuInfo")
        )
        self._price, self._spot = place("Price"), place("SpotPrice")
        self._nic, self._burst = place("NetworkGbps"), place("NetworkBurstGbps")
        self._arch, self._quantum = place("Arch"), place("BillingQuantumS")
        self._as_of, self._source, self._cloud = place("AsOf"), place("Source"), place("Provider")

    def read(self, reading: Reading, line: int, cells: list[str]) -> None:
        """The one or two offers of a row: on demand, and spot if it has a price."""
        cells = [*cells, ""]  # the last stands for every column that is not there
        kind = cells[self._type].strip()
        subject = f"{cells[self._region]} {kind}".strip()
        price, spot = cells[self._price].strip(), cells[self._spot].strip()
        try:
            if not kind:
                raise BadCell("InstanceType: nothing; this is the price of a part, not of a machine")
            if not price and not spot:
                raise BadCell("Price and SpotPrice: nothing; one of them is needed")
            before, after = self._facts(cells, kind, line)
            if price:
                offer = Offer(*before, number("Price", price), False, *after)
                reading.rows.append((offer, line))
            if spot:
                offer = Offer(*before, number("SpotPrice", spot), True, *after)
                reading.rows.append((offer, line))
        except ValueError as error:
            reading.refuse(line, subject, str(error))

    def _facts(self, cells: list[str], kind: str, line: int) -> tuple[_Before, _After]:
        """The fields of `Offer` before and after its price and ``spot``: read once for both offers."""
        provider = cells[self._cloud].strip().lower() or self._provider or _guess(kind)
        billing = capabilities_of(provider).billing
        quantum = number_or_none("BillingQuantumS", cells[self._quantum])
        gpu, as_of = cells[self._gpu].strip(), cells[self._as_of].strip()
        before = (
            provider,
            cells[self._region].strip(),
            cells[self._zone].strip(),
            kind,
            number("vCPUs", cells[self._vcpus]),
            gibibytes("MemoryGiB", cells[self._memory]),
            gpu,
            number_or_none("AcceleratorCount", cells[self._gpus]) or 0.0,
            _gpu_memory(cells[self._info]) if gpu else None,
            number_or_none("NetworkGbps", cells[self._nic]),
            number_or_none("NetworkBurstGbps", cells[self._burst]),
            "",
        )
        after = (
            billing.quantum_s if quantum is None else quantum,
            billing.minimum_s,
            "USD",
            day("AsOf", as_of) if as_of else self._date,
            cells[self._source].strip() or f"{self._file}:{line}",
            _ARCHES.get(cells[self._arch].strip().lower(), ""),
        )
        return before, after


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
