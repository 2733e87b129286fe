"""`CsvRows`: the rows of a CSV file with their lines; `OfferCells`: its cells as facts of an offer."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import UsageError, fails_as

#: Reads a cell, given the name of its column; raises `BadCell`.
Reader = Callable[[str, str], Any]

GIB: Final = 1 << 30
#: More memory than any machine has: a slip of units, and would not fit 64 bits.
_MAX_GIB: Final = 1 << 20
_MOST_BYTES: Final = 256 << 20
_TRUE: Final = frozenset({"true", "yes", "1", "spot"})
_FALSE: Final = frozenset({"", "false", "no", "0", "on-demand"})


class BadCell(ValueError):  # noqa: N818 - what it is
    """A cell that cannot be read: ``column: what was found; what would be right``."""


class CsvRows:
    """A CSV file: its header, and the rows below it.

    Attributes:
        file: its name as people gave it.
        header: names of the columns.
    """

    def __init__(self, path: Path, file: str) -> None:
        """Open nothing but read everything: catalogues are a few megabytes.

        Raises:
            UsageError: it cannot be read, is no CSV, or has no header.
        """
        self.file = file
        with fails_as(f"{file}: cannot be read", "Name a CSV file in UTF-8, or see --help for names."):
            with path.open("rb") as stream:
                data = stream.read(_MOST_BYTES + 1)
            if len(data) > _MOST_BYTES:
                raise UsageError(f"{file}: more than {_MOST_BYTES >> 20} MiB", "Name a catalogue of prices.")
            text = data.decode("utf-8-sig")
        self._reader = csv.reader(text.splitlines(keepends=True), strict=True)
        self.header = tuple(name.strip() for name in self._next() or [])

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        """Line (from 1) and cells; blank lines and lines that begin with # are left out."""
        while (cells := self._next()) is not None:
            yield self._reader.line_num, cells

    def _next(self) -> list[str] | None:
        try:
            for cells in self._reader:
                if any(cells) and not cells[0].startswith("#"):
                    return cells
        except csv.Error as error:
            raise UsageError(
                f"{self.file}:{self._reader.line_num}: is no CSV: {error}", "Save the catalogue as CSV."
            ) from None
        return None


def number(column: str, text: str) -> float:
    """A finite number.

    Raises:
        BadCell: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or "_" in text:
        found = repr(text) if text.strip() else "nothing"
        raise BadCell(f"{column}: {found}; a number is needed")
    return value


def gibibytes(column: str, text: str) -> int:
    """Bytes, from a number of GiB.

    Raises:
        BadCell: it is no number, not positive, or more than any machine has.
    """
    value = number(column, text)
    if not 0 < value <= _MAX_GIB:
        raise BadCell(f"{column}: {text.strip()}; more than 0 and at most {_MAX_GIB} GiB are needed")
    return max(1, round(value * GIB))


def day(column: str, text: str) -> date:
    """A date as ``2026-11-20``; what follows the day, such as the time, is left out.

    Raises:
        BadCell: it is none.
    """
    try:
        return date.fromisoformat(text.strip()[:10])
    except ValueError:
        raise BadCell(f"{column}: {text!r}; a date such as 2026-11-20 is needed") from None


def truth(column: str, text: str) -> bool:
    """Yes or no.

    Raises:
        BadCell: neither.
    """
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise BadCell(f"{column}: {text!r}; true or false is needed")


def words(_column: str, text: str) -> str:
    """What a cell says."""
    return text.strip()


def lower(_column: str, text: str) -> str:
    """What a cell says, in lower case."""
    return text.strip().lower()


def optional(read: Reader) -> Reader:
    """The same reader, which gives None for an empty cell."""
    return lambda column, text: read(column, text) if text.strip() else None


class OfferCells:
    """Rows of a catalogue as facts of offers.

    Args:
        header: of the file.
        columns: which column each attribute of an offer is in, and how it is read; those that are not there
            are empty.
    """

    def __init__(self, header: Sequence[str], columns: Mapping[str, tuple[str, Reader]]) -> None:
        self._width = len(header)
        where = {name: place for place, name in enumerate(header)}
        self._places = [
            (attribute, column, where.get(column, self._width), read)
            for attribute, (column, read) in columns.items()
        ]

    def facts(self, cells: list[str]) -> dict[str, Any]:
        """What a row says of its offer.

        Raises:
            BadCell: a cell cannot be read, or the row has another number of them than the header.
        """
        if len(cells) != self._width:
            raise BadCell(f"it has {len(cells)} cells; the header has {self._width} columns")
        cells = [*cells, ""]  # the last stands for every column that is not there
        return {attribute: read(column, cells[place]) for attribute, column, place, read in self._places}


def complete(facts: dict[str, Any], where: str, file_date: date) -> dict[str, Any]:
    """The facts of an offer, with what is usual in the place of what its row does not say.

    Args:
        facts: as `OfferCells.facts` gives them.
        where: the file and line.
        file_date: the date of rows that give none.
    """
    billing = capabilities_of(facts["provider"]).billing
    usual = {
        "accelerators": 0.0,
        "billing_quantum_s": billing.quantum_s,
        "billing_minimum_s": billing.minimum_s,
        "cpu_credits": "",
        "currency": "USD",
        "as_of": file_date,
        "source": where,
    }
    return facts | {name: value for name, value in usual.items() if facts.get(name) in (None, "")}
