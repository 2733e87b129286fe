"""Our own CSV layout: what ships with the package, and what users write by hand (docs/offers.md)."""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, Final

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.providers.csv_rows import (
    GIB,
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
    truth,
    words,
)
from trainmaster.providers.gathering import LoadedFile
from trainmaster.providers.offer import Offer
from trainmaster.spec.errors import UsageError

#: The column of each attribute of an offer, and how it is read.
_CELLS: Final[dict[str, tuple[str, Reader]]] = {
    "provider": ("provider", lower),
    "region": ("region", words),
    "zone": ("zone", words),
    "instance_type": ("instance_type", words),
    "vcpus": ("vcpus", number),
    "memory_bytes": ("memory_gib", gibibytes),
    "accelerator": ("gpu", words),
    "accelerators": ("gpus", optional(number)),
    "accelerator_memory_bytes": ("gpu_memory_gib", optional(gibibytes)),
    "nic_gbps": ("nic_gbps", optional(number)),
    "nic_burst_gbps": ("nic_burst_gbps", optional(number)),
    "cpu_credits": ("cpu_credits", lower),
    "cpu_baseline_share": ("cpu_baseline_share", optional(number)),
    "price_usd_per_hour": ("price_usd_per_hour", number),
    "spot": ("spot", truth),
    "billing_quantum_s": ("billing_quantum_s", optional(number)),
    "billing_minimum_s": ("billing_minimum_s", optional(number)),
    "currency": ("currency", lambda _, text: text.strip().upper()),
    "arch": ("arch", words),
    "as_of": ("as_of", optional(day)),
    "source": ("source", words),
}
#: Every column; those of ``REQUIRED`` must be there, in any order.
COLUMNS: Final = tuple(column for column, _ in _CELLS.values())
REQUIRED: Final = ("instance_type", "vcpus", "memory_gib", "price_usd_per_hour")

#: The provider where the file names none.
NAMELESS: Final = "own"


def is_own(header: Sequence[str]) -> bool:
    """Whether a header is of this layout, as far as one column tells."""
    return any(name in COLUMNS for name in header)


def read_own_csv(rows: CsvRows, file_date: date) -> LoadedFile:
    """Read the whole file.

    Args:
        rows: the file.
        file_date: the date of rows that give none.

    Raises:
        UsageError: a column is unknown, missing or there twice.
    """
    _check_header(rows)
    reading = LoadedFile(rows.file)
    undated = "as_of" not in rows.header
    table = OfferCells(rows.header, _CELLS)
    for line, cells in rows:
        try:
            facts = table.facts(cells)
            undated = undated or facts["as_of"] is None
            reading.rows.append((_offer(facts, f"{rows.file}:{line}", file_date), line))
        except ValueError as error:
            told = dict(zip(rows.header, cells, strict=False)) if len(cells) == len(rows.header) else {}
            names = (told.get(name, "").strip() for name in ("provider", "region", "instance_type"))
            reading.refuse(line, " ".join(filter(None, names)), str(error))
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
        cells = {attribute: getattr(offer, attribute) for attribute in _CELLS}
        cells["memory_bytes"] = offer.memory_bytes / GIB
        if offer.accelerator_memory_bytes is not None:
            cells["accelerator_memory_bytes"] = offer.accelerator_memory_bytes / GIB
        if (billing.quantum_s, billing.minimum_s) == (offer.billing_quantum_s, offer.billing_minimum_s):
            cells["billing_quantum_s"] = cells["billing_minimum_s"] = None
        cells["accelerators"] = offer.accelerators or None
        cells["currency"] = "" if offer.currency == "USD" else offer.currency
        writer.writerow(map(_written, cells.values()))
    return buffer.getvalue()


def _written(value: object) -> str:
    """A cell; a number has the fewest digits that give the same one again."""
    if isinstance(value, bool):
        return "true" if value else ""
    if isinstance(value, date):
        return value.isoformat()
    return value if isinstance(value, str) else "" if value is None else repr(value).removesuffix(".0")


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


def _offer(facts: dict[str, Any], where: str, file_date: date) -> Offer:
    """One row.

    Raises:
        ValueError: it cannot be true.
    """
    if not facts["instance_type"]:
        raise BadCell("instance_type: nothing; a name is needed")
    facts["provider"] = facts["provider"] or NAMELESS
    if facts["billing_quantum_s"] is not None and facts["billing_minimum_s"] is None:
        facts["billing_minimum_s"] = 0.0
    return Offer(**complete(facts, where, file_date))
