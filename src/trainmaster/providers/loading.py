"""`load_catalogue`: a catalogue by its name, or from a file of any layout that is known."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from trainmaster.providers.catalogue import Catalogue
from trainmaster.providers.csv_rows import CsvRows
from trainmaster.providers.gathering import LoadedFile, gather
from trainmaster.providers.own_csv import COLUMNS, is_own, read_own_csv
from trainmaster.providers.skypilot_csv import is_skypilot, read_skypilot_csv
from trainmaster.spec.errors import NotFoundError, UsageError

#: What `load_catalogue` finds without a file, and what it is.
NAMED: Final = {
    "builtin": "on-demand prices of AWS, Azure and Google that ship with Trainmaster",
    "fc2-2018": "the instance types of the FC2 paper: Singapore, August 2018",
    "local": "this machine, as measured now; it costs nothing",
}
DEFAULT: Final = "builtin"
_DATA: Final = Path(__file__).parent / "data"
_SHOWN_REFUSALS: Final = 10


def load_catalogue(name: str | Path | None = None, *, today: date | None = None) -> Catalogue:
    """Read a catalogue.

    Args:
        name: one of `NAMED`, or a file: SkyPilot's CSV, or one with our own columns. None is the builtin one;
            any other is the user's choice, and so exempt from the refusal of old prices. ``./builtin`` is a
            file.
        today: the day; prices of the future are refused.

    Raises:
        NotFoundError: neither a name nor a file.
        UsageError: the file cannot be read, or is the user's own and has rows that no offer can be
            made of. Files of others have gaps: their bad rows are in `Catalogue.refused`.
    """
    day = today or datetime.now(UTC).date()
    asked = DEFAULT if name is None else str(name)
    by_hand = name is not None
    if asked == "local":
        from trainmaster.providers.local_machine import local_offer

        return Catalogue(asked, (local_offer(day),), by_hand=by_hand)
    if asked in NAMED:
        path = _DATA / f"{asked}.csv"
        reading = read_own_csv(CsvRows(path, path.name), day)
        return _catalogue(asked, reading, day, by_hand)
    path = Path(asked).expanduser()
    if not path.exists():
        raise NotFoundError(
            f"there is no catalogue '{asked}', and no such file",
            f"Name a file, or one of {', '.join(NAMED)}.",
        )
    file_date = min(day, datetime.fromtimestamp(path.stat().st_mtime, UTC).date()) if path.is_file() else day
    with _no_collecting():
        return _catalogue(asked, _read_file(path, asked, file_date), day, by_hand)


@contextmanager
def _no_collecting() -> Iterator[None]:
    """Spare the garbage collector 100,000 new offers that all stay: they take it as long as reading them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read_file(path: Path, file: str, file_date: date) -> LoadedFile:
    rows = CsvRows(path, file)
    read: Callable[[CsvRows, date], LoadedFile]
    if is_skypilot(rows.header):
        read = read_skypilot_csv
    elif is_own(rows.header):
        read = _read_strictly
    else:
        found = ", ".join(rows.header[:6]) or "nothing"
        raise UsageError(
            f"{file}:1: no known header of a catalogue: {found}",
            f"Ours is {','.join(COLUMNS[:6])},...; SkyPilot's has InstanceType, Price. See docs/offers.md.",
        )
    return read(rows, file_date)


def _read_strictly(rows: CsvRows, file_date: date) -> LoadedFile:
    """The user's own file: what is wrong in it is a slip to be corrected, not a gap."""
    reading = read_own_csv(rows, file_date)
    reading.strict = True
    return reading


def _catalogue(name: str, reading: LoadedFile, today: date, by_hand: bool) -> Catalogue:
    offers, refused = gather(reading, today)
    if reading.strict and refused:
        shown = [str(refusal) for refusal in refused[:_SHOWN_REFUSALS]]
        if rest := len(refused) - len(shown):
            shown.append(f"... and {rest:,} more")
        raise UsageError("\n".join(shown), "Correct these rows, or take them out.")
    return Catalogue(name, offers, refused, tuple(reading.warnings), by_hand)
