"""Our own CSV layout: what ships with the package, and what users write by hand (docs/offers.md)."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Final

from trainmaster.providers.billing import Billing
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.csv_rows import (
    GIB,
    BadCell,
    CsvRows,
    day,
    gibibytes,
    gibibytes_or_none,
    number,
    number_or_none,
    truth,
)
from trainmaster.providers.gathering import Reading
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

#: Every column; those of ``REQUIRED`` must be there, in any order.
COLUMNS: Final = (
    "provider",
    "region",
    "zone",
    "instance_type",
    "vcpus",
    "memory_gib",
    "gpu",
    "gpus",
    "gpu_memory_gib",
    "nic_gbps",
    "nic_burst_gbps",
    "cpu_credits",
    "cpu_baseline_share",
    "price_usd_per_hour",
    "spot",
    "billing_quantum_s",
    "billing_minimum_s",
    "currency",
    "arch",
    "as_of",
    "source",
)
REQUIRED: Final = ("instance_type", "vcpus", "memory_gib", "price_usd_per_hour")

#: The provider where the file names none.
NAMELESS: Final = "own"


def is_own(header: Sequence[str]) -> bool:
    """Whether a header is of this layout, as far as one column tells."""
    return any(name in COLUMNS for name in header)


def read_own_csv(rows: CsvRows, file_date: date) -> Reading:
    """Read the whole file.

    Args:
        rows: the file.
        file_date: the date of rows that give none.

    Raises:
        UsageError: a column is unknown, missing or there twice.
    """
    _check_header(rows)
    reading = Reading(rows.file)
    undated = "as_of" not in rows.header
    width = len(rows.header)
    for line, cells in rows:
        if len(cells) != width:
            reading.refuse(line, "", f"it has {len(cells)} cells; the header has {width} columns")
            continue
        row = dict(zip(rows.header, cells, strict=True))
        subject = " ".join(
            text for name in ("provider", "region", "instance_type") if (text := row.get(name, "").strip())
        )
        try:
            offer = _offer(row, f"{rows.file}:{line}", file_date)
        except ValueError as error:
            reading.refuse(line, subject, str(error))
            continue
        undated = undated or not row.get("as_of", "").strip()
        reading.rows.append((offer, line))
    if undated:
        taken = f"that of the file is taken, {file_date.isoformat()}"
        reading.warnings.append(f"{rows.file}: not every price has a date (as_of); {taken}")
    return reading


def write_own_csv(offers: Iterable[Offer]) -> str:
    """The same offers as a file of this layout.

    Terms of billing are left out where they are the provider's usual ones.
    """
    import csv

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for offer in offers:
        billing = capabilities_of(offer.provider).billing
        usual = (billing.quantum_s, billing.minimum_s) == (offer.billing_quantum_s, offer.billing_minimum_s)
        writer.writerow(
            (
                offer.provider,
                offer.region,
                offer.zone,
                offer.instance_type,
                _short(offer.vcpus),
                _short(offer.memory_bytes / GIB),
                offer.accelerator,
                _short(offer.accelerators) if offer.accelerators else "",
                ""
                if offer.accelerator_memory_bytes is None
                else _short(offer.accelerator_memory_bytes / GIB),
                _short(offer.nic_gbps),
                _short(offer.nic_burst_gbps),
                offer.cpu_credits,
                _short(offer.cpu_baseline_share),
                _short(offer.price_usd_per_hour),
                "true" if offer.spot else "",
                "" if usual else _short(offer.billing_quantum_s),
                "" if usual else _short(offer.billing_minimum_s),
                "" if offer.currency == "USD" else offer.currency,
                offer.arch,
                offer.as_of.isoformat(),
                offer.source,
            )
        )
    return buffer.getvalue()


def _short(value: float | None) -> str:
    """The fewest digits that give the same number again."""
    return "" if value is None else repr(value).removesuffix(".0")


def _check_header(rows: CsvRows) -> None:
    for name in rows.header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name.lower(), COLUMNS, n=1)
            right = f"did you mean {near[0]}?" if near else f"known are {', '.join(COLUMNS)}"
            raise UsageError(f"{rows.file}:1: there is no column {name!r}; {right}", "See docs/offers.md.")
        if rows.header.count(name) > 1:
            raise UsageError(f"{rows.file}:1: the column {name} is there twice", "Keep one of them.")
    if missing := [name for name in REQUIRED if name not in rows.header]:
        raise UsageError(
            f"{rows.file}:1: no column {', '.join(missing)}",
            f"A catalogue has at least {', '.join(REQUIRED)}; see docs/offers.md.",
        )


def _offer(row: dict[str, str], where: str, file_date: date) -> Offer:
    """One row.

    Raises:
        ValueError: a cell cannot be read, or cannot be true.
    """
    cell = row.get
    provider = cell("provider", "").strip().lower() or NAMELESS
    gpu = cell("gpu", "").strip()
    quantum = number_or_none("billing_quantum_s", cell("billing_quantum_s", ""))
    billing = capabilities_of(provider).billing if quantum is None else Billing(quantum, 0.0)
    minimum = number_or_none("billing_minimum_s", cell("billing_minimum_s", ""))
    as_of = cell("as_of", "")
    if not cell("instance_type", "").strip():
        raise BadCell("instance_type: nothing; a name is needed")
    return Offer(
        provider=provider,
        region=cell("region", "").strip(),
        zone=cell("zone", "").strip(),
        instance_type=row["instance_type"].strip(),
        vcpus=number("vcpus", row["vcpus"]),
        memory_bytes=gibibytes("memory_gib", row["memory_gib"]),
        accelerator=gpu,
        accelerators=number_or_none("gpus", cell("gpus", "")) or 0.0,
        accelerator_memory_bytes=gibibytes_or_none("gpu_memory_gib", cell("gpu_memory_gib", "")),
        nic_gbps=number_or_none("nic_gbps", cell("nic_gbps", "")),
        nic_burst_gbps=number_or_none("nic_burst_gbps", cell("nic_burst_gbps", "")),
        cpu_credits=cell("cpu_credits", "").strip().lower(),
        price_usd_per_hour=number("price_usd_per_hour", row["price_usd_per_hour"]),
        spot=truth("spot", cell("spot", "")),
        billing_quantum_s=billing.quantum_s,
        billing_minimum_s=billing.minimum_s if minimum is None else minimum,
        currency=cell("currency", "").strip().upper() or "USD",
        as_of=day("as_of", as_of) if as_of.strip() else file_date,
        source=cell("source", "").strip() or where,
        arch=cell("arch", "").strip(),
        cpu_baseline_share=number_or_none("cpu_baseline_share", cell("cpu_baseline_share", "")),
    )
