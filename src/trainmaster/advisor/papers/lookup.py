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
    """The recommended size and its time in seconds."""

    workers: int
    time_s: float


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

    def objective(workers: int) -> tuple[float, int]:
        return time_weight * times[workers] + cost_weight * workers * usd_per_hour, workers

    times = {workers: time for workers, time in here.items() if time is not None}
    best = min(times, key=objective)
    return Found(best, times[best])


def _nearest(rows: Sequence[Measured], batch: float, latency_ms: float) -> str:
    if not rows:
        return "The table has no measured rows."
    row = min(rows, key=lambda r: abs(math.log(r.batch / batch)) + abs(r.latency_ms - latency_ms) / 20)
    return f"The nearest measured row is batch {row.batch:g} at {row.latency_ms:g} ms."
