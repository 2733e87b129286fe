"""Step times of a type of machine that was measured less, predicted from those of the best-known type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.physics import log_time
from trainmaster.advisor.model.shapes import KINDS, Columns, Floats, Shapes
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec.log_normal import LogNormal

#: How far step times on another type are from what the best-known one says of them (log).
TRANSFER_SPREAD: Final = 0.45
#: How far a point of its own is from that (log), where it says how much slower a machine computes.
_POINT: Final = 0.2
#: What published figures are off by at least (log).
_LEAST: Final = 0.1
#: How much slower that may be (log).
_SLOWNESS: Final = np.linspace(-5.0, 5.0, 401)


def transferred_points(
    model: StepTimeModel,
    there: Sequence[Point],
    own: Sequence[Point],
    slower: LogNormal,
    nic_mbps: float | None,
) -> list[Point]:
    """Measured points of the best-known type as they would be on another one.

    Physics says how a step changes when a machine computes slower, and has another network. Only shapes that
    were not measured on the other one count: where it was, its own points are all that is needed.

    Args:
        model: of the best-known type.
        there: what was measured on it.
        own: what was measured on the other one.
        slower: how many times as long the other one computes, as published figures say.
        nic_mbps: of its network card; None if unknown.
    """
    kind, known = KINDS[model.kind], {_shape(point) for point in own}
    missing: dict[tuple[float | None, ...], list[Point]] = {}
    for point in there:
        if point.sync is kind and _shape(point) not in known:
            missing.setdefault(_shape(point), []).append(point)
    if not missing:
        return []
    seen = [some[0] for some in missing.values()]
    here = [replace(p, nic_mbps=nic_mbps or p.nic_mbps) if (p.nodes or 1) > 1 else p for p in seen]
    times = np.array([np.median([p.step_time_s or np.nan for p in some]) for some in missing.values()])
    slowness = _slowness(model, [point for point in own if point.sync is kind], slower)
    longer = _log_times(model, here, slowness) - _log_times(model, seen)
    return [
        replace(point, step_time_s=seconds)
        for point, seconds in zip(here, (times * np.exp(longer[0])).tolist(), strict=True)
    ]


def _slowness(model: StepTimeModel, own: Sequence[Point], slower: LogNormal) -> float:
    """How many times as long it computes, as its own points say next to published figures."""
    off = ((_SLOWNESS - np.log(slower.median)) / max(slower.spread, _LEAST)) ** 2
    if own:
        shapes = Shapes.of(Columns.of(own), model.context)
        expected = _log_times(model, own, np.exp(_SLOWNESS)[:, None]) + np.median(
            model.deviations(shapes), axis=0
        )
        measured = np.log([point.step_time_s or np.nan for point in own])
        off = off + (((measured - expected) / _POINT) ** 2).sum(1)
    return float(np.exp(_SLOWNESS[off.argmin()]))


def _log_times(model: StepTimeModel, points: Sequence[Point], slowness: Floats | float = 1.0) -> Floats:
    """(1 or as many as there are slownesses, n) log seconds that physics expects."""
    return log_time(model.theta[None], Shapes.of(Columns.of(points), model.context), slowness=slowness)


def _shape(point: Point) -> tuple[float | None, ...]:
    return point.workers, point.nodes, point.parameter_servers, point.local_batch
