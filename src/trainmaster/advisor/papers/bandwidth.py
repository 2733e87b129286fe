"""What one worker of each type was measured to send: in runs, and by ``quote --bandwidth FILE``."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path

from trainmaster.advisor.model.measurement import Measurement
from trainmaster.spec.errors import UsageError


def traffic_mbps(measurements: Iterable[Measurement]) -> dict[str, float]:
    """Traffic of one worker (FC2's b_t), Mbit/s, by instance type in small letters: the larger direction.

    Of each type the newest measurement with the fewest workers counts: behind a server that is saturated
    a worker sends less than it would.

    Args:
        measurements: of one job.
    """
    best: dict[str, tuple[tuple[float, float], float]] = {}
    for each in measurements:
        point = each.point
        if each.offer == "local" or point is None or not point.step_time_s:
            continue
        most_bytes = max(point.bytes_in or 0.0, point.bytes_out or 0.0)
        rank, name = (point.workers, -each.measured_at), each.offer.lower()
        if most_bytes > 0 and (name not in best or rank < best[name][0]):
            best[name] = rank, 8e-6 * most_bytes / point.step_time_s
    return {name: mbps for name, (_, mbps) in best.items()}


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
