"""The step-time model: fitted to what was measured of one job, it predicts any other shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.model import discrepancy, posterior
from trainmaster.advisor.model.discrepancy import Near, Scales
from trainmaster.advisor.model.experience import Experience
from trainmaster.advisor.model.fit import Optimum, Problem, correlated, robust
from trainmaster.advisor.model.physics import name_bottlenecks, step_time
from trainmaster.advisor.model.priors import NAMES, Prior
from trainmaster.advisor.model.profile import Point
from trainmaster.advisor.model.shapes import Bools, Columns, Floats, MeasuredContext, Shapes

_CHUNK: Final = 1000
#: A point is unexplained if its residual exceeds this many robust standard deviations ...
_FAR: Final = 4.0
#: ... and this factor on the time, log; and if there are at least this many points.
_FAR_LOG: Final = 0.3
_ENOUGH: Final = 8
#: With more points than this the first round of fitting is good enough.
_MANY: Final = 80
#: More points than this teach nothing new, and would be slow.
_MOST: Final = 400
#: How much shorter than the discrepancy's the reach of an unexplained point is.
_LOCAL: Final = 8.0
#: Interval and point estimate. Percentage errors punish guesses that are too long more than those that are
#: too short. Chosen on simulated jobs, where the 45 % quantile's mean error was about 5 % lower than the
#: median's (24 scenarios: from 3 % higher to 13 % lower); 46 % is a cautious step in that direction.
_QUANTILES: Final = (0.05, 0.46, 0.95)


@dataclass(frozen=True)
class Prediction:
    """Step times of m shapes, seconds.

    Attributes:
        typical: (m,) point estimate, just below the median.
        low, high: (m,) 5 % and 95 % quantiles of what would be measured.
        bottleneck: (m) in words.
    """

    typical: Floats
    low: Floats
    high: Floats
    bottleneck: tuple[str, ...]


@dataclass(frozen=True)
class StepTimeModel:
    """A fitted model. Make it with ``StepTimeModel.fit``.

    Attributes:
        context: typical values of the measured columns.
        unexplained: (n,) True where physics cannot explain a measured point; not learnt.
        residual: (n,) log measured - log predicted by the physics alone, all points.
        scales: of discrepancy and noise.
    """

    context: MeasuredContext
    unexplained: Bools
    residual: Floats
    scales: Scales
    _log_times: Floats
    _measured: Shapes
    _problem: Problem
    _optimum: Optimum
    _covariance: Floats
    _seed: int

    @classmethod
    def fit(
        cls, points: Sequence[Point], seed: int = 0, experience: Experience | None = None
    ) -> StepTimeModel:
        """Fit to the measured points of one job.

        Args:
            points: at least one, each with ``step_time_s``.
            seed: of the posterior's draws.
            experience: what other jobs have shown of the same machines.

        Raises:
            ValueError: there are no points, or one has no time.
        """
        if not points or any(point.step_time_s is None for point in points):
            raise ValueError("no measured points" if not points else "a point without step_time_s")
        times = np.array([point.step_time_s for point in points], dtype=float)
        return cls.fit_columns(Columns.of(points), times, seed, experience)

    @classmethod
    def fit_columns(
        cls, columns: Columns, times: Floats, seed: int = 0, experience: Experience | None = None
    ) -> StepTimeModel:
        """Fit to measured shapes and their (n,) step times in seconds; to a random 400 if there are more."""
        context = MeasuredContext.of(columns)
        shapes = Shapes.of(columns, context)
        if len(times) > _MOST:
            some = np.sort(np.random.default_rng(2).choice(len(times), _MOST, replace=False))
            few = cls.fit_columns(columns[some], times[some], seed, experience)
            return few._with_all(columns, np.log(times))
        prior = Prior.of(columns, context, times).learnt(experience)
        problem = Problem(prior, shapes, np.log(times))
        rng = np.random.default_rng(1)
        starts = rng.normal(0, 0.8, (6 if len(times) <= 40 else 3, len(NAMES)))
        starts[0] = 0
        rough = robust(problem, starts, scale=0.06)
        residual = problem.log_times - rough.log_model
        unexplained = _unexplained(residual)
        keep = ~unexplained
        explained = replace(problem, shapes=shapes[keep], log_times=problem.log_times[keep])
        rough = replace(rough, log_model=rough.log_model[keep], jacobian=rough.jacobian[keep])
        inflation = _inflation(residual[keep]) + (shapes.guess[keep] / discrepancy.NOISE_MEDIAN) ** 2
        near = _near(explained.shapes)
        optimum = rough
        for _ in range(2 if len(times) <= _MANY else 1):
            scales = Scales.of(
                explained.log_times - optimum.log_model + optimum.jacobian @ optimum.z,
                optimum.jacobian @ optimum.jacobian.T,
                near,
                inflation,
            )
            covariance = discrepancy.covariance(scales, near, inflation)
            optimum = correlated(explained, optimum.z[None], covariance)
        residual = problem.log_times - problem.log_model(optimum.z[None])[0]
        return cls(
            context,
            unexplained,
            residual,
            scales,
            problem.log_times,
            shapes,
            explained,
            optimum,
            covariance,
            seed,
        )

    def _with_all(self, columns: Columns, log_times: Floats) -> StepTimeModel:
        """The same model, with residuals of all measured points and not only of those it was fitted to."""
        shapes = Shapes.of(columns, self.context)
        residual = log_times - np.log(step_time(self.theta[None], shapes))[0]
        far = _unexplained(residual)
        return replace(self, unexplained=far, residual=residual, _log_times=log_times, _measured=shapes)

    @cached_property
    def expected(self) -> Floats:
        """(n,) seconds that physics expects of each measured point, explained or not."""
        log_expected: Floats = self._log_times - self.residual
        return np.exp(log_expected)

    @cached_property
    def draws(self) -> Floats:
        """(S, P) log parameters from the posterior."""
        return posterior.draw(self._problem, self._optimum, self._covariance, self._seed)

    @cached_property
    def coordinates(self) -> tuple[Floats, Floats]:
        """(P,) mean and (P,) spread of the posterior where the prior is a standard normal."""
        prior = self._problem.prior
        z = np.linalg.solve(prior.root, (self.draws - prior.mean).T)
        return z.mean(1), z.std(1)

    @cached_property
    def parameters(self) -> dict[str, float]:
        """The most probable value of every parameter, in the unit of its prior."""
        return dict(zip(NAMES, np.exp(self.theta).tolist(), strict=True))

    def predict(self, shapes: Sequence[Point]) -> Prediction:
        """Step times with 90 % intervals and bottlenecks."""
        return self.predict_columns(Columns.of(shapes))

    def predict_columns(self, columns: Columns) -> Prediction:
        """The same for columns of length m. A row's answer does not depend on the other rows."""
        shapes = Shapes.of(columns, self.context)
        quantiles = np.empty((3, len(shapes)))
        for start in range(0, len(shapes), _CHUNK):
            rows = slice(start, start + _CHUNK)
            low, typical, high = np.quantile(self.samples(shapes[rows]), _QUANTILES, axis=0)
            surprise, spread = self._surprise(shapes[rows])
            quantiles[0, rows] = np.minimum(low, low + surprise - spread)
            quantiles[1, rows] = typical
            quantiles[2, rows] = np.maximum(high, high + surprise + spread)
        low, typical, high = np.exp(quantiles)
        return Prediction(typical, low, high, name_bottlenecks(self.theta, shapes))

    def _surprise(self, shapes: Shapes) -> tuple[Floats, Floats]:
        """Where most measured points near by are unexplained: their residual and its spread, (m,) each.

        The estimate is not bent towards them, but the interval has to reach what was seen there.
        """
        none = np.zeros(len(shapes))
        if not self.unexplained.any():
            return none, none
        asked = _LOCAL * discrepancy.coordinates(shapes)
        measured = _LOCAL * discrepancy.coordinates(self._measured)
        near = Near.of(measured, asked).rough
        total = near.sum(0) + 1e-12
        weight = near[self.unexplained]
        amount = weight.sum(0) + 1e-12
        mean = self.residual[self.unexplained] @ weight / amount
        spread = np.sqrt(self.residual[self.unexplained] ** 2 @ weight / amount - mean**2 + 1e-12)
        here = (weight.sum(0) > 0.5 * total) & (total > 0.1)
        return np.where(here, mean, 0.0), np.where(here, 1.645 * spread, 0.0)

    def samples(self, shapes: Shapes) -> Floats:
        """(S, m) log seconds that would be measured, drawn from the posterior predictive."""
        return np.log(step_time(self.draws, shapes)) + self.deviations(shapes)

    def deviations(self, shapes: Shapes) -> Floats:
        """(S, m) what to add to the log of the physics' seconds: discrepancy and noise, drawn.

        They depend on how many workers there are and where, not on how fast their devices or networks are.
        """
        near = Near.of(self._coordinates, discrepancy.coordinates(shapes)).covariance(self.scales.amplitude)
        gain = np.linalg.solve(self._covariance, near)
        total = self.scales.amplitude**2 + discrepancy.SMOOTH**2
        left = np.maximum(total - (near * gain).sum(0), 0.0)
        mean = self._residuals @ gain
        scale, noise = self._hyper_draws
        model, repeat = self._errors
        spread = np.sqrt(scale[:, None] ** 2 * left + shapes.guess**2)
        return mean + spread * model[:, None] + (noise * repeat)[:, None]

    @cached_property
    def _residuals(self) -> Floats:
        return self._problem.log_times - np.log(step_time(self.draws, self._problem.shapes))

    @cached_property
    def _coordinates(self) -> Floats:
        return discrepancy.coordinates(self._problem.shapes)

    @cached_property
    def _hyper_draws(self) -> tuple[Floats, Floats]:
        """(S,) factor on the discrepancy, (S,) noise in log seconds."""
        rng = np.random.default_rng(self._seed + 1)
        pick = rng.choice(len(self.scales.weight), len(self.draws), p=self.scales.weight)
        amplitude, noise = self.scales.grid[pick].T
        smooth = discrepancy.SMOOTH * np.exp(discrepancy.SMOOTH_SPREAD * rng.standard_normal(len(pick)))
        total = self.scales.amplitude**2 + discrepancy.SMOOTH**2
        return np.sqrt((amplitude**2 + smooth**2) / total), noise

    @cached_property
    def _errors(self) -> tuple[Floats, Floats]:
        """Errors of model (normal) and repeat (Student t), (S,) each: evenly spread, in random order."""
        rng = np.random.default_rng(self._seed + 2)
        count = len(self.draws)
        even = (np.arange(count) + 0.5) / count
        normal = _normal_quantiles(even)
        heavy = normal / np.sqrt(rng.permutation(_chi_square_4(even)) / 4)
        return rng.permutation(normal), rng.permutation(heavy)

    def bottlenecks(self, shapes: Shapes, slowness: Floats | float = 1.0) -> tuple[str, ...]:
        """What limits each of m shapes, in words."""
        return name_bottlenecks(self.theta, shapes, slowness)

    @cached_property
    def theta(self) -> Floats:
        """(P,) the most probable log parameters."""
        prior = self._problem.prior
        return prior.mean + prior.root @ self._optimum.z


def _near(shapes: Shapes) -> Near:
    where = discrepancy.coordinates(shapes)
    return Near.of(where, where)


def _unexplained(residual: Floats) -> Bools:
    """Points so far off that no cluster behaves like that next to the others."""
    if len(residual) < _ENOUGH:
        return np.zeros(len(residual), dtype=bool)
    scale = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
    far: NDArray[np.bool_] = np.abs(residual) > max(_FAR * scale, _FAR_LOG)
    return far if far.mean() < 0.4 else np.zeros(len(residual), dtype=bool)


def _inflation(residual: Floats) -> Floats:
    """(n,) factor >= 1 on the noise variance of points that stand out (Student-t weights)."""
    if len(residual) < _ENOUGH:
        return np.ones(len(residual))
    scale = max(1.4826 * float(np.median(np.abs(residual))), 0.02)
    return np.maximum(1.0, (3 + (residual / scale) ** 2) / 4)


def _normal_quantiles(p: Floats) -> Floats:
    """Inverse of the standard normal distribution, error < 5e-4 (Abramowitz and Stegun, 26.2.23)."""
    tail = np.sqrt(-2 * np.log(np.minimum(p, 1 - p)))
    top = 2.515517 + tail * (0.802853 + 0.010328 * tail)
    bottom = 1 + tail * (1.432788 + tail * (0.189269 + 0.001308 * tail))
    return np.sign(p - 0.5) * (tail - top / bottom)


def _chi_square_4(p: Floats) -> Floats:
    """Quantiles of chi-square with 4 degrees of freedom, by Newton on 1 - exp(-x/2) (1 + x/2)."""
    x = np.full(len(p), 4.0)
    for _ in range(60):
        tail = np.exp(-x / 2)
        x = np.maximum(x - np.clip((1 - tail * (1 + x / 2) - p) / (x / 4 * tail), -x / 2, 5.0), 1e-9)
    return x
