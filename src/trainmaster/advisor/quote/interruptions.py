"""Machines that are lost, drawn: how many, and what that takes."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats

#: Beyond so many the number is what is expected.
_MOST_LOSSES: Final = 50


def interrupted_s(
    work: Floats, before: Floats | float, rate: Floats, every: Floats, restart: Floats, seed: int | None
) -> Floats:
    """(S, m) seconds by lost machines. What is lost before the work begins has done none.

    Losses while a run recovers are not counted: `RESTART_S` is wide, and above what most take.

    >>> x = np.ones((1, 1))
    >>> [round(interrupted_s(100 * x, s * x, x / 100, 20 * x, (10 + s) * x, None).item()) for s in (0, 20)]
    [20, 44]

    Args:
        work: (S, m) seconds to do.
        before: (S, m) seconds for which the machines are there until then.
        rate: (S, m) losses per second.
        every: (S, m) seconds between checkpoints.
        restart: (S, m) seconds from a loss until the work goes on.
        seed: of the draws; None: what is expected.
    """
    since = 0.5 if seed is None else np.random.default_rng((seed, 21)).uniform(size=(len(work), 1))
    there = work + before
    at_work = work / np.maximum(there, 1e-9)
    each = at_work * every * since + restart - (1 - at_work) * before / 2
    count = rate * there if seed is None else count_losses(rate * there, seed)
    return np.asarray(count * np.maximum(each, 0.0))


def count_losses(expected: Floats, seed: int) -> Floats:
    """(S, m) Poisson counts with (S, m) expectations, monotone in these: the same arrivals for all m.

    >>> count_losses(np.array([[0.0, 1.0, 60.0]]), 0).tolist()
    [[0.0, 3.0, 60.0]]
    """
    arrivals = np.random.default_rng((seed, 20)).exponential(size=(len(expected), _MOST_LOSSES)).cumsum(1)
    counts = np.zeros_like(expected)
    for i in range(_MOST_LOSSES):
        if not (arrivals[:, i : i + 1] <= expected).any():
            break
        counts += arrivals[:, i : i + 1] <= expected
    return np.maximum(counts, np.where(expected > _MOST_LOSSES, expected, 0.0))
