"""When a metric reaches a value, foretold from what was reported until now. Pure.

What is left to gain, such as a loss or 1 - accuracy, is taken for ::

    log e(t) = level + log(floor + (1 - floor) g(t/T) / g(1) + rise (t/T)^1.5) + drift(log t) + noise

with the last report at ``T`` and one of three falling curves ``g``: a power law, an exponential stretched as
Weibull's and Janoschek's, a power of the logarithm. Everything but the level is dimensionless; its prior is
that of `PRIOR`. The posterior comes by importance sampling, the level in closed form; the time of the first
report that is good enough by drawing such reports, with noise of Student's t of 4 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.dataclass import dataclass, field

Floats = NDArray[np.float64]

#: Draws of an answer, and particles of each round.
DRAWS: Final = 800
_PARTICLES: Final = 1200
_ROUNDS: Final = 3
#: Fewer reports tell nothing of how a curve goes on.
LEAST_REPORTS: Final = 4
#: More reports are taken together in so many groups.
_GROUPS: Final = 32
#: What takes so many times as long as was trained is as good as never, where the length is not known.
FAR: Final = 30.0
_LOOKS: Final = 700
#: How far the curve may be from every such form (log), and over which stretch of log time it forgets that.
#: What is to come may be further off: a form that fits the beginning well need not be that of the rest.
_DRIFTS: Final = (0.02, 0.08, 0.25)
_DRIFT_AHEAD: Final = 0.18
_DRIFT_LENGTH: Final = 1.5
#: Of the noise of one report: what its own differences say, times this.
_NOISES: Final = (0.75, 1.0, 1.4)
#: So much of each prior and proposal has twice the spread.
_WIDE: Final = 0.15


@dataclass(frozen=True, slots=True)
class CurvePrior:
    """What is believed of a curve before it is seen, in units of what was trained.

    Attributes:
        weights: of the three forms.
        means: of each form: log time scale, log exponent, logit of the floor, log of the rise.
        spreads: the same; standard deviations.
        rises: how probable it is that the curve turns.
    """

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    spreads: tuple[tuple[float, ...], ...]
    rises: float


#: Wide: what one would say without having seen any curve.
WIDE: Final = CurvePrior(
    weights=(1 / 3, 1 / 3, 1 / 3),
    means=((-1.5, -0.3, 0.0, -3.0), (-0.5, -0.4, 0.0, -3.0), (-0.7, 0.0, 0.0, -3.0)),
    spreads=((1.8, 0.8, 2.0, 1.2), (1.5, 0.5, 2.0, 1.2), (1.5, 0.5, 2.0, 1.2)),
    rises=0.15,
)
#: What 200 small trainings teach: printed by `benchmarks/time_to_accuracy.py`.
PRIOR: Final = CurvePrior(
    weights=(0.35, 0.2, 0.45),
    means=((-2.05, -0.21, -0.94, -6.06), (0.71, -0.33, -1.11, -5.65), (-0.88, 0.2, -0.83, -5.63)),
    spreads=((2.76, 0.57, 1.99, 1.84), (1.72, 0.52, 2.34, 1.76), (2.16, 0.45, 1.87, 1.52)),
    rises=0.09,
)


@dataclass(frozen=True, slots=True)
class CurveForecast:
    """When a value is reached.

    Attributes:
        steps: (DRAWS,) at which it is, rising; infinite in draws that do not reach it.
        fan: step, and p5, p50 and p95 of the metric there.
        last_step: that was reported.
    """

    steps: Floats
    fan: tuple[tuple[float, ...], ...]
    last_step: float

    @property
    def chance(self) -> float:
        """That it is reached at all."""
        return float(np.isfinite(self.steps).mean())

    def quantile(self, share: float) -> float:
        """The step by which it is reached in such a share of the draws; infinite: never, by this curve."""
        return float(self.steps[min(int(share * len(self.steps)), len(self.steps) - 1)])


@dataclass(frozen=True, slots=True)
class _Scale:
    """A metric as what is left to gain: positive, and less is better."""

    best: float
    sign: float
    least: float

    @classmethod
    def of(cls, values: Floats, aim: float, *, more_is_better: bool) -> _Scale:
        everything = np.append(values, aim)
        low, high = float(everything.min()), float(everything.max())
        span = max(high - low, 1e-9 * max(abs(high), abs(low)), 1e-300)
        if more_is_better:
            best = next((top for top in (1.0, 100.0) if high <= top and low >= -top), high + 2 * span)
        else:
            best = 0.0 if low >= 0 else low - 2 * span
        left = np.abs(best - values)
        return cls(
            best, -1.0 if more_is_better else 1.0, max(float(left[left > 0].min(initial=span)) / 2, 1e-12)
        )

    def left(self, values: Floats) -> Floats:
        """Logarithm of what is left to gain; of a value at the best some of it, as a report is rounded."""
        return np.log(np.maximum(self.sign * (values - self.best), self.least))

    def aim(self, value: float) -> float:
        """The same of what is to be reached; minus infinity if that is the best there can be."""
        left = self.sign * (value - self.best)
        return math.log(left) if left > 0 else -math.inf

    def value(self, left: Floats) -> Floats:
        return np.asarray(self.best + self.sign * np.exp(left))


@dataclass(slots=True)
class Particles:
    """Curves that may be: each has a form, its four numbers, and whether it turns."""

    form: NDArray[np.int64]
    theta: Floats
    rises: NDArray[np.bool_]
    log_weight: Floats = field(default_factory=lambda: np.zeros(0))

    def log_shape(self, s: Floats) -> Floats:
        """(K, S): logarithm of the curve, without its level, at times in units of what was trained."""
        scale, power = np.exp(self.theta[:, :1]), np.exp(self.theta[:, 1:2])
        floor = 1 / (1 + np.exp(-self.theta[:, 2:3]))
        fall = _log_fall(self.form, s[None, :], scale, power)
        fall -= _log_fall(self.form, np.ones((1, 1)), scale, power)
        rise = np.where(self.rises[:, None], np.exp(self.theta[:, 3:4]), 0.0)
        with np.errstate(over="ignore"):
            return np.log(floor + (1 - floor) * np.exp(np.minimum(fall, 50.0)) + rise * s**1.5 + 1e-300)


def _log_fall(form: NDArray[np.int64], s: Floats, scale: Floats, power: Floats) -> Floats:
    at = np.maximum(s / scale, 1e-12)
    raised = np.exp(np.minimum(power * np.log(at), 60.0))
    kind = form[:, None]
    return np.where(kind == 0, -power * np.log1p(at), np.where(kind == 1, -raised, -np.log1p(raised)))


@dataclass(frozen=True, slots=True)
class CurvePosterior:
    """What a curve says of its form.

    Attributes:
        particles: with their weights, log.
        cell: of each the drift and the noise.
        level: of each. level_sd: of that.
        drift: of each at the last report. drift_sd: of that.
        noises: of one report.
    """

    particles: Particles
    weight: Floats
    amplitude: Floats
    noise: Floats
    level: Floats
    level_sd: Floats
    drift: Floats
    drift_sd: Floats


def forecast_curve(
    steps: Sequence[float],
    values: Sequence[float],
    aim: float,
    *,
    more_is_better: bool,
    most: float | None = None,
    prior: CurvePrior = PRIOR,
) -> CurveForecast | None:
    """When a metric comes to a value; None while too little was reported.

    Args:
        steps: of the reports, rising.
        values: of the metric there.
        aim: the value to come to.
        more_is_better: it comes from below.
        most: steps that are trained at most; None: unknown.
        prior: what is believed before.
    """
    told = [(s, v) for s, v in zip(steps, values, strict=True) if math.isfinite(v) and s > 0]
    if len(told) < LEAST_REPORTS:
        return None
    at, seen = (np.array(column, float) for column in zip(*told, strict=True))
    scale = _Scale.of(seen, aim, more_is_better=more_is_better)
    last = float(at[-1])
    good = np.flatnonzero(seen >= aim if more_is_better else seen <= aim)
    rng = np.random.default_rng(11)
    posterior = posterior_of(at / last, scale.left(seen), prior, rng)
    far = max((most or FAR * last) / last, 1.0)
    every = float(np.median(np.diff(at)[-8:])) / last
    looks, many = _looks(every, far)
    chosen = rng.choice(len(posterior.weight), DRAWS, p=posterior.weight)
    mean, noise = _future(posterior, chosen, looks, rng)
    if len(good):
        reached = np.full(DRAWS, at[good[0]])
    else:
        best = mean + noise[:, None] * _least_of(many, rng.random((DRAWS, len(looks))))
        holds = best <= scale.aim(aim)
        first = np.argmax(holds, axis=1)
        reached = np.where(holds.any(axis=1), looks[first] * last, np.inf)
    if most is not None:
        reached = np.where(reached <= most, reached, np.inf)
    steps_of = np.sort(reached)
    middle, late = (float(steps_of[int(share * DRAWS)]) / last for share in (0.5, 0.95))
    shown = min(far, max(2.0, 1.15 * late if late < np.inf else 2 * middle if middle < np.inf else 4.0))
    places = np.unique(np.linspace(0, max(int(np.sum(looks <= shown)) - 1, 0), 40).astype(int))
    bands = np.sort(scale.value(np.percentile(mean[:, places], (5, 50, 95), axis=0)), axis=0)
    fan = tuple(
        (float(looks[place] * last), *(float(band[n]) for band in bands)) for n, place in enumerate(places)
    )
    return CurveForecast(steps_of, fan, last)


def _looks(every: float, far: float) -> tuple[Floats, Floats]:
    """Times to look at, and how many reports each stands for."""
    count = max((far - 1) / every, 1.0)
    if count <= _LOOKS:
        looks = 1 + every * np.arange(1, int(count) + 1)
        return np.asarray(looks), np.ones(len(looks))
    looks = np.exp(np.linspace(0, math.log(far), _LOOKS + 1))
    return np.asarray(looks[1:]), np.maximum(np.diff(looks) / every, 1.0)


def _least_of(many: Floats, chance: Floats) -> Floats:
    """The least of so many draws of Student's t of 4 degrees of freedom, of variance 1."""
    share = -np.expm1(np.log1p(-chance) / many)
    root = np.sqrt(np.clip(4 * share * (1 - share), 1e-12, 1.0))
    size = 2 * np.sqrt(np.maximum(np.cos(np.arccos(root) / 3) / root - 1, 0.0))
    return np.asarray(np.where(share < 0.5, -size, size) / math.sqrt(2))


def _future(
    posterior: CurvePosterior, chosen: NDArray[np.int64], looks: Floats, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """(DRAWS, looks) logarithm of what is left, without the noise of reports, and (DRAWS,) that noise."""
    particles = posterior.particles
    some = Particles(particles.form[chosen], particles.theta[chosen], particles.rises[chosen])
    mean = some.log_shape(looks)
    mean += (posterior.level + posterior.level_sd * rng.standard_normal(len(posterior.level)))[chosen, None]
    drift = posterior.drift[chosen] + posterior.drift_sd[chosen] * rng.standard_normal(len(chosen))
    keeps = np.exp(-np.diff(np.log(looks), prepend=0.0) / _DRIFT_LENGTH)
    pushes = np.sqrt(1 - keeps**2)
    amplitude = np.hypot(posterior.amplitude[chosen], _DRIFT_AHEAD)
    normal = rng.standard_normal(mean.shape)
    for n in range(len(looks)):
        drift = keeps[n] * drift + pushes[n] * amplitude * normal[:, n]
        mean[:, n] += drift
    return mean, posterior.noise[chosen]


def posterior_of(s: Floats, left: Floats, prior: CurvePrior, rng: np.random.Generator) -> CurvePosterior:
    """What is to be believed of a curve.

    Args:
        s: times of the reports, the last one is 1.
        left: logarithm of what was left to gain there.
        prior: what was believed before.
        rng: draws.
    """
    noise = _own_noise(left)
    size = -(-len(s) // _GROUPS)
    starts = np.arange(0, len(s), size)
    many = np.diff(np.append(starts, len(s)))
    time, seen = np.add.reduceat(s, starts) / many, np.add.reduceat(left, starts) / many
    cells = [_Cell.of(time, many, drift, noise * factor) for drift in _DRIFTS for factor in _NOISES]
    proposal, kept = prior, list[tuple[Particles, Floats, list[tuple[Floats, Floats, Floats]]]]()
    for number in range(_ROUNDS):
        particles, log_prior, log_proposal = _propose(prior, proposal, number, rng)
        residual = seen - particles.log_shape(time)
        judged = [cell.judge(residual) for cell in cells]
        each = np.array([found[0] for found in judged])
        log_weight = _log_sum(each) + log_prior - log_proposal
        kept.append((particles, each + (log_prior - log_proposal), judged))
        if number + 1 < _ROUNDS:
            proposal = _moments(particles, _tempered(log_weight), prior)
    particles, by_cell, judged = kept[-1]
    flat = by_cell - by_cell.max()
    weight = np.exp(flat).ravel()
    k = len(particles.form)
    whole = Particles(
        *(np.concatenate([part] * len(cells)) for part in (particles.form, particles.theta, particles.rises))
    )
    return CurvePosterior(
        whole,
        weight / weight.sum(),
        np.repeat([cell.drift for cell in cells], k),
        np.repeat([cell.noise for cell in cells], k),
        np.concatenate([found[1] for found in judged]),
        np.repeat([cell.level_sd for cell in cells], k),
        np.concatenate([found[2] for found in judged]),
        np.repeat([cell.drift_sd for cell in cells], k),
    )


def _own_noise(left: Floats) -> float:
    """Of one report, by second differences of the later half; a few say little."""
    later = left[len(left) // 2 :] if len(left) >= 8 else left
    bends = np.diff(later, 2)
    found = (
        float(np.sqrt(np.mean(np.minimum(np.abs(bends), 3 * np.median(np.abs(bends)) + 1e-9) ** 2) / 6))
        if len(bends)
        else 0.03
    )
    trust = len(bends) / (len(bends) + 2.0)
    return math.exp(trust * math.log(max(found, 1e-3)) + (1 - trust) * math.log(0.03))


@dataclass(frozen=True, slots=True)
class _Cell:
    """A drift and a noise, and what of the maths depends on these only."""

    drift: float
    noise: float
    white: Floats
    ones: Floats
    total: float
    log_det: float
    toward_last: Floats
    drift_sd: float

    @classmethod
    def of(cls, time: Floats, many: Floats, drift: float, noise: float) -> _Cell:
        u = np.log(time)
        smooth = drift**2 * np.exp(-np.abs(u[:, None] - u[None, :]) / _DRIFT_LENGTH)
        root = np.linalg.cholesky(smooth + np.diag(noise**2 / many + 1e-8))
        white = np.linalg.inv(root)
        ones = white.sum(axis=1)
        to_last = white @ (drift**2 * np.exp(np.minimum(u, 0.0) / _DRIFT_LENGTH))
        sd = math.sqrt(max(drift**2 - float(to_last @ to_last), 1e-12))
        return cls(
            drift, noise, white, ones, float(ones @ ones), float(np.log(np.diag(root)).sum()), to_last, sd
        )

    @property
    def level_sd(self) -> float:
        return self.total**-0.5

    def judge(self, residual: Floats) -> tuple[Floats, Floats, Floats]:
        """Log likelihood, level and drift at the last report of each particle."""
        whitened = residual @ self.white.T
        level = whitened @ self.ones / self.total
        fit = (
            -0.5 * ((whitened**2).sum(axis=1) - level**2 * self.total)
            - self.log_det
            - 0.5 * math.log(self.total)
        )
        drift = (whitened - level[:, None] * self.ones) @ self.toward_last
        return fit, level, drift


def _propose(
    prior: CurvePrior, proposal: CurvePrior, number: int, rng: np.random.Generator
) -> tuple[Particles, Floats, Floats]:
    """Particles, a fifth of them from the prior, with the log density of both."""
    count = _PARTICLES
    first = np.arange(count) < (count if number == 0 else count // 5)
    form = np.where(first, rng.choice(3, count, p=prior.weights), rng.choice(3, count, p=proposal.weights))
    mean = np.where(first[:, None], np.array(prior.means)[form], np.array(proposal.means)[form])
    spread = np.where(first[:, None], np.array(prior.spreads)[form], np.array(proposal.spreads)[form])
    wide = np.where(rng.random((count, 1)) < _WIDE, 2.0, 1.0)
    theta = mean + spread * wide * rng.standard_normal((count, 4))
    rises = rng.random(count) < np.where(first, prior.rises, proposal.rises)
    particles = Particles(form, theta, rises)
    log_prior = _log_density(particles, prior)
    if number == 0:
        return particles, log_prior, log_prior
    both = np.array([log_prior + math.log(0.2), _log_density(particles, proposal) + math.log(0.8)])
    return particles, log_prior, _log_sum(both)


def _log_density(particles: Particles, of: CurvePrior) -> Floats:
    form = particles.form
    mean, spread = np.array(of.means)[form], np.array(of.spreads)[form]
    far = (((particles.theta - mean) / spread) ** 2).sum(axis=1)
    wide = np.array([math.log(1 - _WIDE) - far / 2, math.log(_WIDE) - far / 8 - 4 * math.log(2)])
    turns = np.where(particles.rises, math.log(of.rises), math.log1p(-of.rises))
    return _log_sum(wide) - np.log(spread).sum(axis=1) + np.log(np.array(of.weights))[form] + turns


def _moments(particles: Particles, weight: Floats, prior: CurvePrior) -> CurvePrior:
    """The next proposal: where the weight is, a little wider."""
    weights, means, spreads = [], [], []
    for form in range(3):
        mine = np.where(particles.form == form, weight, 0.0)
        share = float(mine.sum())
        weights.append(0.9 * share + 0.1 * prior.weights[form])
        few = 0.02  # of the prior: a form without weight keeps its place
        mine = mine / max(share, 1e-300) if share > 1e-6 else mine
        mean = (mine @ particles.theta + few * np.array(prior.means[form])) / (float(mine.sum()) + few)
        square = mine @ (particles.theta - mean) ** 2 + few * np.array(prior.spreads[form]) ** 2
        means.append(tuple(mean))
        spreads.append(tuple(1.2 * np.sqrt(square / (float(mine.sum()) + few)) + 0.02))
    rises = 0.5 * prior.rises + 0.5 * float(weight[particles.rises].sum())
    total = sum(weights)
    return CurvePrior(
        tuple(w / total for w in weights), tuple(means), tuple(spreads), min(max(rises, 0.02), 0.9)
    )


def _tempered(log_weight: Floats) -> Floats:
    """Weights of which at least 40 count."""
    power = 1.0
    while True:
        weight = np.exp(power * (log_weight - log_weight.max()))
        weight /= weight.sum()
        if 1 / float((weight**2).sum()) >= 40 or power < 1e-3:
            return weight
        power *= 0.8


def _log_sum(rows: Floats) -> Floats:
    top = rows.max(axis=0)
    return np.asarray(top + np.log(np.exp(rows - top).sum(axis=0)))
