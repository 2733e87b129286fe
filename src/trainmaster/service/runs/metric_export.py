"""What the tasks of a run have reported, as files for other tools: CSV, and event files for TensorBoard."""

from __future__ import annotations

import csv
import math
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from trainmaster.dataclass import dataclass, field
from trainmaster.executors.telemetry.metrics import json_safe
from trainmaster.service.runs.curves import PARAMETER

#: How names of event files end that are written here.
OWN: Final = ".trainmaster"
#: What each report begins with: of which task it is.
_PLACE: Final = ("experiment", "task", "attempt")
#: What says when a report was made, not how well the task does.
_TIMES: Final = ("time", "timestamp", "wall_time")
_STEPS: Final = ("step", "epoch")
#: What spreadsheets take for the beginning of a formula.
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
#: CRC-32C (Castagnoli), by which TensorFlow checks its records.
_POLYNOMIAL: Final = 0x82F63B78


def in_json(reports: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """What JSON can say of them: None for NaN and the infinities."""
    return map(json_safe, reports)


def write_csv(reports: Iterable[Mapping[str, Any]], file: TextIO) -> int:
    """Write a table with a line per report and a column per name; how many lines there are.

    Args:
        reports: as `trainmaster.service.runs.curves.reported` yields them.
        file: opened with ``newline=""``.
    """
    rows = list(reports)
    columns = dict.fromkeys([*_PLACE, *(name for row in rows for name in row)])
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(cell, columns))
    writer.writerows([cell(row.get(name, "")) for name in columns] for row in rows)
    return len(rows)


def cell(value: object) -> object:
    """What a CSV file has for it: of a text, one that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


@dataclass
class EventFiles:
    """Event files of a directory, ``EXPERIMENT/TASK/events.out.tfevents...``, one per attempt.

    They grow: what was written before is passed over, so the same reports may come again with more of them.

    Attributes:
        directory: that has no other writer.
        skipped: tasks, ``EXPERIMENT/TASK``, that get none.
    """

    directory: Path
    skipped: frozenset[str] = frozenset()
    _written: dict[tuple[str, int, int], int] = field(default_factory=dict, init=False)

    def write(self, reports: Iterable[Mapping[str, Any]], now: float | None = None) -> int:
        """Write those reports that are new; how many values they had.

        Args:
            reports: all of a run, in order.
            now: Unix seconds, for those that do not say when they were made.
        """
        now = time.time() if now is None else now
        values, seen, steps = 0, dict[tuple[str, int, int], int](), dict[tuple[str, int, int], float]()
        pieces: dict[tuple[str, int, int], list[bytes]] = {}
        for report in reports:
            key = (str(report["experiment"]), int(report["task"]), int(report["attempt"]))
            if f"{key[0]}/{key[1]}" in self.skipped:
                continue
            number = seen[key] = seen.get(key, 0) + 1  # of this attempt
            if (step := step_of(report)) is not None:
                steps[key] = step
            if number <= self._written.get(key, 0):
                continue
            found = list(scalars(report))
            if found:
                pieces.setdefault(key, []).append(
                    _event(when_of(report, now), int(steps.get(key, number)), found)
                )
                values += len(found)
        for key, events in pieces.items():
            self._append(key, events, now)
        self._written.update({key: max(count, self._written.get(key, 0)) for key, count in seen.items()})
        return values

    def _append(self, key: tuple[str, int, int], events: list[bytes], now: float) -> None:
        experiment, task, attempt = key
        path = self.directory / experiment / str(task) / f"events.out.tfevents.{attempt:010d}{OWN}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if not file.tell():
                events = [_record(_double(1, now) + _text(3, "brain.Event:2")), *events]
            file.write(b"".join(events))


def step_of(report: Mapping[str, Any]) -> float | None:
    """How far the task says that it was; without a word, reports are counted."""
    return next((float(report[name]) for name in _STEPS if _is_finite(report.get(name))), None)


def when_of(report: Mapping[str, Any], now: float) -> float:
    """When the task says that it was, in Unix seconds; ``now`` without a word."""
    return next((float(report[name]) for name in _TIMES if _is_finite(report.get(name))), now)


def scalars(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of what was measured, not of what counts or says who."""
    for name, value in report.items():
        if name in (*_PLACE, *_STEPS, *_TIMES) or isinstance(value, bool) or name.startswith(PARAMETER):
            continue
        if value is None:  # what was reported as not a number, or as infinite
            yield name, math.nan
        elif isinstance(value, int | float):
            yield name, float(value)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# --- the format: protocol buffers `Event` and `Summary`, in records of TensorFlow --------------------------


def _event(when: float, step: int, scalars: list[tuple[str, float]]) -> bytes:
    values = b"".join(
        _bytes(1, _text(1, name) + _varint(2 << 3 | 5) + struct.pack("<f", _single(value)))
        for name, value in scalars
    )
    return _record(_double(1, when) + _varint(2 << 3) + _varint(step & (1 << 64) - 1) + _bytes(5, values))


def _single(value: float) -> float:
    """What fits into four bytes."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def _text(number: int, value: str) -> bytes:
    return _bytes(number, value.encode("utf-8", "replace"))


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)
        table.append(number)
    return table


_CRC: Final = _table()


def _masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
