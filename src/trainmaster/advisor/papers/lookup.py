"""``quote --policy lookup``: the rule of Anwar et al. on what was measured of a recipe's job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from trainmaster.advisor.market.workload import Workload
from trainmaster.advisor.model.measurement import Measurement, Point
from trainmaster.advisor.papers.measured_table import MeasuredTable, Row
from trainmaster.advisor.papers.recommend import RecommendQuery, by_rule
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quote import ClusterShape, ExperimentQuote, Rented
from trainmaster.dataclass import dataclass
from trainmaster.providers import Catalogue, Offer
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.spec.errors import NotFoundError, UsageError


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """What bounds and weighs what was measured.

    Attributes:
        max_workers: of one task. usd_per_hour: of the cluster. usd: of the whole training.
        time_weight, cost_weight: the paper's alpha and beta.
    """

    max_workers: int | None = None
    usd_per_hour: float | None = None
    usd: float | None = None
    time_weight: float = 1.0
    cost_weight: float = 0.0


def looked_up(
    workload: Workload, history: Sequence[Measurement], catalogue: Catalogue, limits: LookupLimits
) -> ExperimentQuote:
    """The fastest cluster that was measured with the recipe's batch and latency, and keeps the limits.

    Args:
        workload: a number of workers that cannot share its batch evenly may have been measured, too.
        history: of this job, the newest first.
        catalogue: has the offers that may be rented.
        limits: what else counts.

    Raises:
        NotFoundError: nothing of it was measured, naming the nearest.
        UsageError: its length or its batch is unknown, or nothing keeps the limits.
    """
    name = workload.name
    points = [
        (m.point, offer, m.does_not_fit)
        for m in history
        if m.point is not None
        and (m.point.step_time_s is not None or m.does_not_fit)
        and m.point.workers >= min(workload.lengths)
        and (offer := _measured_on(m.offer, catalogue)) is not None
    ]
    if not points:
        raise NotFoundError(
            f"experiments.{name}: lookup needs measured clusters, and none of the offers of "
            f"'{catalogue.name}' was measured yet",
            "A run that is over is one, and so are rows of a CSV (measurements). "
            "`trainmaster quote` with provider local measures some here.",
        )
    offer = points[0][1]  # the newest measurement's
    batch = _batch(workload, [point for point, _, _ in points])
    rows = [_row(workload, point, batch, offer) for point, of, _ in points if of == offer]
    wish = RecommendQuery(
        batch,
        workload.latency_ms,
        alpha=limits.time_weight,
        beta=limits.cost_weight,
        max_usd_per_hour=limits.usd_per_hour,
        max_usd=limits.usd,
        max_workers=limits.max_workers,
        rule="lookup",
    )
    try:
        candidates, notes = by_rule(MeasuredTable(name, tuple(rows)), wish)
    except (NotFoundError, UsageError) as error:
        hint = error.hint
        if isinstance(error, UsageError):
            hint = "Raise budget.per_hour, budget.total or the most workers (max_workers)."
        raise type(error)(f"experiments.{name}: {error.args[0]}", hint) from None
    best = candidates[0]
    usd = best.usd or 0.0  # each row has its offer's price
    nodes = next(p.nodes or 1 for p, of, _ in points if of == offer and p.workers == best.workers)
    shape = ClusterShape(worker=Rented.of(offer, nodes), workers=best.workers)
    if best.note:
        notes = (*notes, best.note)
    return ExperimentQuote(
        name,
        shape,
        Interval(best.time_s, best.time_s, best.time_s),
        Interval(usd, usd, usd),
        measurements=sum(row.time_s is not None for row in rows),
        candidates=len(candidates),
        notes=notes,
    )


def _batch(workload: Workload, points: Sequence[Point]) -> float:
    """The global batch that the recipe has, or the only one that was measured.

    Raises:
        UsageError: it says none, and several were measured.
    """
    fewest = min(workload.lengths)
    local = workload.lengths[fewest].local_batch
    if local is not None:
        return float(local * fewest)
    measured = sorted({p.local_batch * p.workers for p in points if p.local_batch is not None})
    if len(measured) > 1:
        some = ", ".join(f"{each:g}" for each in measured[:8])
        raise UsageError(
            f"experiments.{workload.name}: batches {some} were measured, and the recipe names none",
            "Set `batch`.",
        )
    return measured[0] if measured else 1.0


def _row(workload: Workload, point: Point, batch: float, offer: Offer) -> Row:
    """What was measured as a row of the job's table: the recipe's batch has one name for all sizes."""
    length = workload.lengths.get(point.workers)
    wanted = length.local_batch if length is not None else batch / point.workers
    has_it = (
        wanted is None
        or point.local_batch is None
        or math.isclose(point.local_batch, wanted)
        or (length is None and abs(point.local_batch - wanted) < 1)  # it cannot be shared evenly
    )
    steps = (length or workload.lengths[min(workload.lengths)]).steps
    if steps is None:
        raise UsageError(
            f"experiments.{workload.name}: its length is unknown", "Set `steps`, or `epochs` and `examples`."
        )
    nodes = point.nodes or 1
    return Row(
        point.workers,
        batch if has_it else (point.local_batch or 0.0) * point.workers,
        0.0 if nodes == 1 else point.latency_ms,
        None if point.step_time_s is None else steps * point.step_time_s,
        usd_per_hour=offer.price_usd_per_hour * nodes,
        point=replace(point, step_time_s=None),
    )


def _measured_on(name: str, catalogue: Catalogue) -> Offer | None:
    """The catalogue's offer that something was measured on; this machine is called ``local`` everywhere."""
    own = next((offer for offer in catalogue if capabilities_of(offer.provider).is_here), None)
    return own if name == "local" else catalogue.cheapest(name)
