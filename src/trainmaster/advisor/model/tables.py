"""Measured points and queries as CSV files: read, check, predict, write.

A mistake is reported as ``FILE:LINE: column: what was found; what would be right``.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.shapes import KINDS, Columns, Floats, Shapes
from trainmaster.advisor.model.steptime import NextPoint, StepTimeModel
from trainmaster.dataclass import dataclass
from trainmaster.spec import Strategy
from trainmaster.spec.errors import UsageError, fails_as

#: The columns of both files. Only ``sync``, ``workers`` and (measured) ``step_time_s`` must be filled.
COLUMNS: Final = (
    "job",
    "sync",
    "nodes",
    "workers",
    "parameter_servers",
    "local_batch",
    "latency_ms",
    "nic_mbps",
    "gradient_mb",
    "step_time_s",
)
#: What a prediction fills in; a query may have these columns, their content is replaced.
FILLED: Final = ("step_time_s", "lo_s", "hi_s", "bottleneck")

#: No number is larger: sums and products of them stay finite.
MOST: Final = 1e12
_COUNTS: Final = {"nodes": 1, "workers": 1, "parameter_servers": 0}
#: Of tables as the paper on recommending clusters has them.
_EPOCH: Final = "time_per_epoch_s"
_NUMBERS: Final = (
    "nodes",
    "workers",
    "parameter_servers",
    "local_batch",
    "latency_ms",
    "nic_mbps",
    "gradient_mb",
)
_SHOWN_MISTAKES: Final = 20


@dataclass(frozen=True)
class Table:
    """A CSV file of shapes that has been checked.

    Attributes:
        path: where it came from.
        header: its columns, in order.
        rows: the cells as they were written.
        lines: (m) line of each row in the file, from 1.
        jobs: (m) the job of each row; empty text if the file has no such column.
        columns: the numbers, (m) each.
        times: (m,) seconds per step; NaN where unknown.
    """

    path: Path
    header: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lines: tuple[int, ...]
    jobs: tuple[str, ...]
    columns: Columns
    times: Floats

    def where(self, row: int) -> str:
        """``FILE:LINE`` of a row."""
        return f"{self.path}:{self.lines[row]}"

    def point(self, row: int) -> Point:
        """A row as a measured point."""
        columns = self.columns[np.array([row])]
        known = {
            name: value
            for name, values in vars(columns).items()
            if name != "kind" and math.isfinite(value := float(values[0]))
        }
        sync, servers = KINDS[int(columns.kind[0])], known.get("servers", 0.0)
        return Point(
            sync=sync,
            workers=int(known["workers"]),
            nodes=int(known["nodes"]) if "nodes" in known else None,
            parameter_servers=int(servers) if servers or not sync.has_servers else None,
            local_batch=known.get("batch"),
            latency_ms=known.get("latency"),
            nic_mbps=known.get("nic"),
            gradient_bytes=known.get("gradient"),
            step_time_s=None if math.isnan(self.times[row]) else float(self.times[row]),
        )


@dataclass(frozen=True)
class Unexplained:
    """A measured row that physics cannot explain next to the others; it was not learnt."""

    where: str
    job: str
    step_time_s: float
    expected_s: float


@dataclass(frozen=True)
class PredictedRows:
    """The query's rows, in their order, with the predictions filled in.

    Attributes:
        header: the query's columns, then those of ``FILLED`` that it lacks.
        rows: text or numbers by column; None where the query left a cell empty.
        unexplained: measured rows that were not learnt.
        next_measurements: by job, what would say most about the rows asked for; without jobs that need none.
    """

    header: tuple[str, ...]
    rows: tuple[dict[str, str | float | None], ...]
    unexplained: tuple[Unexplained, ...]
    next_measurements: dict[str, NextPoint]

    def as_csv(self) -> str:
        """The whole file as text."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.header, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return buffer.getvalue()

    def as_json(self) -> str:
        """One JSON object on one line: rows, unexplained, next_measurements."""
        notes = [vars(note) for note in self.unexplained]
        points = [{"job": job} | vars(point) for job, point in self.next_measurements.items()]
        found = {"rows": self.rows, "unexplained": notes, "next_measurements": points}
        return json.dumps(found, allow_nan=False)


def predict_tables(measurements: Path, query: Path) -> PredictedRows:
    """Fit every job of ``measurements``, with what the others there have shown, and predict ``query``.

    Raises:
        UsageError: a file cannot be read or has mistakes, or the query asks for a job that
            was never measured.
    """
    measured = read_table(measurements, measured=True)
    asked = read_table(query, measured=False)
    known = set(measured.jobs)
    _raise(
        query,
        (
            (asked.lines[i], "job", _unknown_job(job, known, measurements))
            for i, job in enumerate(asked.jobs)
            if job not in known
        ),
    )
    columns = {name: np.empty(len(asked.rows)) for name in ("step_time_s", "lo_s", "hi_s")}
    words = np.empty(len(asked.rows), dtype=object)
    unexplained: list[Unexplained] = []
    points: dict[str, NextPoint] = {}
    jobs_measured, jobs_asked = np.array(measured.jobs, dtype=object), np.array(asked.jobs, dtype=object)
    experience = Experience.of_rows(measured.jobs, measured.columns, measured.times)
    for job, kind in dict.fromkeys(zip(asked.jobs, asked.columns.kind.tolist(), strict=True)):
        own = np.flatnonzero(jobs_measured == job)
        wanted = np.flatnonzero((jobs_asked == job) & (asked.columns.kind == kind))
        if (same := measured.columns.kind[own] == kind).any():
            own = own[same]
        others = experience.without(job)
        model = StepTimeModel.fit_columns(measured.columns[own], measured.times[own], kind, 0, others)
        answer = model.predict_columns(asked.columns[wanted])
        columns["step_time_s"][wanted], columns["lo_s"][wanted] = answer.typical, answer.low
        columns["hi_s"][wanted], words[wanted] = answer.high, answer.bottleneck
        if point := model.next_point(Shapes.of(asked.columns[wanted], model.context)):
            points[job] = point
        unexplained += [
            Unexplained(measured.where(own[i]), job, float(measured.times[own[i]]), float(model.expected[i]))
            for i in np.flatnonzero(model.unexplained)
        ]
    header = asked.header + tuple(name for name in FILLED if name not in asked.header)
    rows = []
    for i, cells in enumerate(asked.rows):
        row: dict[str, str | float | None] = {name: _typed(name, cells[name]) for name in asked.header}
        row |= {name: float(f"{values[i]:.6g}") for name, values in columns.items()}
        row["bottleneck"] = str(words[i])
        rows.append(row)
    return PredictedRows(header, tuple(rows), tuple(unexplained), points)


def read_table(path: Path, *, measured: bool, more: tuple[str, ...] = (), may_fail: bool = False) -> Table:
    """Read and check one file.

    Args:
        path: a CSV file with a header of ``COLUMNS``, in any order, some may be absent.
        measured: True if every row must have a ``step_time_s``.
        more: columns of text that it may have too.
        may_fail: a measured row may lack its time: it did not fit.

    Raises:
        UsageError: naming the file and, for each mistake, the line and column.
    """
    header, rows, lines = _read_cells(path, (*COLUMNS, *more) if measured else (*COLUMNS, *FILLED[1:]))
    needed = ("sync", "workers", "step_time_s") if measured else ("sync", "workers")
    absent = [name for name in needed if name not in header]
    _raise(path, ((1, name, "this column is needed") for name in absent))
    mistakes: list[tuple[int, str, str]] = []
    numbers = {name: np.full(len(rows), np.nan) for name in (*_NUMBERS, "step_time_s")}
    kinds = np.zeros(len(rows), dtype=int)
    for i, cells in enumerate(rows):
        for name, values in numbers.items():
            try:
                is_needed = name in needed and not (may_fail and name == "step_time_s")
                values[i] = _number(name, cells.get(name, ""), needed=is_needed)
            except ValueError as error:
                mistakes.append((lines[i], name, str(error)))
        try:
            kinds[i] = KINDS.index(Strategy(cells["sync"]))
        except ValueError:
            mistakes.append((lines[i], "sync", f"found {cells['sync']!r}; {', '.join(Strategy)} are known"))
    _raise(path, mistakes)
    columns = Columns(
        kind=kinds,
        workers=numbers["workers"],
        nodes=numbers["nodes"],
        servers=numbers["parameter_servers"],
        batch=numbers["local_batch"],
        latency=numbers["latency_ms"],
        nic=numbers["nic_mbps"],
        gradient=numbers["gradient_mb"] * 1e6,
    )
    jobs = tuple(cells.get("job", "") for cells in rows)
    return Table(path, header, rows, lines, jobs, columns, numbers["step_time_s"])


def _read_cells(
    path: Path, known: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[dict[str, str], ...], tuple[int, ...]]:
    """Header, rows and their line numbers; blank lines are passed over."""
    with fails_as(f"{path}: cannot be read", "Name a CSV file in UTF-8."):
        text = path.read_text(encoding="utf-8-sig")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        lines, cells = [], []
        for row in reader:
            if any(cell.strip() for cell in row):
                lines.append(reader.line_num)
                cells.append([cell.strip() for cell in row])
    except csv.Error as error:
        raise UsageError(f"{path}:{reader.line_num}: {error}", "Save it as plain CSV.") from None
    if not cells:
        raise UsageError(f"{path}: is empty", f"Its first line names columns: {','.join(COLUMNS)}")
    header = tuple(cells[0])
    if _EPOCH in header:
        raise UsageError(
            f"{path}:1: {_EPOCH}: rows here are of steps (step_time_s), not of epochs",
            f"`trainmaster recommend --batch N --latency-ms L --table {path.name}` answers from epochs.",
        )
    _raise(
        path,
        [(lines[0], name, _unknown_column(name, known)) for name in header if name not in known]
        + [(lines[0], name, "this column is there twice") for name in set(header) if header.count(name) > 1],
    )
    if len(cells) == 1:
        raise UsageError(f"{path}: has a header but no rows", "Add at least one row below the header.")
    long = f"more cells than the header's {len(header)}"
    _raise(path, ((line, "", long) for line, row in zip(lines, cells, strict=True) if len(row) > len(header)))
    rows = tuple(dict.fromkeys(header, "") | dict(zip(header, row, strict=False)) for row in cells[1:])
    return header, rows, tuple(lines[1:])


def _number(name: str, text: str, *, needed: bool) -> float:
    """The number in a cell, NaN if it is empty.

    Raises:
        ValueError: what was found; what would be right.
    """
    if not text:
        if needed:
            raise ValueError("is empty; a number is needed")
        return math.nan
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"found {text!r}; a number is needed, or nothing if it is unknown") from None
    if not abs(value) <= MOST:
        raise ValueError(f"found {text!r}; a number up to {MOST:g} is needed, or nothing if it is unknown")
    if name in _COUNTS:
        if value != int(value) or value < _COUNTS[name]:
            raise ValueError(f"found {text!r}; a whole number from {_COUNTS[name]} is needed")
    elif value < 0 or (value == 0 and name != "latency_ms"):
        raise ValueError(
            f"found {text!r}; {'zero or more' if name == 'latency_ms' else 'more than zero'} is needed"
        )
    return value


def _typed(name: str, text: str) -> str | float | None:
    """A cell of the query as JSON has it: whole numbers without a point."""
    if name in _NUMBERS and text:
        value = float(text)
        return int(value) if value == int(value) else value
    return text or None


def _unknown_column(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"unknown column; {f'did you mean {near[0]}?' if near else 'known are ' + ', '.join(known)}"


def _unknown_job(job: str, known: set[str], measurements: Path) -> str:
    near = difflib.get_close_matches(job, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"measured are {', '.join(sorted(known)[:8])}"
    return f"{job!r} has no rows in {measurements}; {hint}"


def _raise(path: Path, mistakes: Iterable[tuple[int, str, str]]) -> None:
    """Raise one error that lists the mistakes, if there are any."""
    found = [
        f"{path}:{line}: {f'{column}: ' if column else ''}{message}" for line, column, message in mistakes
    ]
    if found:
        more = f"\n... and {len(found) - _SHOWN_MISTAKES} more" if len(found) > _SHOWN_MISTAKES else ""
        raise UsageError("\n".join(found[:_SHOWN_MISTAKES]) + more)
