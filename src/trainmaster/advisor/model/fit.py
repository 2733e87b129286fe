"""Maximum a posteriori by Levenberg-Marquardt, several starts at once, in NumPy.

Everything happens in whitened coordinates z (``theta = mean + root @ z``), where the prior is a
standard normal: it keeps the problem well-posed with fewer points than parameters, and takes
the place of bounds. Robustness: Student-t residuals by iteratively reweighted least squares
(Lange, Little and Taylor, "Robust statistical modeling using the t distribution", 1989).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.model.physics import step_time
from trainmaster.advisor.model.priors import Prior
from trainmaster.advisor.model.shapes import Floats, Shapes

_STEP: Final = 1e-5
_FREEDOM: Final = 3.0
#: (R, n) residuals and their (R, n, P) Jacobian -> (R,) loss, and both as least squares see them.
_Bend = Callable[[Floats, Floats], tuple[Floats, Floats, Floats]]


@dataclass(frozen=True)
class Problem:
    """One job's measured shapes and times, under a prior.

    Attributes:
        prior: of the parameters.
        shapes: (n) measured shapes.
        log_times: (n,) log seconds.
    """

    prior: Prior
    shapes: Shapes
    log_times: Floats

    def log_model(self, z: Floats) -> Floats:
        """(R, n) log seconds that the model predicts for z (R, P)."""
        return np.log(step_time(self.prior.mean + z @ self.prior.root.T, self.shapes))

    def linearise(self, z: Floats) -> tuple[Floats, Floats]:
        """Predictions (R, n) and their Jacobian (R, n, P) at z (R, P), by forward differences."""
        starts, size = z.shape
        moved = np.repeat(z[:, None, :], size + 1, axis=1)
        moved[:, np.arange(1, size + 1), np.arange(size)] += _STEP
        value = self.log_model(moved.reshape(-1, size)).reshape(starts, size + 1, -1)
        return value[:, 0], np.moveaxis(value[:, 1:] - value[:, :1], 1, 2) / _STEP


@dataclass(frozen=True)
class Optimum:
    """Where the posterior is largest.

    Attributes:
        z: (P,). cost: half the squared distance, prior included.
        log_model: (n,). jacobian: (n, P), of ``log_model`` by z.
    """

    z: Floats
    cost: float
    log_model: Floats
    jacobian: Floats


def robust(problem: Problem, starts: Floats, scale: float) -> Optimum:
    """Fit with independent Student-t residuals of the given scale (log seconds), from (R, P) starts."""

    def bend(residual: Floats, jacobian: Floats) -> tuple[Floats, Floats, Floats]:
        square = (residual / scale) ** 2 / _FREEDOM
        weight = np.sqrt((_FREEDOM + 1) / _FREEDOM / (1 + square)) / scale
        loss = 0.5 * (_FREEDOM + 1) * np.log1p(square).sum(-1)
        return loss, residual * weight, jacobian * weight[..., None]

    tolerance = 1e-4 * max(1.0, np.sqrt(len(problem.log_times)))
    return _descend(problem, starts, bend, damping=0.1, iterations=40, tolerance=tolerance)


def correlated(problem: Problem, starts: Floats, covariance: Floats) -> Optimum:
    """Fit with jointly normal residuals of the given covariance (n, n), log seconds squared."""
    whitener = np.linalg.inv(np.linalg.cholesky(covariance))

    def bend(residual: Floats, jacobian: Floats) -> tuple[Floats, Floats, Floats]:
        target = residual @ whitener.T
        return 0.5 * (target**2).sum(-1), target, whitener @ jacobian

    return _descend(problem, starts, bend, damping=0.01, iterations=20, tolerance=1e-3)


def _descend(
    problem: Problem, starts: Floats, bend: _Bend, *, damping: float, iterations: int, tolerance: float
) -> Optimum:
    """Levenberg-Marquardt from all starts at once; the best of where they end."""
    z, damped = starts.copy(), np.full(len(starts), damping)
    value, jacobian = problem.linearise(z)
    loss, target, white = bend(problem.log_times - value, jacobian)
    cost = loss + 0.5 * (z**2).sum(-1)
    for _ in range(iterations):
        step = _solve(white, target, z, damped)
        trial = z + step
        new_value, new_jacobian = problem.linearise(trial)
        loss, new_target, new_white = bend(problem.log_times - new_value, new_jacobian)
        new_cost = loss + 0.5 * (trial**2).sum(-1)
        better = new_cost < cost
        done = np.where(better, cost - new_cost, np.abs(step).max(-1)).max() < tolerance
        z[better], value[better], jacobian[better] = trial[better], new_value[better], new_jacobian[better]
        target[better], white[better], cost[better] = new_target[better], new_white[better], new_cost[better]
        damped = np.where(better, damped * 0.2, damped * 5.0)
        if done:
            break
    best = int(np.argmin(cost))
    return Optimum(z[best], float(cost[best]), value[best], jacobian[best])


def _solve(white: Floats, target: Floats, z: Floats, damping: Floats) -> Floats:
    """One damped Gauss-Newton step for each start."""
    size = z.shape[1]
    hessian = np.swapaxes(white, 1, 2) @ white
    diagonal = np.arange(size)
    hessian[:, diagonal, diagonal] += 1.0
    gradient = (np.swapaxes(white, 1, 2) @ target[..., None])[..., 0] - z
    hessian[:, diagonal, diagonal] *= 1 + damping[:, None]
    step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
    return np.clip(step, -1.5, 1.5)
