"""The file of ``quote --bandwidth``: what one worker of each type was measured to send."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from trainmaster.spec.errors import UsageError


def read_bandwidth(path: Path) -> dict[str, float]:
    """Measured traffic of one worker, Mbit/s, by instance type in small letters.

    Args:
        path: CSV with the columns ``instance`` and ``mbps``.

    Raises:
        UsageError: naming the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"{path}: cannot be read: {reason}", "Write a CSV `instance,mbps`.") from None
    rows = csv.reader(text.splitlines())
    header = [cell.strip().lower() for cell in next(rows, [])]
    if header != ["instance", "mbps"]:
        raise UsageError(
            f"{path}:1: the columns are {','.join(header) or 'missing'}", "The first line is `instance,mbps`."
        )
    found: dict[str, float] = {}
    for number, row in enumerate(rows, start=2):
        if not any(cell.strip() for cell in row):
            continue
        name, value, *_ = [*(cell.strip() for cell in row), "", ""]
        name = name.lower()
        try:
            mbps = float(value)
        except ValueError:
            mbps = math.nan
        if len(row) != 2 or not name or not (0 < mbps < math.inf):
            raise UsageError(
                f"{path}:{number}: '{','.join(row)}' is no type with its Mbit/s",
                "Write for instance t2.xlarge,140.",
            )
        if name in found:
            raise UsageError(f"{path}:{number}: {name} is there twice", "Leave one of them out.")
        found[name] = mbps
    return found
