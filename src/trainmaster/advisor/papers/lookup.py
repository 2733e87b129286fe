"""Anwar's recommender: the fastest measured cluster for a batch size and a latency.

Anwar et al., "Recommender system for optimal distributed deep learning in cloud datacenters", 2021,
sections 4 and 7.1. A table lookup; what the paper leaves open is decided in each docstring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainmaster.spec.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of the table.

    Attributes:
        workers: size of the cluster.
        batch: global batch, samples.
        latency_ms: between the nodes, one way.
        time_s: seconds per epoch; None where the run failed (rows that are blank are passed over).
    """

    workers: int
    batch: float
    latency_ms: float
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Found:
    """The recommended size, its time in seconds, and whether it was measured or interpolated."""

    workers: int
    time_s: float
    interpolated: bool = False


def lookup(
    table: Iterable[Measured],
    batch: float,
    latency_ms: float,
    *,
    time_weight: float = 1.0,
    cost_weight: float = 0.0,
    usd_per_hour: float = 1.0,
) -> Found:
    """The cluster with the least ``alpha * seconds + beta * USD per hour`` at exactly this batch and latency.

    Section 4, equations 6 to 9; the paper uses alpha = 1, beta = 0 throughout. Ties go to the smaller
    cluster (theirs to the larger; no winning tie occurs in their data).

    Args:
        table: what was measured.
        batch: global batch, samples.
        latency_ms: one way.
        time_weight: the paper's alpha.
        cost_weight: the paper's beta.
        usd_per_hour: price of one worker.

    Raises:
        NotFoundError: nothing was measured there (theirs recommends 0 workers), naming the nearest row.
    """
    rows = [row for row in table if row.time_s is not None]
    here = {row.workers: row.time_s for row in rows if row.batch == batch and row.latency_ms == latency_ms}
    if not here:
        raise NotFoundError(
            f"batch {batch:g} at {latency_ms:g} ms was not measured", _nearest(rows, batch, latency_ms)
        )
    return _best(
        {n: t for n, t in here.items() if t is not None}, time_weight, cost_weight, usd_per_hour, False
    )


def interpolate(
    table: Iterable[Measured],
    batch: float,
    latency_ms: float,
    *,
    time_weight: float = 1.0,
    cost_weight: float = 0.0,
    usd_per_hour: float = 1.0,
) -> Found:
    """The same between measured rows: log time linear in log batch and in latency, per cluster size.

    Not in the paper. A size takes part only if the batch and the latency lie within what was measured
    of it: nothing is extrapolated. One worker has no network: its rows hold at every latency.

    Raises:
        NotFoundError: no size was measured around this batch and latency.
    """
    rows = [row for row in table if row.time_s is not None]
    times: dict[int, float] = {}
    for workers in sorted({row.workers for row in rows}):
        own = [row for row in rows if row.workers == workers]
        time = _between(own, batch, latency_ms if workers > 1 else None)
        if time is not None:
            times[workers] = time
    if not times:
        raise NotFoundError(
            f"batch {batch:g} at {latency_ms:g} ms is outside of what was measured",
            _nearest(rows, batch, latency_ms),
        )
    return _best(times, time_weight, cost_weight, usd_per_hour, True)


def _best(
    times: dict[int, float], time_weight: float, cost_weight: float, price: float, interpolated: bool
) -> Found:
    def objective(workers: int) -> tuple[float, int]:
        return time_weight * times[workers] + cost_weight * workers * price, workers

    workers = min(times, key=objective)
    return Found(workers, times[workers], interpolated)


def _between(rows: Sequence[Measured], batch: float, latency_ms: float | None) -> float | None:
    """Bilinear in (log batch, latency) on the log of the time; None outside."""
    latencies = {row.latency_ms for row in rows}
    if latency_ms is None:
        return _line([(math.log(r.batch), math.log(r.time_s or 1)) for r in rows], math.log(batch))
    points = []
    for latency in latencies:
        column = [(math.log(r.batch), math.log(r.time_s or 1)) for r in rows if r.latency_ms == latency]
        time = _line(column, math.log(batch))
        if time is not None:
            points.append((latency, math.log(time)))
    return _line(points, latency_ms)


def _line(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """Value on the piecewise linear curve through (x, log y); None outside."""
    below = max((p for p in points if p[0] <= x + 1e-9), default=None)
    above = min((p for p in points if p[0] >= x - 1e-9), default=None)
    if below is None or above is None:
        return None
    if above[0] == below[0]:
        return math.exp(below[1])
    share = (x - below[0]) / (above[0] - below[0])
    return math.exp(below[1] + share * (above[1] - below[1]))


def _nearest(rows: Sequence[Measured], batch: float, latency_ms: float) -> str:
    if not rows:
        return "The table has no measured rows."
    row = min(rows, key=lambda r: abs(math.log(r.batch / batch)) + abs(r.latency_ms - latency_ms) / 20)
    return f"The nearest measured row is batch {row.batch:g} at {row.latency_ms:g} ms."
