"""What the physics does not know: an error that is small near measured shapes and grows away from them.

The log of the true time is the log of the model's time plus a Gaussian process over shapes
(Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001). With two points it is an
honest widening of the interval; with many it is the residual learner, because its mean then
bends the model towards what was measured near by. It has a rough part (product of
Ornstein-Uhlenbeck kernels), whose size is learnt, and a smooth part (product of Matern 3/2 kernels)
of fixed size, which is next to nothing between measured points and grows outside of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats, Shapes

#: Distance of one doubling of workers, nodes, batch and servers, and of one e-fold of latency above 10 ms.
DOUBLING_WORKERS: Final = 0.25
DOUBLING_NODES: Final = 0.4
DOUBLING_BATCH: Final = 0.2
DOUBLING_SERVERS: Final = 0.2
FOLD_LATENCY: Final = 0.4
#: Distance between regimes: alone or not, in one node or over several, server or not, synchronous or not.
ALONE: Final = 0.4
ONE_NODE: Final = 0.6
SERVERS: Final = 1.0
ASYNCHRONOUS: Final = 0.7

#: Amplitudes of the discrepancy and of the repeatability, log seconds, with their prior.
AMPLITUDES: Final = np.array([0.03, 0.06, 0.12, 0.24, 0.48])
NOISES: Final = np.array([0.006, 0.012, 0.025, 0.05, 0.1, 0.2, 0.4])
AMPLITUDE_MEDIAN: Final = 0.07
NOISE_MEDIAN: Final = 0.02
SPREAD: Final = 0.8
#: Amplitude of the smooth part, log seconds: it is not learnt, because the inside of what was
#: measured says nothing about the outside; and the spread of its logarithm.
SMOOTH: Final = 0.08
SMOOTH_SPREAD: Final = 0.4


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


@dataclass(frozen=True)
class Near:
    """How alike the errors at two sets of shapes are, (n, m) each.

    Attributes:
        rough: correlation of the rough part; falls from the first step on.
        smooth: correlation of the smooth part; flat at first.
    """

    rough: Floats
    smooth: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats) -> Near:
        """Between coordinates ``a`` (n, d) and ``b`` (m, d)."""
        distance = np.zeros((len(a), len(b)))
        smooth = np.ones_like(distance)
        for i in range(a.shape[1]):
            if a[:, i].any() or b[:, i].any():
                away = np.abs(a[:, None, i] - b[None, :, i])
                distance += away
                smooth *= 1 + np.sqrt(3) * away
        return cls(np.exp(-distance), smooth * np.exp(-np.sqrt(3) * distance))

    def covariance(self, amplitude: float) -> Floats:
        """(n, m) covariance of the discrepancy, log seconds squared."""
        return amplitude**2 * self.rough + SMOOTH**2 * self.smooth


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
    def of(cls, residual: Floats, physics: Floats, near: Near, inflation: Floats) -> Scales:
        """Weigh every pair by the marginal likelihood of the linearised model.

        Args:
            residual: (n,) log measured - log predicted by the prior mean, linearised.
            physics: (n, n) prior covariance of the physics' log predictions.
            near: the measured shapes, to each other.
            inflation: (n,) factor on the noise's variance of each point (robustness).
        """
        grid = np.array([(a, s) for a in AMPLITUDES for s in NOISES])
        score = (
            -0.5
            * ((np.log(grid[:, 0] / AMPLITUDE_MEDIAN)) ** 2 + (np.log(grid[:, 1] / NOISE_MEDIAN)) ** 2)
            / SPREAD**2
        )
        n = len(residual)
        bordered = np.empty(
            (n + 1, n + 1)
        )  # its Cholesky factor ends in the whitened residual: one call does both
        bordered[n, :n] = bordered[:n, n] = residual
        for i, (amplitude, noise) in enumerate(grid):
            block = physics + near.covariance(amplitude)
            block[np.diag_indices(n)] += noise**2 * inflation
            bordered[:n, :n] = block
            bordered[n, n] = 1e3 * (residual @ residual) / (noise**2 + 1e-9) + 1.0
            root = np.linalg.cholesky(bordered)
            score[i] -= 0.5 * root[n, :n] @ root[n, :n] + np.log(np.diag(root)[:n]).sum()
        weight = np.exp(score - score.max())
        weight /= weight.sum()
        amplitude, noise = np.exp(weight @ np.log(grid))
        return cls(float(amplitude), float(noise), grid, weight)


def covariance(scales: Scales, near: Near, inflation: Floats) -> Floats:
    """(n, n) covariance of discrepancy plus noise between the measured points."""
    total = near.covariance(scales.amplitude)
    total[np.diag_indices(len(total))] += scales.noise**2 * inflation
    return total
