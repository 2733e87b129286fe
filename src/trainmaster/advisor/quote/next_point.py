"""Which measurement would narrow the quote most, and what it would cost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.model.physics import step_time
from trainmaster.advisor.model.shapes import Floats
from trainmaster.advisor.quote.choosing import OutcomeSampler, QuoteLimits
from trainmaster.advisor.quote.deciding import LEAST_CHANCE, chance_to_change
from trainmaster.advisor.quote.interval import Interval
from trainmaster.advisor.quote.quantiles import interval
from trainmaster.advisor.quote.quote import NextMeasurement
from trainmaster.advisor.quote.timing import Timing

#: Seconds of steps that a profiling attempt looks at.
LOOK_S: Final = 60.0
#: A quote as narrow as this needs no more measuring.
_NARROW: Final = 1.12
#: A measurement must leave at most this share of an interval's logarithm, of a step's time and of the whole
#: time, to be worth naming.
_WORTH: Final = 0.9


def next_measurement(
    timing: Timing,
    target: Candidates,
    rivals: Candidates,
    drawing: OutcomeSampler,
    limits: QuoteLimits | None,
) -> NextMeasurement | None:
    """The shape on the chosen machine whose measurement says most about the chosen cluster.

    What a measurement at s leaves of the variance at the target is ``1 - correlation^2`` of their
    predictions (both drawn from the same posterior; V-optimality of one point). All take the same time, and
    dollars as they have machines: what counts is the drop of variance per second and per dollar, in equal
    parts, and of equals the larger cluster. Candidates are up to half of the target.

    Args:
        timing: of the target.
        target: the one candidate that was chosen.
        rivals: candidates that it was compared with.
        drawing: draws these.
        limits: of the run; None if experiments share them, so that it cannot be told what is decided by one.

    Returns:
        None if the quote is narrow already, nothing would help, or (of a quote that one can plan by) nothing
        that is measured can change the decision.
    """
    model, workload = timing.knowledge.model, timing.workload
    if model is None:
        return None
    chosen = int(target.workers[0])
    sizes = sorted(
        {n for n in workload.lengths if n <= max(chosen / 2, 1)} & {1, 2, 4, 8, 16, 32, 64, chosen // 2}
    )
    machine = int(target.machine[0])
    per_node = float(timing.machines.per_node[machine])
    rows = [_with(target, workers, per_node, workload.lengths[workers].local_batch) for workers in sizes]
    log_target = _log_step(timing, target)[:, 0]
    now = float(np.std(log_target))
    width = math.exp(1.645 * now)
    if width <= _NARROW:
        return None
    offer = timing.offers[int(timing.machines.index[machine])]
    time_now = interval(timing.time_s(target)[:, 0])
    both = Candidates.joined([target, rivals])
    times = None if time_now.is_wide or limits is None else drawing.time_s(both)
    found: list[tuple[float, int, NextMeasurement]] = []
    for workers, row in zip(sizes, rows, strict=True):
        log_step = _log_step(timing, row)[:, 0]
        noise = model.noise
        shared = float(np.cov(log_step, log_target)[0, 1])
        left = 1 - shared**2 / max(now**2 * (float(np.var(log_step)) + noise**2), 1e-12)
        then = min(math.hypot(now * math.sqrt(min(max(left, 0.0), 1.0)), noise), now)
        duration = timing.knowledge.startup_s + timing.knowledge.warmup_s + LOOK_S
        nodes = float(row.machines[0])
        price = (timing.machines.price[machine] * nodes) * duration / 3600
        if then > _WORTH * now:
            continue
        time_then = _time_then(timing, target, then / now)
        if _doubt(time_then) > _WORTH * _doubt(time_now):
            continue  # a job that is over soon: in doubt is the time until it begins
        if times is not None and limits is not None:
            cost_usd, needed_usd = drawing.cost_usd(times, both), drawing.needed_usd(times, both)
            if chance_to_change(log_step, noise, times, cost_usd, limits, needed_usd) < LEAST_CHANCE:
                continue
        gain = (now**2 - then**2) / math.sqrt(max(nodes, 1.0))
        narrow = NextMeasurement(
            workers,
            offer.instance_type,
            duration,
            float(price),
            width,
            math.exp(1.645 * then),
            time_then,
        )
        found.append((round(gain, 6), workers, narrow))
    return max(found, key=lambda each: each[:2])[2] if found else None


def _doubt(time_s: Interval) -> float:
    """The interval's logarithm."""
    return math.log(time_s.p95 / time_s.p5)


def _time_then(timing: Timing, target: Candidates, left: float) -> Interval:
    """The whole time, once so much is left of the doubt (standard deviation, log) about a step's time.

    In each world the steps' deviation from their median shrinks; what is no training stays as it is.
    """
    log_step = np.log(timing.step_s(target))
    return interval(timing.time_s(target, np.exp((left - 1) * (log_step - np.median(log_step))))[:, 0])


def _log_step(timing: Timing, some: Candidates) -> Floats:
    """(S, m) log seconds per step."""
    model = timing.knowledge.model
    assert model is not None
    shapes = timing.shapes(some)
    slow = timing.slowness(some)
    return np.log(step_time(model.draws, shapes, slowness=slow)) + model.deviations(shapes)


def _with(target: Candidates, workers: int, per_node: float, batch: int | None) -> Candidates:
    """The target's cluster with another number of workers."""
    nodes = math.ceil(workers / per_node)
    changes = {
        "workers": workers,
        "nodes": nodes,
        "machines": nodes,
        "at_once": 1,
        "batch": np.nan if batch is None else batch,
    }
    return replace(target, **{name: np.array([float(value)]) for name, value in changes.items()})
