"""Draws from the posterior of the parameters.

Laplace's normal approximation is wrong where it matters here: with three points most parameters
are bounded on one side only. So it is only the proposal: its draws are moved by a few steps of
generalised elliptical slice sampling (Murray, Adams and MacKay, 2010; Nishihara, Murray and
Adams, "Parallel MCMC with generalized elliptical slice sampling", JMLR 2014), which needs no
tuning and leaves the exact posterior invariant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from trainmaster.advisor.model.fit import Optimum, Problem
from trainmaster.advisor.model.shapes import Floats

DRAWS: Final = 384
_SHRINKS: Final = 12
_WIDEN: Final = 1.2
#: Evaluations (draws x points) that the moves may cost, to keep jobs with many points fast.
_EVALUATIONS: Final = 400_000


def draw(problem: Problem, optimum: Optimum, covariance: Floats, seed: int) -> Floats:
    """(DRAWS, P) log parameters from the posterior.

    Args:
        problem: shapes, times and prior.
        optimum: where the posterior is largest.
        covariance: (n, n) of discrepancy plus noise.
        seed: of the random numbers; the same seed gives the same draws.
    """
    rng = np.random.default_rng(seed)
    whitener = np.linalg.inv(np.linalg.cholesky(covariance))
    white = whitener @ optimum.jacobian
    size = len(optimum.z)
    precision = (white.T @ white + np.eye(size)) / _WIDEN**2
    root = np.linalg.inv(np.linalg.cholesky(precision)).T

    def log_ratio(z: Floats) -> Floats:
        residual = (problem.log_times - problem.log_model(z)) @ whitener.T
        away = z - optimum.z
        total: Floats = ((away @ precision) * away).sum(-1) - (residual**2).sum(-1) - (z**2).sum(-1)
        return 0.5 * total

    z = optimum.z + rng.standard_normal((DRAWS, size)) @ root.T
    ratio = log_ratio(z)
    moves = int(np.clip(_EVALUATIONS / (DRAWS * len(problem.log_times) * 3), 2, 5))
    for _ in range(moves):
        z, ratio = _slice_step(z, ratio, optimum.z, root, log_ratio, rng)
    return problem.prior.mean + z @ problem.prior.root.T


def _slice_step(
    z: Floats,
    ratio: Floats,
    centre: Floats,
    root: Floats,
    log_ratio: Callable[[Floats], Floats],
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Move every draw once along its own ellipse."""
    away = z - centre
    other = rng.standard_normal(z.shape) @ root.T
    threshold = ratio + np.log(rng.uniform(size=len(z)))
    angle = rng.uniform(0, 2 * np.pi, len(z))
    low, high = angle - 2 * np.pi, angle.copy()
    new, new_ratio = z.copy(), ratio.copy()
    todo = np.arange(len(z))
    for _ in range(_SHRINKS):
        trial = centre + away[todo] * np.cos(angle[todo, None]) + other[todo] * np.sin(angle[todo, None])
        value = log_ratio(trial)
        good = value > threshold[todo]
        new[todo[good]], new_ratio[todo[good]] = trial[good], value[good]
        todo = todo[~good]
        if not len(todo):
            break
        low[todo] = np.where(angle[todo] < 0, angle[todo], low[todo])
        high[todo] = np.where(angle[todo] >= 0, angle[todo], high[todo])
        angle[todo] = rng.uniform(low[todo], high[todo])
    return new, new_ratio
