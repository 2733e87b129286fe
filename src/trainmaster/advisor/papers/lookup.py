"""Anwar's lookup: the fastest cluster that was measured, of a table and of what was measured of a job."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Interval, Rented
from trainmaster.providers import Catalogue, Offer
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import NotFoundError, UsageError


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


def looked_up(
    workload: Workload,
    history: Sequence[Measurement],
    catalogue: Catalogue,
    time_weight: float,
    cost_weight: float,
) -> ExperimentQuote:
    """Anwar's rule on what was measured of this very job."""
    name = workload.name
    points = [
        (m.point, offer)
        for m in history
        if m.point is not None
        and m.point.step_time_s is not None
        and m.point.workers in workload.lengths
        and (offer := _measured_on(m.offer, catalogue)) is not None
    ]
    if not points:
        raise NotFoundError(
            f"experiments.{name}: lookup needs measured clusters, and none of the offers of "
            f"'{catalogue.name}' was measured yet",
            "`trainmaster quote` with provider local measures some here; a finished run is one as well.",
        )
    offer = points[0][1]  # the newest measurement's
    seconds: dict[int, list[float]] = {}
    nodes: dict[int, int] = {}
    for point, of in points:
        if of != offer:
            continue
        steps = workload.lengths[point.workers].steps
        if steps is None:
            raise UsageError(
                f"experiments.{name}: its length is unknown", "Set `steps`, or `epochs` and `examples`."
            )
        seconds.setdefault(point.workers, []).append(steps * (point.step_time_s or 0.0))
        nodes.setdefault(point.workers, point.nodes or 1)
    table = [Measured(workers, 1.0, 0.0, median(each)) for workers, each in seconds.items()]
    found = lookup(
        table,
        1.0,
        0.0,
        time_weight=time_weight,
        cost_weight=cost_weight,
        usd_per_hour=offer.price_usd_per_hour,
    )
    shape = ClusterShape(worker=Rented.of(offer, nodes[found.workers]), workers=found.workers)
    hours = found.time_s / 3600
    time_s = Interval(found.time_s, found.time_s, found.time_s)
    cost = Interval(*[hours * shape.usd_per_hour] * 3)
    measurements = sum(map(len, seconds.values()))
    return ExperimentQuote(name, shape, time_s, cost, measurements=measurements, candidates=len(table))


def _measured_on(name: str, catalogue: Catalogue) -> Offer | None:
    """The catalogue's offer that something was measured on; this machine is called ``local`` everywhere."""
    own = next((offer for offer in catalogue if capabilities_of(offer.provider).is_here), None)
    return own if name == "local" else catalogue.cheapest(name)
