"""The step-time model: fitted to what was measured of one job, it predicts any other shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np

from trainmaster.advisor.model.discrepancy import AMPLITUDES, BATCH, NOISES, DiscrepancyCovariance
from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.measurement import Point
from trainmaster.advisor.model.physics import log_time, name_bottlenecks
from trainmaster.advisor.model.posterior import FEW, Measured, Posterior, RobustErrors, thinned
from trainmaster.advisor.model.priors import priors_of, shipped
from trainmaster.advisor.model.shapes import (
    ASYNCHRONOUS,
    SYNCHRONOUS,
    Bools,
    Columns,
    Floats,
    MeasuredContext,
    Shapes,
)
from trainmaster.dataclass import dataclass

_CHUNK: Final = 500
#: Of many points one is unexplained if its residual exceeds so many robust standard deviations ...
_FAR: Final = 4.0
#: ... and this factor on the time, log. Of a few, if it is off with this probability.
_FAR_LOG: Final = 0.3
_SURELY: Final = 0.5
#: More points than this teach nothing new, and would be slow: of parameters, and at all.
_MANY: Final = 40
_MOST: Final = 400
#: How much shorter than the discrepancy's the reach of an unexplained point is.
_LOCAL: Final = 1 / 8
#: A worker of the same job, but with servers instead of without, or the other way round (log).
_OTHER_KIND: Final = 0.3
_QUANTILES: Final = (0.05, 0.95)
#: Another point must leave at most this share of an interval's logarithm, which must be wider than this.
_WORTH: Final = 0.9
_NARROW: Final = 0.2
#: So many draws name a bottleneck.
_ASKED: Final = 48


@dataclass(frozen=True)
class Prediction:
    """Step times of m shapes, seconds.

    Attributes:
        typical: (m,) point estimate. It has the least percentage error, which punishes guesses that are too
            long; of synchronous servers it is the median.
        low, high: (m,) 5 % and 95 % quantiles of what would be measured.
        bottleneck: (m) in words.
    """

    typical: Floats
    low: Floats
    high: Floats
    bottleneck: tuple[str, ...]


@dataclass(frozen=True)
class NextPoint:
    """What to measure next.

    Attributes:
        workers, nodes: of the cluster.
        interval_now, interval_then: 95 % quantile over 5 %, typically of the shapes asked for.
    """

    workers: int
    nodes: int
    interval_now: float
    interval_then: float


@dataclass(frozen=True)
class StepTimeModel:
    """A fitted model of one kind of job. Make it with ``StepTimeModel.fit``.

    Attributes:
        kind: index into ``KINDS``.
        context: typical values of the measured columns.
        unexplained: (n,) True where physics cannot explain a measured point next to the others.
        residual: (n,) log measured - log predicted by the physics alone, all points.
    """

    kind: int
    context: MeasuredContext
    unexplained: Bools
    residual: Floats
    _all: Shapes
    _log_times: Floats
    _measured: Measured
    _posterior: Posterior

    @classmethod
    def fit(
        cls,
        points: Sequence[Point],
        seed: int = 0,
        experience: Experience | None = None,
        doubts: Sequence[float] = (),
        like: StepTimeModel | None = None,
    ) -> StepTimeModel:
        """Fit to the measured points of one job.

        Args:
            points: at least one, each with ``step_time_s``; of the kind of the first.
            seed: of the posterior's draws.
            experience: what other jobs have shown of the same machines.
            doubts: about each point (log), beside its noise; empty for none.
            like: of the same job on another type of machine, which is where to look first.

        Raises:
            ValueError: there are no points, or one has no time.
        """
        if not points or any(point.step_time_s is None for point in points):
            raise ValueError("no measured points" if not points else "a point without step_time_s")
        times = np.array([point.step_time_s for point in points], dtype=float)
        columns = Columns.of(points)
        doubted = np.array(doubts or [0.0] * len(times))
        return cls.fit_columns(columns, times, int(columns.kind[0]), seed, experience, doubted, like)

    @classmethod
    def fit_columns(
        cls,
        columns: Columns,
        times: Floats,
        kind: int,
        seed: int = 0,
        experience: Experience | None = None,
        doubts: Floats | float = 0.0,
        like: StepTimeModel | None = None,
    ) -> StepTimeModel:
        """Fit to measured shapes and their (n,) step times in seconds.

        Args:
            columns: what was measured; only rows of ``kind`` count, if there are any.
            times: (n,) seconds.
            kind: index into ``KINDS``.
            seed: of the posterior's draws.
            experience: what other jobs have shown of the same machines.
            doubts: (n,) about each row (log), beside its noise.
            like: see `fit`.
        """
        columns, times, doubt = _of_kind(columns, times, np.broadcast_to(doubts, times.shape), kind)
        context = MeasuredContext.of(columns)
        every = Shapes.of(columns, context)
        every = replace(every, guess=np.hypot(every.guess, doubt))
        priors = priors_of(columns, times, context, experience.priors(kind) if experience else shipped(kind))
        log_times = np.log(times)
        unexplained, inflation = np.zeros(len(times), dtype=bool), np.ones(len(times))
        if len(times) > FEW:
            some = thinned(np.arange(len(times)), _MANY)
            first = Measured(every[some], log_times[some], priors, RobustErrors.plain())
            unexplained, inflation = _unexplained(_residual(Posterior.of(first, seed), every, log_times))
        kept = thinned(np.flatnonzero(~unexplained), _MOST)
        measured = Measured.of(every[kept], log_times[kept], priors, inflation[kept])
        few = kept if len(kept) <= _MANY else thinned(kept, _MANY)
        posterior = Posterior.of(
            measured if few is kept else Measured.of(every[few], log_times[few], priors, inflation[few]),
            seed,
            like=like._posterior if like is not None and like.kind == kind else None,
        )
        if few is not kept:
            posterior = posterior.with_level(measured)
        if len(times) <= FEW:
            unexplained = posterior.off > _SURELY
        residual = _residual(posterior, every, log_times)
        return cls(kind, context, unexplained, residual, every, log_times, measured, posterior)

    @cached_property
    def expected(self) -> Floats:
        """(n,) seconds that physics expects of each measured point, explained or not."""
        log_expected: Floats = self._log_times - self.residual
        return np.exp(log_expected)

    @property
    def draws(self) -> Floats:
        """(S, P) parameters from the posterior."""
        return self._posterior.theta

    @property
    def effective(self) -> float:
        """How many of the particles of the posterior are felt."""
        return self._posterior.effective

    @property
    def noise(self) -> float:
        """How well a measurement repeats, log seconds: the mean over the posterior."""
        return float(self._noise.mean())

    def predict(self, shapes: Sequence[Point]) -> Prediction:
        """Step times with 90 % intervals and bottlenecks."""
        return self.predict_columns(Columns.of(shapes))

    def predict_columns(self, columns: Columns) -> Prediction:
        """The same for columns of length m. A row's answer does not depend on the other rows."""
        shapes = Shapes.of(columns, self.context)
        found = np.empty((3, len(shapes)))
        words: list[str] = []
        for start in range(0, len(shapes), _CHUNK):
            rows = slice(start, start + _CHUNK)
            samples = np.sort(self.samples(shapes[rows]), axis=0)
            low, high = np.quantile(samples, _QUANTILES, axis=0)
            surprise, spread = self._surprise(shapes[rows])
            found[0, rows] = np.minimum(low, low + surprise - spread)
            found[1, rows] = self._typical(samples)
            found[2, rows] = np.maximum(high, high + surprise + spread)
            words += self.bottlenecks(shapes[rows])
        low, typical, high = np.exp(found)
        return Prediction(typical, low, high, tuple(words))

    def _typical(self, samples: Floats) -> Floats:
        """(m,) of (S, m) log seconds in order."""
        if self.kind == SYNCHRONOUS:
            return np.asarray(np.median(samples, axis=0), dtype=float)
        weight = np.cumsum(np.exp(samples.mean(0) - samples), axis=0)
        middle = (weight < 0.5 * weight[-1]).sum(0)
        return np.asarray(samples[middle, np.arange(samples.shape[1])], dtype=float)

    def _surprise(self, shapes: Shapes) -> tuple[Floats, Floats]:
        """Where most measured points near by are unexplained: their residual and its spread, (m,) each.

        The estimate is not bent towards them, but the interval has to reach what was seen there.
        """
        none = np.zeros(len(shapes))
        if not self.unexplained.any():
            return none, none
        near = DiscrepancyCovariance.of(self._all, shapes, reach=_LOCAL).shape
        total = near.sum(0) + 1e-12
        weight = near[self.unexplained]
        amount = weight.sum(0) + 1e-12
        mean = self.residual[self.unexplained] @ weight / amount
        spread = np.sqrt(self.residual[self.unexplained] ** 2 @ weight / amount - mean**2 + 1e-12)
        here = (weight.sum(0) > 0.5 * total) & (total > 0.1)
        return np.where(here, mean, 0.0), np.where(here, 1.645 * spread, 0.0)

    def samples(self, shapes: Shapes) -> Floats:
        """(S, m) log seconds that would be measured, drawn from the posterior predictive."""
        return log_time(self.draws, shapes) + self.deviations(shapes)

    def deviations(self, shapes: Shapes) -> Floats:
        """(S, m) what to add to the log of the physics' seconds: discrepancy and noise, drawn.

        They depend on how many workers there are and where, not on how fast their devices or networks are.
        """
        mean, variance = self._discrepancy(shapes)
        spread = np.sqrt(variance + (self._noise**2 * self._tails)[:, None])
        return np.asarray(mean + spread * self._errors[:, None], dtype=float)

    def next_point(self, asked: Shapes) -> NextPoint | None:
        """The cluster of at most half the largest that is asked for whose measurement would say most.

        It leaves ``1 - correlation^2`` of the variance at the asked shapes (V-optimality of one point). Of
        nearly equals it is the larger cluster.

        Returns:
            None if the intervals are narrow already, or nothing would help.
        """
        most, machines = asked.workers.max() / 2, asked.nodes.max() / 2
        packed = {self.context.per_node, 1.0} if self.kind == 0 else {1.0}
        counts = 2.0 ** np.arange(7)
        sizes = {(k * r, k) for r in packed for k in counts.tolist() if k * r <= most and k <= machines}
        new = sorted(sizes - set(zip(self._all.workers.tolist(), self._all.nodes.tolist(), strict=True)))
        if not new:
            return None
        workers, nodes = np.array(new).T
        like = replace(asked, batch=np.full(len(asked), np.median(asked.batch)))[[0] * len(new)]
        some, asked = replace(like, workers=workers, nodes=nodes, per_node=workers / nodes), asked[:_CHUNK]
        (at, doubt), (far, rest) = (self._discrepancy(shapes) for shapes in (some, asked))
        at, far = log_time(self.draws, some) + at, log_time(self.draws, asked) + far
        shared = ((at - at.mean(0)).T @ (far - far.mean(0)) / len(far)) ** 2
        shared /= (at.var(0) + doubt.mean(0) + self.noise**2)[:, None]
        left = np.sqrt(np.maximum(1 - shared.mean(1) / (far.var(0) + rest.mean(0)).mean(), 0.0))
        best = len(left) - 1 - int(np.round(left, 2)[::-1].argmin())
        wide = float(np.median(np.diff(np.quantile(self.samples(asked), _QUANTILES, axis=0), axis=0)))
        if left[best] > _WORTH or wide < _NARROW:
            return None
        return NextPoint(*map(int, new[best]), *np.exp([wide, wide * left[best]]).tolist())

    def _discrepancy(self, shapes: Shapes) -> tuple[Floats, Floats]:
        """(S, m) mean of what to add to the log of the physics' seconds, and its variance."""
        measured, errors = self._measured, self._measured.errors
        which, back = np.unique(self._posterior.hypothesis, return_inverse=True)
        near = DiscrepancyCovariance.of(measured.shapes, shapes)
        amplitude = AMPLITUDES[errors.cell[which] // len(NOISES)]
        towards = near.covariance(amplitude)
        gain = errors.inverse[which] @ towards
        known = (towards * gain).sum(1)
        level = (1 - (errors.pull[which, :, None] * towards).sum(1)) ** 2 / errors.total[which, None]
        left = np.maximum(amplitude[:, None] ** 2 + BATCH**2 - known, 0.0) + level + shapes.guess**2
        mean = (amplitude[back, None] ** 2) * (self._pulls @ near.shape) + self._pulls @ near.batch
        return mean, left[back]

    @cached_property
    def _pulls(self) -> Floats:
        """(S, n) inverse covariance times what each draw leaves of the measured times."""
        measured, which = self._measured, self._posterior.hypothesis
        residual = measured.log_times - log_time(self.draws, measured.shapes)
        pulls = np.empty_like(residual)
        for each in np.unique(which):
            rows = which == each
            pulls[rows] = residual[rows] @ measured.errors.inverse[each]
        return pulls

    @cached_property
    def _noise(self) -> Floats:
        """(S,) log seconds."""
        return np.asarray(NOISES[self._measured.errors.cell[self._posterior.hypothesis] % len(NOISES)])

    @cached_property
    def _errors(self) -> Floats:
        """(S,) standard normal, evenly spread, in random order."""
        even = (np.arange(len(self.draws)) + 0.5) / len(self.draws)
        return np.random.default_rng(1).permutation([NormalDist().inv_cdf(p) for p in even.tolist()])

    @cached_property
    def _tails(self) -> Floats:
        """(S,) factor on the variance of a repeat that makes its errors t_4."""
        return 4 / np.maximum(np.random.default_rng(2).chisquare(4, len(self.draws)), 0.3)

    def bottlenecks(self, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
        """What limits each of m shapes, in words."""
        return name_bottlenecks(self.draws[:: len(self.draws) // _ASKED], shapes, slowness)

    @cached_property
    def theta(self) -> Floats:
        """(P,) the draw that is nearest to the median of all on clusters up to sixteen times as large."""
        seen = self._measured.shapes[:_MANY]
        larger = Shapes.joined(
            [
                replace(seen, workers=seen.workers * k, nodes=seen.nodes * k, servers=seen.servers * more)
                for k, more in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 4), (16, 1), (16, 16))
            ]
        )
        found = log_time(self.draws, larger)
        return np.asarray(self.draws[((found - np.median(found, axis=0)) ** 2).sum(1).argmin()], dtype=float)


def _of_kind(columns: Columns, times: Floats, doubts: Floats, kind: int) -> tuple[Columns, Floats, Floats]:
    """The rows of one kind, and what to doubt them by (log).

    Without any, the fewest workers of another kind stand for it: one worker computes alike in all of them.
    """
    own = columns.kind == kind
    if own.any():
        return columns[own], times[own], doubts[own]
    least = columns.workers == columns.workers.min()
    some, seconds, doubts = columns[least], times[least], doubts[least]
    each = np.where(some.kind == ASYNCHRONOUS, seconds * some.workers, seconds)
    seconds = each / some.workers if kind == ASYNCHRONOUS else each
    return replace(some, kind=np.full(len(seconds), kind)), seconds, np.hypot(doubts, _OTHER_KIND)


def _residual(posterior: Posterior, shapes: Shapes, log_times: Floats) -> Floats:
    """(n,) log measured - log predicted by the physics: the median over some draws."""
    theta = posterior.theta[:: len(posterior.theta) // _ASKED]
    return log_times - np.asarray(np.median(log_time(theta, shapes), axis=0), dtype=float)


def _unexplained(residual: Floats) -> tuple[Bools, Floats]:
    """Points so far off that no cluster behaves like that next to the others; of all, noise's factor."""
    scale = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
    far: Bools = np.abs(residual) > max(_FAR * scale, _FAR_LOG)
    inflation = np.maximum(1.0, (3 + (residual / scale) ** 2) / 4)
    return (far if far.mean() < 0.4 else np.zeros_like(far)), inflation
