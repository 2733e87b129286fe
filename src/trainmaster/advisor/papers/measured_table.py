"""`MeasuredTable`: measured clusters by batch size and latency, as the database of Anwar et al. has them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np

from trainmaster.advisor.market.memory_floor import FULL
from trainmaster.advisor.model.knowledge import memory_at, memory_seen
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.model.tables import MOST
from trainmaster.dataclass import dataclass
from trainmaster.spec import Strategy
from trainmaster.spec.errors import UsageError, fails_as

#: Name of the table that the paper has published (113 measured rows, one that failed; MNIST, t2.large).
PUBLISHED: Final = "anwar-2021"
#: Steps of what the paper calls an epoch: its times are those of 70 steps of the global batch, but of 50 for
#: one machine and batches up to 6,400, which it does not say; see docs/advisor-numbers.md.
EPOCH_STEPS: Final = 70
#: Columns of a table of one's own; it may have ``usd_per_hour``, too. Others are passed over.
COLUMNS: Final = ("workers", "batch_size", "latency_ms", "time_per_epoch_s")
PRICE: Final = "usd_per_hour"
#: A table of one's own has at most so many rows, and bytes.
MOST_ROWS: Final = 10_000
MOST_BYTES: Final = 1_000_000
_MOST_WORKERS: Final = 1000
_SHOWN_MISTAKES: Final = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A measured cluster.

    Attributes:
        workers: how many, each on a machine of its own.
        batch: global batch, samples.
        latency_ms: between the machines, one way; None if unknown.
        time_s: of an epoch, as it was written down; None where the batch did not fit.
        steps: that those seconds are of.
        usd_per_hour: price of all its machines; None if the table has none.
        point: what the step-time model learns from it.
    """

    workers: int
    batch: float
    latency_ms: float | None
    time_s: float | None
    steps: float = EPOCH_STEPS
    usd_per_hour: float | None = None
    point: Point | None = None

    @property
    def epoch_s(self) -> float | None:
        """Seconds of an epoch that has as many steps as those of all other rows."""
        return None if self.time_s is None else self.time_s * EPOCH_STEPS / self.steps

    @property
    def words(self) -> str:
        """``batch 6400 at 20 ms``."""
        latency = "an unknown latency" if self.latency_ms is None else f"{self.latency_ms:g} ms"
        return f"batch {self.batch:g} at {latency}"


@dataclass(frozen=True)
class MeasuredTable:
    """What was measured of one job.

    Attributes:
        name: of the table.
        rows: in its order.
        memory: what a worker took at most, in bytes, by its share of the batch (NaN if unknown).
        machine_bytes: memory of a machine like those of the rows; None if unknown.
    """

    name: str
    rows: tuple[Row, ...]
    memory: tuple[tuple[float, float], ...] = ()
    machine_bytes: float | None = None

    @property
    def measured(self) -> list[Row]:
        """Rows with a time."""
        return [row for row in self.rows if row.time_s is not None]

    def fits(self, workers: int, batch: float) -> bool:
        """Whether a batch fits into so many machines, as far as the table says.

        What failed on one machine fails on others with the same samples each, at any latency; a size that was
        measured with this batch fits. Else a machine must have the memory, by what was seen of it.
        """
        if any(row.workers == workers and math.isclose(row.batch, batch) for row in self.measured):
            return True
        failed = [row.batch / row.workers for row in self.rows if row.time_s is None]
        if batch / workers >= min(failed, default=math.inf) * (1 - 1e-9):
            return False
        return not self.machine_bytes or not self.needs_bytes(workers, batch) > FULL * self.machine_bytes

    def needs_bytes(self, workers: int, batch: float) -> float:
        """Memory that each of so many workers needs for its share of a batch; NaN if nothing was seen."""
        return float(memory_at(self.memory, np.array([batch / workers]))[0])

    @classmethod
    def of_measurements(
        cls, name: str, measured: Sequence[Measurement], machine_bytes: float | None = None
    ) -> MeasuredTable:
        """What was measured of one's own job; of points without a batch only the model learns.

        Args:
            name: of the table.
            measured: on one type of machine; those without a step time count as not measured.
            machine_bytes: main memory of such a machine, if it is known.
        """
        points = [each.point for each in measured if each.point is not None]
        return cls(
            name,
            tuple(
                Row(
                    point.workers,
                    point.local_batch * point.workers if point.local_batch else math.nan,
                    0.0 if point.nodes == 1 else point.latency_ms,
                    point.step_time_s * EPOCH_STEPS,
                    point=point,
                )
                for point in points
                if point.step_time_s is not None
            ),
            memory_seen([(each.point, each.memory_bytes) for each in measured]),
            machine_bytes,
        )

    @classmethod
    def read(cls, text: str, name: str) -> MeasuredTable:
        """Read a table of one's own: CSV with `COLUMNS`; no seconds: it does not fit.

        Args:
            text: of the file.
            name: of the file, for messages.

        Raises:
            UsageError: naming for each mistake the line and the column.
        """
        if len(text) > MOST_BYTES:
            raise UsageError(f"{name}: more than {MOST_BYTES:,} bytes", "Leave out what is not needed.")
        reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""))
        with fails_as(f"{name}: is no CSV", "Save it as plain CSV.", on=csv.Error):
            header = [column.strip() for column in reader.fieldnames or ()]
            reader.fieldnames = header
            lines = [(reader.line_num, cells) for cells in reader]
        if missing := [column for column in COLUMNS if column not in header]:
            raise UsageError(
                f"{name}:1: no column {', '.join(missing)}", f"The first line is: {','.join(COLUMNS)}"
            )
        rows, mistakes = [], []
        for line, cells in lines:
            try:
                rows.append(_row(cells))
            except ValueError as error:
                mistakes.append(f"{name}:{line}: {error}")
        if len(rows) > MOST_ROWS:
            mistakes.append(f"{name}: {len(rows):,} rows, and {MOST_ROWS:,} are the most")
        if not rows and not mistakes:
            mistakes.append(f"{name}: has a header but no rows")
        if mistakes:
            more = len(mistakes) - _SHOWN_MISTAKES
            raise UsageError(
                "\n".join(mistakes[:_SHOWN_MISTAKES]) + (f"\n... and {more} more" if more > 0 else ""),
                "time_per_epoch_s may be empty: the batch does not fit. latency_ms may be: it is unknown.",
            )
        return cls(name, tuple(rows))

    @classmethod
    def of_file(cls, file: Path) -> MeasuredTable:
        """Read a table of one's own.

        Raises:
            UsageError: it cannot be read, or has mistakes.
        """
        with fails_as(f"{file}: cannot be read", "Name a CSV file in UTF-8."):
            return cls.read(file.read_text("utf-8-sig"), str(file))

    @classmethod
    @cache
    def published(cls) -> MeasuredTable:
        """That of Anwar et al., with the steps that their epochs really had."""
        text = files("trainmaster.advisor.papers").joinpath("anwar.csv").read_text("utf-8")
        rows = [
            _with(row, 50 if row.workers == 1 and row.batch <= 6400 else EPOCH_STEPS)
            for row in cls.read(text, PUBLISHED).rows
        ]
        return cls(PUBLISHED, tuple(rows))


def _row(cells: dict[str, str]) -> Row:
    """A line.

    Raises:
        ValueError: with the column, what was found, and what would be right.
    """
    workers = _number(cells, "workers", 1)
    batch, latency_ms = _number(cells, "batch_size", 1), _number(cells, "latency_ms", 0)
    time_s, usd_per_hour = _number(cells, "time_per_epoch_s", 0), _number(cells, PRICE, 0)
    if workers is None or batch is None:
        raise ValueError(f"{'workers' if workers is None else 'batch_size'}: is empty; a number is needed")
    if workers != int(workers) or workers > _MOST_WORKERS:
        raise ValueError(f"workers: found {workers:g}; a whole number from 1 to {_MOST_WORKERS} is needed")
    if time_s == 0:
        raise ValueError("time_per_epoch_s: found 0; more than zero is needed, or nothing: it does not fit")
    return _with(Row(int(workers), batch, latency_ms, time_s, usd_per_hour=usd_per_hour), EPOCH_STEPS)


def _with(row: Row, steps: float) -> Row:
    """The row with its steps, and the point that the model learns from."""
    point = None
    if row.time_s is not None:
        point = Point(
            Strategy.ALLREDUCE,
            row.workers,
            nodes=row.workers,
            local_batch=row.batch / row.workers,
            latency_ms=row.latency_ms,
            step_time_s=row.time_s / steps,
        )
    return Row(row.workers, row.batch, row.latency_ms, row.time_s, steps, row.usd_per_hour, point)


def _number(cells: dict[str, str], column: str, least: float) -> float | None:
    text = (cells.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column}: found {text!r}; a number is needed") from None
    if not least <= value <= MOST:
        raise ValueError(f"{column}: found {text!r}; a number from {least:g} to {MOST:g} is needed")
    return value


def nearest(rows: Sequence[Row], batch: float, latency_ms: float) -> str:
    """The row that comes next, in words."""
    known = [row for row in rows if row.batch > 0]
    if not known:
        return "The table has no measured rows."

    def distance(row: Row) -> float:
        apart_ms = math.inf if row.latency_ms is None else abs(row.latency_ms - latency_ms)
        return abs(math.log(row.batch / batch)) + min(apart_ms, 1e6) / 20

    return f"The nearest measured row is {min(known, key=distance).words}."
