"""What the physics does not know: an error that is small near measured shapes and grows away from them.

The log of the true time is the log of the model's time plus a Gaussian process over shapes
(Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001). With two points it is an
honest widening of the interval; with many it is the residual learner, because its mean then
bends the model towards what was measured near by. Its kernel is a product of Ornstein-Uhlenbeck
kernels: in each direction an independent small error per doubling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.shapes import Floats, Shapes

#: Distance of one doubling of workers, nodes, batch and servers, and of one e-fold of latency above 10 ms.
DOUBLING_WORKERS: Final = 0.25
DOUBLING_NODES: Final = 0.25
DOUBLING_BATCH: Final = 0.2
DOUBLING_SERVERS: Final = 0.2
FOLD_LATENCY: Final = 0.25
#: Distance between regimes: alone or not, in one node or over several, server or not, synchronous or not.
ALONE: Final = 0.4
ONE_NODE: Final = 0.6
SERVERS: Final = 1.0
ASYNCHRONOUS: Final = 0.7

#: Amplitudes of the discrepancy and of the repeatability, log seconds, with their prior.
AMPLITUDES: Final = np.array([0.03, 0.05, 0.08, 0.13, 0.21, 0.34])
NOISES: Final = np.array([0.006, 0.012, 0.025, 0.05, 0.1])
AMPLITUDE_MEDIAN: Final = 0.1
NOISE_MEDIAN: Final = 0.02
SPREAD: Final = 0.8


def coordinates(shapes: Shapes) -> Floats:
    """(m, 9) coordinates in which the L1 distance is the distance between shapes."""
    several = (shapes.nodes > 1) & (shapes.kind == 0)
    return np.column_stack(
        [
            DOUBLING_WORKERS * np.log2(shapes.workers),
            DOUBLING_NODES * np.log2(shapes.nodes) * (shapes.kind == 0),
            DOUBLING_BATCH * np.log2(shapes.batch),
            DOUBLING_SERVERS * np.log2(shapes.servers) * (shapes.kind > 0),
            FOLD_LATENCY * np.arcsinh(shapes.latency / 0.01),
            ALONE * (shapes.workers > 1),
            ONE_NODE * several,
            SERVERS * (shapes.kind > 0),
            ASYNCHRONOUS * (shapes.kind == 2),
        ]
    )


def correlation(a: Floats, b: Floats) -> Floats:
    """(n, m) correlation of the discrepancy at coordinates ``a`` (n, d) and ``b`` (m, d)."""
    distance = np.zeros((len(a), len(b)))
    for i in range(a.shape[1]):
        if a[:, i].any() or b[:, i].any():
            distance += np.abs(a[:, None, i] - b[None, :, i])
    return np.exp(-distance)


@dataclass(frozen=True)
class Scales:
    """How large discrepancy and noise are, in log seconds, with what is left uncertain.

    Attributes:
        amplitude, noise: the most probable pair.
        grid: (G, 2) candidates. weight: (G,) their posterior probabilities.
    """

    amplitude: float
    noise: float
    grid: Floats
    weight: Floats

    @classmethod
    def of(cls, residual: Floats, physics: Floats, near: Floats, inflation: Floats) -> Scales:
        """Weigh every pair by the marginal likelihood of the linearised model.

        Args:
            residual: (n,) log measured - log predicted by the prior mean, linearised.
            physics: (n, n) prior covariance of the physics' log predictions.
            near: (n, n) correlation of the discrepancy.
            inflation: (n,) factor on the noise's variance of each point (robustness).
        """
        grid = np.array([(a, s) for a in AMPLITUDES for s in NOISES])
        score = (
            -0.5
            * ((np.log(grid[:, 0] / AMPLITUDE_MEDIAN)) ** 2 + (np.log(grid[:, 1] / NOISE_MEDIAN)) ** 2)
            / SPREAD**2
        )
        for i, (amplitude, noise) in enumerate(grid):
            covariance = physics + amplitude**2 * near
            covariance[np.diag_indices(len(near))] += noise**2 * inflation
            root = np.linalg.cholesky(covariance)
            white = np.linalg.solve(root, residual)
            score[i] -= 0.5 * white @ white + np.log(np.diag(root)).sum()
        weight = np.exp(score - score.max())
        weight /= weight.sum()
        amplitude, noise = np.exp(weight @ np.log(grid))
        return cls(float(amplitude), float(noise), grid, weight)


def covariance(scales: Scales, near: Floats, inflation: Floats) -> Floats:
    """(n, n) covariance of discrepancy plus noise between the measured points."""
    total = scales.amplitude**2 * near
    total[np.diag_indices(len(near))] += scales.noise**2 * inflation
    return total
