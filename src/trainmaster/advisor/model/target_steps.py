"""How many steps a target takes: from curves that were seen, and from how the global batch changes it. Pure.

What one run needs is random about what its job needs (log-normal); a curve that ended before it came to the
target counts by its forecast, which is not before its last step (random effects: DerSimonian, Laird, 1986).
Another global batch ``B`` needs ``1 + C/B`` times the least steps, by the critical batch ``C``
(McCandlish et al., 2018); where the script keeps its learning rate a larger batch may save no steps at all:
``C`` is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainmaster.advisor.model.learning_curve import FAR, forecast_curve
from trainmaster.advisor.model.measurement import ObservedCurve
from trainmaster.advisor.model.posterior import DRAWS
from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass

#: How much the steps of runs of one job differ (log), before any were compared; counts as so many of them.
RUN_SPREAD: Final = 0.2
_BELIEF: Final = 4
#: The critical batch, in units of the batch that a recipe has: its logarithm; and how probable it is that a
#: larger batch saves no steps.
_CRITICAL: Final = (0.7, 1.5)
_NO_GAIN: Final = 0.4
#: How the noise of gradients in the first minute, as a batch, lies to the critical batch: log, and spread.
_NOISE_OVER_CRITICAL: Final = -0.7
_NOISE_SPREAD: Final = 0.9
#: How far steps of one version of a job are from those of another (log).
KIN_SPREAD: Final = 0.5
#: So many curves count, and of those that did not come to it so many are foretold: the newest.
_MOST_CURVES: Final = 24
_MOST_FORETOLD: Final = 6
_PARTICLES: Final = 4000
#: What a forecast by a curve alone has believed before: over so much of log time, and how often never.
_LOG_RANGE: Final = 3.0
_USUALLY_NEVER: Final = 0.25
_SURPRISING: Final = 0.02
#: Of an experiment with more tasks so many are drawn.
_MOST_TASKS: Final = 16
#: What a curve that ended within its first reports says: about so many times its length, give or take (log).
_SHORT: Final = (1.0, 1.0)


@dataclass(frozen=True)
class TargetBelief:
    """Steps that a task takes to its target.

    Attributes:
        log_steps: (DRAWS,) typical ones, of those that come to it, with the global batch `batch`.
        critical: (DRAWS,) critical batch, examples; 0 where a larger batch saves nothing.
        spread: of single tasks about the typical one (log).
        never: chance that one does not come to it, however long it trains.
        batch: global, that `log_steps` are for; None if unknown.
        curves: how many it rests on. reached: how many of them came to it. is_measured: no run is among them.
        is_kin: they are of other versions of the job.
    """

    log_steps: Floats
    critical: Floats
    spread: float
    never: float
    batch: float | None
    curves: int
    reached: int
    is_measured: bool = False
    is_kin: bool = False

    def steps(self, batch: Floats, tasks: int = 1) -> Floats:
        """(DRAWS, m, tasks) steps with m global batches (NaN: as it was seen); infinite: never."""
        many = min(tasks, _MOST_TASKS)
        rng = np.random.default_rng(23)
        own = self.log_steps[:, None] + self.spread * rng.standard_normal((DRAWS, many))
        found = np.where(rng.random((DRAWS, many)) < self.never, np.inf, np.exp(own))
        return np.asarray(found[:, None, :] * self.factor(batch)[:, :, None])

    def weighed(self, forecast: Floats) -> Floats:
        """Draws of the steps that a running task takes, by its own curve, weighed by what was known before.

        Args:
            forecast: by its curve alone; infinite: never.
        """
        before = self.steps(np.array([math.nan])).ravel()
        before = np.log(before[np.isfinite(before)])
        if not self.reached or not len(before):
            return forecast
        ends, spread = np.isfinite(forecast), max(float(before.std()), 0.05)
        off = (np.log(forecast[ends]) - float(before.mean())) / spread
        weight = np.full(len(forecast), self.never / _USUALLY_NEVER)
        weight[ends] = (
            (1 - self.never) * _LOG_RANGE / (spread * math.sqrt(2 * math.pi)) * np.exp(-0.5 * off**2)
        )
        if weight.mean() < _SURPRISING:  # it is another case than those before
            return forecast
        chosen = np.random.default_rng(31).choice(len(forecast), len(forecast), p=weight / weight.sum())
        return np.sort(forecast[chosen])

    def factor(self, batch: Floats) -> Floats:
        """(DRAWS, m) steps with other global batches over those with `batch`."""
        seen = self.batch if self.batch is not None else math.nan
        told = np.where(np.isnan(batch), seen, batch)[None, :]
        ratio = (1 + self.critical[:, None] / told) / (1 + self.critical[:, None] / seen)
        return np.asarray(np.where(np.isfinite(ratio), ratio, 1.0))

    def share(self, steps: Floats, batch: Floats, tasks: int = 1) -> Floats:
        """(DRAWS, m) share of so many steps that a task makes on average: to its target, or all of them."""
        pairs = np.column_stack([steps, np.nan_to_num(batch, nan=-1.0)])
        _, first, back = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        found = np.minimum(self.steps(batch[first], tasks) / steps[first][None, :, None], 1.0)
        return np.asarray(found.mean(axis=2)[:, back.ravel()])


def target_belief(
    curves: Sequence[ObservedCurve],
    metric: str,
    aim: float,
    *,
    more_is_better: bool,
    batch: float | None = None,
    most: float | None = None,
) -> TargetBelief | None:
    """What curves of a job say of when it comes to a target; None if that is nothing.

    Args:
        curves: of the job, the newest first; measurements count where there is no run.
        metric: its name.
        aim: the value to come to.
        more_is_better: it comes from below.
        batch: global, of the recipe; None if unknown.
        most: steps of the recipe.
    """
    of_it = [each for each in curves if each.metric == metric and each.points]
    used = [each for each in of_it if each.is_run] or of_it
    seen: list[_CurveSteps] = []
    foretold = 0
    for each in used[:_MOST_CURVES]:
        one = _CurveSteps.reached(each, aim, more_is_better=more_is_better)
        if one is None and foretold < _MOST_FORETOLD:
            one = _CurveSteps.foretold(each, aim, more_is_better=more_is_better, most=most)
            foretold += 1
        if one is not None:
            seen.append(one)
    if not seen:
        return None
    noises = [each.noise * each.batch for each in of_it if each.noise and each.batch]
    found = _pooled(seen, batch, noises, is_measured=not used[0].is_run)
    if not used[0].is_kin:
        return found
    doubt = KIN_SPREAD * np.random.default_rng(37).standard_normal(DRAWS)  # all of them share it
    return replace(found, log_steps=found.log_steps + doubt, is_kin=True)


@dataclass(frozen=True, slots=True)
class _CurveSteps:
    """What one curve says of its own steps to the target.

    Attributes:
        log_steps: mean of the logarithm. variance: of it. draws: of it, where these are known.
        never: chance of that. batch: of the curve. is_reached: it came to it.
    """

    log_steps: float
    variance: float
    never: float
    batch: float | None
    is_reached: bool
    draws: Floats | None = None

    @classmethod
    def reached(cls, curve: ObservedCurve, aim: float, *, more_is_better: bool) -> _CurveSteps | None:
        """Of one that came to it: the step, between two reports."""
        before = 0.0
        for step, value in curve.points:
            if step > 0 and (value >= aim if more_is_better else value <= aim):
                gap = min((step - before) / step, 1.0)
                return cls(math.log(step), gap**2 / 12, 0.0, curve.batch, is_reached=True)
            before = max(step, before)
        return None

    @classmethod
    def foretold(
        cls, curve: ObservedCurve, aim: float, *, more_is_better: bool, most: float | None
    ) -> _CurveSteps | None:
        """Of one that ended before."""
        steps, values = zip(*curve.points, strict=True)
        last = float(steps[-1])
        if last <= 0:
            return None
        far = max(most or 0.0, FAR * last)
        found = forecast_curve(steps, values, aim, more_is_better=more_is_better, most=far)
        if found is None:
            ahead, spread = _SHORT
            return cls(math.log(last) + ahead, spread**2, 0.0, curve.batch, is_reached=False)
        draws = np.log(found.steps[np.isfinite(found.steps)])
        if not len(draws):
            return cls(math.log(max(most or 0.0, last)), 1.0, 1.0, curve.batch, is_reached=False)
        mean, variance = float(draws.mean()), float(draws.var())
        return cls(mean, variance, 1 - found.chance, curve.batch, is_reached=False, draws=draws)


def _pooled(
    seen: Sequence[_CurveSteps], batch: float | None, noises: Sequence[float], *, is_measured: bool
) -> TargetBelief:
    rng = np.random.default_rng(29)
    known = [each.batch for each in seen if each.batch]
    reference = batch or (known[0] if known else None)
    critical = np.exp(rng.normal(*_CRITICAL, _PARTICLES)) * (reference or 0.0)
    critical[rng.random(_PARTICLES) < _NO_GAIN] = 0.0
    own = np.array([each.batch or reference or 1.0 for each in seen])
    moved = np.log1p(critical[:, None] / own) - np.log1p(critical[:, None] / (reference or 1.0))
    means = np.array([each.log_steps for each in seen]) - moved
    finite = np.array([each.never < 1 for each in seen])
    exact = np.array([each.is_reached for each in seen])
    spread = _spread(means[:, exact])
    precision = finite / (spread**2 + np.array([each.variance for each in seen])[None, :])
    if not finite.any():
        precision[:] = 1.0
    total = precision.sum(axis=1)
    middle = (precision * means).sum(axis=1) / total
    log_weight = -0.5 * (precision * (means - middle[:, None]) ** 2).sum(axis=1)
    log_weight += 0.5 * (np.log(np.maximum(precision, 1e-12)) * finite).sum(axis=1) - 0.5 * np.log(total)
    log_weight += _by_noise(critical, noises)
    weight = np.exp(log_weight - log_weight.max())
    chosen = rng.choice(_PARTICLES, DRAWS, p=weight / weight.sum())
    log_steps = middle[chosen] + total[chosen] ** -0.5 * rng.standard_normal(DRAWS)
    only = seen[0]
    if len(seen) == 1 and only.draws is not None:  # as skew as its forecast is
        log_steps = rng.choice(only.draws, DRAWS) - moved[chosen, 0]
    each_never = np.array([each.never for each in seen])
    shares = 1 / (float(np.mean(spread)) ** 2 + np.array([each.variance for each in seen]))
    return TargetBelief(
        log_steps,
        critical[chosen],
        float(np.mean(spread[chosen])),
        float(shares @ each_never / shares.sum()),
        reference,
        len(seen),
        int(exact.sum()),
        is_measured,
    )


def _by_noise(critical: Floats, noises: Sequence[float]) -> Floats:
    """(K,) log likelihood of critical batches by the noise of gradients, of which all measure the same."""
    gains = critical > 0
    if not noises or not gains.any():
        return np.zeros(len(critical))
    expected = np.log(critical, where=gains, out=np.zeros(len(critical))) + _NOISE_OVER_CRITICAL
    fit = np.exp(-0.5 * ((float(np.median(np.log(noises))) - expected) / _NOISE_SPREAD) ** 2)
    return np.log(
        np.where(gains, fit, fit[gains].mean()) + 1e-12
    )  # it says nothing of whether there is a gain


def _spread(logs: Floats) -> Floats:
    """(K, 1) spread of runs about their middle, with a belief that counts as much as some of them."""
    many = logs.shape[1]
    squares = ((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum(axis=1) if many > 1 else 0.0
    return np.sqrt((_BELIEF * RUN_SPREAD**2 + squares) / (_BELIEF + max(many - 1, 0)) * np.ones(len(logs)))[
        :, None
    ]
