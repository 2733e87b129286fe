"""What the physics does not know: an error that is small near measured shapes and grows away from them.

The log of the true time is the log of the model's time plus a Gaussian process over shapes
(Kennedy and O'Hagan, "Bayesian calibration of computer models", 2001). With two points it is an
honest widening of the interval; with many it is the residual learner, because its mean then
bends the model towards what was measured near by. It has a part over all that a shape is, most of it smooth,
whose size is learnt, and a part of fixed size over the batch alone.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats, Shapes
from trainmaster.dataclass import dataclass

#: Distance of one doubling of workers, nodes, batch and servers, and of one e-fold of latency above 10 ms.
DOUBLING_WORKERS: Final = 0.25
DOUBLING_NODES: Final = 0.4
DOUBLING_BATCH: Final = 0.2
DOUBLING_SERVERS: Final = 0.2
FOLD_LATENCY: Final = 0.4
#: Distance between regimes: alone or not, in one node or over several.
ALONE: Final = 0.4
ONE_NODE: Final = 0.6
#: So much of its variance is smooth in sizes: what physics leaves out bends slowly; the rest is machines'.
SMOOTH: Final = 0.8

#: Amplitudes of the discrepancy and of the repeatability, log seconds.
AMPLITUDES: Final = np.array([0.02, 0.05, 0.11, 0.25])
NOISES: Final = np.array([0.01, 0.03, 0.08, 0.20])
#: Amplitude of the part over the batch, and the doublings over which it changes.
BATCH: Final = 0.12
BATCH_DOUBLINGS: Final = 8.0


def coordinates(shapes: Shapes) -> Floats:
    """(m, 7) coordinates of shapes of one kind: five sizes, and two regimes that it is in or not."""
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
        ]
    )


@dataclass(frozen=True)
class DiscrepancyCovariance:
    """Covariance between the errors of the model at n and at m shapes, (n, m) each.

    Attributes:
        shape: correlation of the part over all that a shape is.
        batch: covariance of the part over the batch, log seconds squared.
    """

    shape: Floats
    batch: Floats

    @classmethod
    def of(cls, a: Shapes, b: Shapes, reach: float = 1.0) -> DiscrepancyCovariance:
        """Between shapes, which are alike over ``reach`` times the usual distance."""
        away = np.abs(coordinates(a)[:, None] - coordinates(b)[None]) / reach
        sizes, regimes = away[..., :5], away[..., 5:].sum(-1)
        smooth = SMOOTH * np.exp(-0.5 * (sizes**2).sum(-1))
        shape = np.exp(-regimes) * (smooth + (1 - SMOOTH) * np.exp(-sizes.sum(-1)))
        folds = np.abs(np.log2(a.batch)[:, None] - np.log2(b.batch)[None])
        return cls(shape, BATCH**2 * np.exp(-folds / BATCH_DOUBLINGS))

    def covariance(self, amplitude: Floats) -> Floats:
        """(H, n, m) covariance of the discrepancy with (H,) amplitudes, log seconds squared."""
        return np.asarray(amplitude[:, None, None] ** 2 * self.shape + self.batch, dtype=float)
