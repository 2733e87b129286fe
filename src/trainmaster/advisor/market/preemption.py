"""How often machines are taken back."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats

#: Beyond so many the number is what is expected.
_MOST: Final = 50


def preemptions(expected: Floats, seed: int) -> Floats:
    """(S, m) Poisson counts with (S, m) expectations, monotone in these: the same arrivals for all m.

    >>> preemptions(np.array([[0.0, 1.0, 60.0]]), 0).tolist()
    [[0.0, 3.0, 60.0]]
    """
    arrivals = np.random.default_rng((seed, 20)).exponential(size=(len(expected), _MOST)).cumsum(1)
    counts = np.zeros_like(expected)
    for i in range(_MOST):
        if not (arrivals[:, i : i + 1] <= expected).any():
            break
        counts += arrivals[:, i : i + 1] <= expected
    return np.maximum(counts, np.where(expected > _MOST, expected, 0.0))
