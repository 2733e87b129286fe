"""How many machines for a batch size and a latency: Anwar's question, answered by the step-time model.

Anwar et al., "Recommender system for optimal distributed deep learning in cloud datacenters", 2021,
section 4, minimise ``alpha * time + beta * price`` over what they measured, below a budget C. `lookup` does
that. Here what was measured counts as measured, and the model answers for all other sizes, batches and
latencies, with an interval that says how good that is. Where both are known and far apart, both are told:
23 of the published points, all with four machines, are slower than the model can explain.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from statistics import median

from trainmaster.advisor.model.profile import Point
from trainmaster.advisor.model.steptime import StepTimeModel
from trainmaster.spec import Strategy
from trainmaster.spec.errors import NotFoundError, UsageError

#: Name of the profile that the paper has published (113 rows of its table; MNIST, TensorFlow, t2.large).
PUBLISHED = "anwar-2021"
#: Steps of what the paper calls an epoch: its times are those of 70 steps of the global batch, but of 50 for
#: one machine and batches up to 6,400, which it does not say; see docs/advisor.md.
EPOCH_STEPS = 70


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked.

    Attributes:
        batch: global batch, samples per step of all workers.
        latency_ms: between machines, one way.
        steps: that the time is told for.
        alpha: weight of the time, per second.
        beta: weight of the price, per US dollar and hour.
        usd_per_hour: price of one machine.
        max_usd_per_hour: what all machines may cost (the paper's C); None is no cap.
        max_workers: None for as many as were measured.
    """

    batch: float
    latency_ms: float
    steps: int = EPOCH_STEPS
    alpha: float = 1.0
    beta: float = 0.0
    usd_per_hour: float = 0.0
    max_usd_per_hour: float | None = None
    max_workers: int | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of workers, each on a machine of its own.

    Attributes:
        workers: how many.
        time_s: of the wished steps, seconds: as it was measured, else the model's best guess.
        low_s, high_s: 5 % and 95 % quantiles of the model.
        is_measured: whether exactly this was measured.
        usd_per_hour: of all of them.
        objective: what is minimised.
        bottleneck: what limits it, in words.
    """

    workers: int
    time_s: float
    low_s: float
    high_s: float
    is_measured: bool
    usd_per_hour: float
    objective: float
    bottleneck: str


def recommend(points: Sequence[Point], wish: Wish) -> list[Candidate]:
    """All numbers of workers that may be had, the best first; of equal ones the smaller.

    Args:
        points: what was measured of the job, with step times.
        wish: what is asked.

    Raises:
        UsageError: a wish that is no number of samples or milliseconds, or a cap that not one machine keeps.
        NotFoundError: nothing was measured.
    """
    if not wish.batch >= 1 or not wish.latency_ms >= 0 or wish.steps < 1:
        raise UsageError(
            f"batch {wish.batch:g}, latency {wish.latency_ms:g} ms, {wish.steps} steps",
            "Give a batch of 1 or more samples, 0 or more milliseconds, and 1 or more steps.",
        )
    measured = [point for point in points if point.step_time_s is not None]
    if not measured:
        raise NotFoundError(
            "the profile has no measured step times", "Run the job, or `trainmaster quote` it."
        )
    most = wish.max_workers or max(point.workers for point in measured)
    sizes = [
        n
        for n in range(1, int(min(most, wish.batch)) + 1)
        if wish.max_usd_per_hour is None or n * wish.usd_per_hour <= wish.max_usd_per_hour
    ]
    if not sizes:
        raise UsageError(
            f"not one machine of ${wish.usd_per_hour:g} per hour fits in ${wish.max_usd_per_hour:g}",
            "Raise max_usd_per_hour.",
        )
    like = measured[0]  # a job has one way of training together
    known = _medians(measured, wish)
    answer = _fitted(tuple(measured)).predict(
        [
            Point(
                like.sync,
                n,
                nodes=n,
                parameter_servers=like.parameter_servers,
                local_batch=wish.batch / n,
                latency_ms=wish.latency_ms if n > 1 else 0.0,
                nic_mbps=like.nic_mbps,
                gradient_bytes=like.gradient_bytes,
            )
            for n in sizes
        ]
    )
    found = []
    for index, n in enumerate(sizes):
        time_s = known.get(n, float(answer.typical[index])) * wish.steps
        price = n * wish.usd_per_hour
        found.append(
            Candidate(
                n,
                time_s,
                float(answer.low[index]) * wish.steps,
                float(answer.high[index]) * wish.steps,
                n in known,
                price,
                wish.alpha * time_s + wish.beta * price,
                answer.bottleneck[index],
            )
        )
    return sorted(found, key=lambda candidate: (candidate.objective, candidate.workers))


@lru_cache(maxsize=8)
def _fitted(points: tuple[Point, ...]) -> StepTimeModel:
    """A fit of a hundred points takes about a second; the same profile is asked again and again."""
    return StepTimeModel.fit(points)


def _medians(points: Sequence[Point], wish: Wish) -> dict[int, float]:
    """Step times in seconds that were measured at exactly this batch and latency, by number of workers."""
    found: dict[int, list[float]] = {}
    for point in points:
        is_it = (
            point.local_batch is not None
            and math.isclose(point.local_batch * point.workers, wish.batch)
            and (point.workers == 1 or (point.latency_ms or 0.0) == wish.latency_ms)
        )
        if is_it and point.step_time_s is not None:
            found.setdefault(point.workers, []).append(point.step_time_s)
    return {workers: median(times) for workers, times in found.items()}


@cache
def published_points() -> tuple[Point, ...]:
    """What Anwar et al. have measured, with the steps that their epochs really had."""
    points = []
    text = files("trainmaster.advisor.papers").joinpath("anwar.csv").read_text("utf-8")
    for row in csv.DictReader(text.splitlines()):
        if not row["time_per_epoch_s"]:
            continue
        n, batch = int(row["workers"]), float(row["batch_size"])
        steps = 50 if n == 1 and batch <= 6400 else EPOCH_STEPS
        points.append(
            Point(
                Strategy.ALLREDUCE,
                n,
                nodes=n,
                local_batch=batch / n,
                latency_ms=float(row["latency_ms"]),
                step_time_s=float(row["time_per_epoch_s"]) / steps,
            )
        )
    return tuple(points)
