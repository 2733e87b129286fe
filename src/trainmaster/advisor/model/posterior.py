"""Draws from the exact posterior of the parameters, by importance sampling.

Parameters are drawn from the prior, then, while few of them count, from where the weight was (Cappe et al.,
"Population Monte Carlo", 2004). Level, discrepancy and noise are normal given the rest, so they are
integrated out in closed form; amplitude, noise and the one row that may be off are few enough to try all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.model.discrepancy import AMPLITUDES, NOISES, DiscrepancyCovariance
from trainmaster.advisor.model.physics import log_time
from trainmaster.advisor.model.priors import Prior, bounded
from trainmaster.advisor.model.shapes import Bools, Floats, Shapes
from trainmaster.dataclass import dataclass

Singles = NDArray[np.float32]

#: Parameter vectors in each round, most rounds after the first, and how many are drawn in the end.
PARTICLES: Final = 2400
ROUNDS: Final = 6
DRAWS: Final = 384
#: Of so many rows, from the least to the most, one may be off, with this probability each, by so much (log).
FEW: Final = 8
_LEAST_TO_DOUBT: Final = 3
_OFF: Final = 0.03
_OFF_LOG: Final = 0.5
#: Scale (log) and degrees of freedom of robust errors.
_ROBUST_SCALE: Final = 0.06
_FREEDOM: Final = 3.0
#: A draw in so many has this spread, in units of the prior's.
_HEAVY: Final = 0.1
_WIDE: Final = 2.0
#: Of the proposals: how many are of the prior, how much wider they are than what they imitate, and how many
#: effective particles that rests on.
_OF_PRIOR: Final = 0.2
_INFLATED: Final = 1.3
_BLUNT: Final = 0.05
_TEMPERED: Final = 40.0
#: With this share of effective particles there is nothing left to gain.
_GOOD: Final = 1 / 12
#: A parameter that changes no measured row by more (log) is as the prior has it.
_FELT: Final = 1e-9


@dataclass(frozen=True)
class Errors:
    """What discrepancy and noise may be: H hypotheses about n measured rows, with the level integrated out.

    Attributes:
        cell: (H,) index into the grid of amplitudes and noises. row: (H,) that is off, or -1.
        inverse: (H, n, n) of the covariance. pull: (H, n) its row sums. total: (H,) their sums.
        log_weight: (H,) of the determinant, and of the row that is off.
    """

    cell: NDArray[np.int_]
    row: NDArray[np.int_]
    inverse: Floats
    pull: Floats
    total: Floats
    log_weight: Floats

    @classmethod
    def of(
        cls, near: DiscrepancyCovariance, variance: Floats, suspects: NDArray[np.int_], inflation: Floats
    ) -> Errors:
        """For measured rows.

        Args:
            near: of the rows to each other.
            variance: (n,) beside discrepancy and noise.
            suspects: rows of which one may be off.
            inflation: (n,) factor on the variance of the noise.
        """
        cells, n = len(AMPLITUDES) * len(NOISES), len(variance)
        row = np.repeat([-1, *suspects.tolist()], cells)
        cell = np.tile(np.arange(cells), len(suspects) + 1)
        covariance = near.covariance(AMPLITUDES[cell // len(NOISES)])
        rows = np.arange(n)
        covariance[:, rows, rows] += NOISES[cell % len(NOISES), None] ** 2 * inflation + variance
        some = np.flatnonzero(row >= 0)
        covariance[some, row[some], row[some]] += _OFF_LOG**2
        inverse: Floats = np.linalg.inv(covariance).astype(float)
        pull: Floats = inverse.sum(1)
        total: Floats = pull.sum(1)
        log_weight = np.where(row >= 0, np.log(_OFF), np.log(1 - _OFF * len(suspects)))
        log_weight -= 0.5 * (np.linalg.slogdet(covariance)[1] + np.log(total))
        return cls(cell, row, inverse, pull, total, log_weight)

    def log_likelihood(self, residual: Floats) -> Singles:
        """(H, K) of (K, n) log measured - log predicted, but for `log_weight` and the prior of the cells."""
        # It is blind to the level: without that, single precision says all that tells particles apart.
        away = (residual - residual.mean(1, keepdims=True)).T.astype(np.float32)
        contrast = self._contrast
        if contrast.ndim == 2:
            one, other = np.triu_indices(len(away))
            return np.asarray(contrast @ (away[one] * away[other]))
        return np.stack([-0.5 * ((each @ away) * away).sum(0) for each in contrast])

    @cached_property
    def _contrast(self) -> NDArray[np.float32]:
        """What a likelihood is of, without the level: (H, pairs) of a few rows, else (H, n, n).

        Both are symmetric: of a few rows half of the pairs say all.
        """
        contrast = self.inverse - self.pull[:, :, None] * self.pull[:, None] / self.total[:, None, None]
        if contrast.shape[1] > FEW:
            return contrast.astype(np.float32)
        one, other = np.triu_indices(contrast.shape[1])
        return (contrast[:, one, other] * np.where(one == other, -0.5, -1.0)).astype(np.float32)

    def level(self, residual: Floats, which: NDArray[np.int_]) -> Floats:
        """(S,) mean of the level, of (S, n) residuals under the hypotheses ``which``."""
        return np.asarray((residual * self.pull[which]).sum(1) / self.total[which], dtype=float)


@dataclass(frozen=True)
class RobustErrors(Errors):
    """Student-t errors of one scale, for a first look at many rows (Lange, Little and Taylor, 1989)."""

    @classmethod
    def plain(cls) -> RobustErrors:
        """Without any of the other fields."""
        one, none = np.zeros(1, dtype=int), np.empty(0)
        return cls(one, one - 1, none, none, none, np.zeros(1))

    def log_likelihood(self, residual: Floats) -> Singles:
        """(1, K) of (K, n) log measured - log predicted, but for the level."""
        away = (residual - np.median(residual, axis=1, keepdims=True)) / _ROBUST_SCALE
        found = -0.5 * (_FREEDOM + 1) * np.log1p(away**2 / _FREEDOM).sum(1)
        return np.asarray(found[None], dtype=np.float32)

    def level(self, residual: Floats, which: NDArray[np.int_]) -> Floats:
        """(S,) of (S, n) residuals."""
        return np.asarray(np.median(residual, axis=1), dtype=float)


@dataclass(frozen=True)
class Measured:
    """The rows of one job.

    Attributes:
        shapes, log_times: (n,) each.
        priors: one or more, each as likely as the others.
        errors: what they may deviate by.
    """

    shapes: Shapes
    log_times: Floats
    priors: tuple[Prior, ...]
    errors: Errors

    @classmethod
    def of(
        cls, shapes: Shapes, log_times: Floats, priors: tuple[Prior, ...], inflation: Floats | float = 1.0
    ) -> Measured:
        """With errors as shapes have them; ``inflation`` (n,) is a factor on the variance of the noise.

        Of three rows to a few one may be off, but never of the largest cluster.
        """
        few = _LEAST_TO_DOUBT <= len(log_times) <= FEW
        suspects = np.flatnonzero(shapes.workers < shapes.workers.max()) if few else np.empty(0, dtype=int)
        near = DiscrepancyCovariance.of(shapes, shapes)
        errors = Errors.of(near, shapes.guess**2, suspects, np.broadcast_to(inflation, log_times.shape))
        return cls(shapes, log_times, priors, errors)

    @property
    def kind(self) -> int:
        """Of the job."""
        return int(self.shapes.kind[0])

    def residual(self, parameters: Floats) -> Floats:
        """(K, n) log measured - log predicted but for the level, of (K, P) parameters without it."""
        theta = np.column_stack([np.zeros(len(parameters)), parameters])
        return self.log_times - log_time(theta, self.shapes)


@dataclass(frozen=True)
class Posterior:
    """S draws.

    Attributes:
        theta: (S, P + 1) parameters, the level first.
        standard: (S, P) the same in units of the spread of the draw's prior, from its mean.
        absent: (S, P) terms that are absent.
        prior: (S,) of which prior they are. hypothesis: (S,) of the errors.
        off: (n,) probability that a row is off.
        effective: how many of the particles are felt.
    """

    theta: Floats
    standard: Floats
    absent: Bools
    prior: NDArray[np.int_]
    hypothesis: NDArray[np.int_]
    off: Floats
    effective: float

    @classmethod
    def of(
        cls,
        measured: Measured,
        seed: int = 0,
        particles: int = PARTICLES,
        draws: int = DRAWS,
        rounds: int = ROUNDS,
        like: Posterior | None = None,
    ) -> Posterior:
        """Draw; the same seed gives the same draws.

        Args:
            measured: the rows.
            seed: of the draws.
            particles: in each round.
            draws: so many in the end.
            rounds: at most, after the first.
            like: of the same job on another type of machine: the first round is near its draws.
        """
        each = particles // len(measured.priors)
        starts = [like.under(i) if like is not None else None for i in range(len(measured.priors))]
        clouds = [
            _WeightedParticles.of(measured, prior, each, rounds, np.random.default_rng((seed, i)), start)
            for i, (prior, start) in enumerate(zip(measured.priors, starts, strict=True))
        ]
        weight = _weights(np.concatenate([cloud.total for cloud in clouds]))
        upto, even = np.cumsum(weight), (np.arange(draws) + 0.5) / draws
        pick = np.minimum(np.searchsorted(upto, even), len(weight) - 1)
        first = np.cumsum([0, *(len(cloud.total) for cloud in clouds)])
        which = np.searchsorted(first, pick, side="right") - 1
        particle = pick - first[which]
        share = np.hstack([cloud.share_of(particle[which == i]) for i, cloud in enumerate(clouds)])
        within = 1 - (upto[pick] - even) / weight[pick]
        hypothesis = (np.cumsum(share, axis=0)[:-1] < within).sum(0)
        parameters = np.empty((draws, len(measured.priors[0].spread)))
        standard, absent = np.empty_like(parameters), np.empty(parameters.shape, dtype=bool)
        for i, cloud in enumerate(clouds):
            rows = which == i
            rng = np.random.default_rng((seed, len(clouds) + i))
            standard[rows], absent[rows] = cloud.whole(particle[rows], rng)
            parameters[rows] = _parameters(measured, cloud.prior, standard[rows], absent[rows])
        level = measured.errors.level(measured.residual(parameters), hypothesis)
        off = np.zeros(len(measured.log_times))
        doubted = measured.errors.row >= 0
        np.add.at(off, measured.errors.row[doubted], share[doubted].mean(1))
        effective = float(1 / (weight**2).sum())
        theta = np.column_stack([level, parameters])
        return cls(theta, standard, absent, which, hypothesis, off, effective)

    def under(self, prior: int) -> tuple[Floats, Bools] | None:
        """(K, P) standard coordinates and absent terms under one of its priors; None of few."""
        rows = self.prior == prior
        return (self.standard[rows], self.absent[rows]) if rows.sum() > _TEMPERED else None

    def with_level(self, measured: Measured) -> Posterior:
        """The same draws, whose level is that of more rows."""
        theta = self.theta.copy()
        theta[:, 0] = measured.errors.level(measured.residual(theta[:, 1:]), self.hypothesis)
        return replace(self, theta=theta)


@dataclass(frozen=True)
class _ProposalMoments:
    """Moments of the particles, from which new ones are proposed.

    Attributes:
        mean: (A,). spread: (A, A). absent: (A,).
    """

    mean: Floats
    spread: Floats
    absent: Floats

    @classmethod
    def of(cls, z: Floats, absent: Bools, weight: Floats) -> _ProposalMoments:
        """Of particles with (K,) weights."""
        mean = weight @ z
        away = z - mean
        spread = _INFLATED * (away * weight[:, None]).T @ away + _BLUNT * np.eye(z.shape[1])
        return cls(mean, spread, weight @ absent)


@dataclass(frozen=True)
class _WeightedParticles:
    """K weighted particles under one prior, with A of its P parameters: those that the rows can feel.

    Attributes:
        measured, prior: whose they are. felt: (A,) parameters.
        z: (K, A) in units of the spread, from the mean. absent: (K, A).
        total: (K,) log weights, so that the sum of their exponentials is the evidence.
        shares: of each round (H, count) what each hypothesis has of its particles' weight, in any unit.
    """

    measured: Measured
    prior: Prior
    felt: NDArray[np.int_]
    z: Floats
    absent: Bools
    total: Floats
    shares: tuple[Singles, ...]

    @classmethod
    def of(
        cls,
        measured: Measured,
        prior: Prior,
        count: int,
        rounds: int,
        rng: np.random.Generator,
        like: tuple[Floats, Bools] | None = None,
    ) -> _WeightedParticles:
        """Population Monte Carlo, until enough particles are felt: those of all rounds together."""
        felt, made, near = _felt(measured, prior), list[_WeightedParticles](), None
        if like is not None:
            z, absent = like
            near = _ProposalMoments.of(z[:, felt], absent[:, felt], np.full(len(z), 1 / len(z)))
        while True:
            made.append(cls._drawn(measured, prior, felt, near, count, rng))
            # Each round counts as much as its particles are felt: so are most of all together.
            numbers = np.array([1 / (_weights(each.total) ** 2).sum() for each in made])
            parts = np.log(numbers / numbers.sum()).tolist()
            total = np.concatenate([each.total + part for each, part in zip(made, parts, strict=True)])
            z = np.vstack([each.z for each in made])
            absent = np.vstack([each.absent for each in made])
            if numbers.sum() > _GOOD * count or len(made) > rounds:
                shares = tuple(share for each in made for share in each.shares)
                return cls(measured, prior, felt, z, absent, total, shares)
            near = _ProposalMoments.of(z, absent, _tempered(total))

    @classmethod
    def _drawn(
        cls,
        measured: Measured,
        prior: Prior,
        felt: NDArray[np.int_],
        near: _ProposalMoments | None,
        count: int,
        rng: np.random.Generator,
    ) -> _WeightedParticles:
        """One round, of the prior or near what was seen before."""
        z, absent, correction = _proposed(prior.absent[felt], near, count, rng)
        errors = measured.errors
        # many particles of a few numbers each: all that follows goes along the particles
        standard, absences = np.zeros((2, len(prior.spread), count))
        standard[felt], absences[felt] = z.T, absent.T
        parameters = _parameters(measured, prior, standard.T, absences.T > 0)
        share = errors.log_likelihood(measured.residual(parameters))
        believed = errors.log_weight + np.log(prior.grid.ravel() + 1e-9)[errors.cell]
        share += believed[:, None].astype(np.float32)
        top = share.max(0)
        share -= top
        np.exp(share, out=share)
        log_weight = correction - np.log(count) + top + np.log(share.sum(0))
        return cls(measured, prior, felt, z, absent, log_weight, (share,))

    def share_of(self, rows: NDArray[np.int_]) -> Singles:
        """(H, S) of the weight of some particles, in their order, what each hypothesis has."""
        turn, at = np.divmod(rows, self.shares[0].shape[1])
        found = np.hstack([share[:, at[turn == i]] for i, share in enumerate(self.shares)])
        return found / found.sum(0)

    def whole(self, rows: NDArray[np.int_], rng: np.random.Generator) -> tuple[Floats, Bools]:
        """(S, P) standard coordinates and flags of some particles; what is not felt comes from the prior."""
        z, size = self.z[rows], len(self.prior.spread)
        even = (np.arange(len(rows)) + 0.5) / len(rows)
        normal = np.array([NormalDist().inv_cdf(p) for p in even.tolist()])
        heavy = rng.permutation(even) < _heavy(z)
        # each column evenly spread, in random order: a few hundred draws have a prior's quantiles
        standard = rng.permuted(np.tile(normal, (size, 1)), axis=1).T * np.where(heavy, _WIDE, 1.0)[:, None]
        shares = rng.permuted(np.tile(even, (size, 1)), axis=1).T
        absent = shares < self.prior.absent
        standard[:, self.felt], absent[:, self.felt] = z, self.absent[rows]
        return standard, absent


def _proposed(
    scarce: Floats, near: _ProposalMoments | None, count: int, rng: np.random.Generator
) -> tuple[Floats, Bools, Floats]:
    """Particles, absent terms, and log prior - log proposal."""
    size = len(scarce)
    if near is None:
        z = rng.standard_normal((count, size)) * _scales(count, rng)
        return z, rng.uniform(size=z.shape) < scarce, np.zeros(count)
    root = np.linalg.cholesky(near.spread)
    z = near.mean + rng.standard_normal((count, size)) @ root.T
    fresh = rng.uniform(size=count) < _OF_PRIOR
    again = rng.standard_normal((int(fresh.sum()), size))
    z[fresh] = again * _scales(len(again), rng)
    square = (((z - near.mean) @ np.linalg.inv(root).T) ** 2).sum(1)
    log_root = np.log(np.diag(root)).sum()
    of_prior = _log_prior(z)
    proposed = np.logaddexp(np.log(1 - _OF_PRIOR) - 0.5 * square - log_root, np.log(_OF_PRIOR) + of_prior)
    chance = np.clip(0.5 * (near.absent + scarce), 0, 0.97) * (scarce > 0)
    absent = rng.uniform(size=z.shape) < chance
    tiny = 1e-12
    there, not_there = np.log((scarce + tiny) / (chance + tiny)), np.log((1 - scarce) / (1 - chance))
    return z, absent, of_prior - proposed + absent @ (there - not_there) + not_there.sum()


def _parameters(measured: Measured, prior: Prior, standard: Floats, absent: Bools) -> Floats:
    """(S, P) without the level, of standard coordinates."""
    return bounded(measured.kind, prior.rows[0] + prior.spread * standard, absent)


def _felt(measured: Measured, prior: Prior) -> NDArray[np.int_]:
    """Parameters that change measured rows against each other; all others are as the prior has them."""
    size = len(prior.spread)
    moved = prior.rows[0] + np.vstack([np.zeros(size), np.diag(prior.spread), -np.diag(prior.spread)])
    change = measured.residual(bounded(measured.kind, moved, np.zeros(moved.shape, dtype=bool)))
    change = np.abs((change - change[:1]) - (change - change[:1]).mean(1, keepdims=True)).max(1)
    return np.flatnonzero(np.maximum(change[1 : size + 1], change[size + 1 :]) > _FELT)


def _scales(count: int, rng: np.random.Generator) -> Floats:
    return np.where(rng.uniform(size=count) < _HEAVY, _WIDE, 1.0)[:, None]


def _log_prior(z: Floats) -> Floats:
    square = (z**2).sum(1)
    heavy = np.log(_HEAVY) - 0.5 * square / _WIDE**2 - z.shape[1] * np.log(_WIDE)
    return np.logaddexp(np.log(1 - _HEAVY) - 0.5 * square, heavy)


def _heavy(z: Floats) -> Floats:
    """(K,) probability that a draw is of the wide part of its prior."""
    odds = (1 - _HEAVY) / _HEAVY * _WIDE ** z.shape[1] * np.exp(-0.5 * (1 - _WIDE**-2) * (z**2).sum(1))
    return np.asarray(1 / (1 + odds), dtype=float)


def _weights(log_weight: Floats) -> Floats:
    """(K,) that sum to one."""
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(weight / weight.sum(), dtype=float)


def heaviness(standard: Floats) -> Floats:
    """(S,) expected 1 / scale^2 of draws: what keeps a heavy tail from widening a prior learnt of them."""
    return 1 - (1 - _WIDE**-2) * _heavy(standard)


def thinned(rows: NDArray[np.int_], most: int) -> NDArray[np.int_]:
    """All of them, or so many at random, in order."""
    if len(rows) <= most:
        return rows
    return np.sort(np.random.default_rng(2).choice(rows, most, replace=False))


def _tempered(log_weight: Floats) -> Floats:
    """(K,) weights, as blunt as it takes to have enough of them."""
    shifted, power = log_weight - log_weight.max(), 1.0
    while True:
        weight = np.exp(power * shifted)
        if weight.sum() ** 2 / (weight**2).sum() > _TEMPERED or power < 0.05:
            return np.asarray(weight / weight.sum(), dtype=float)
        power *= 0.7
