"""Machines that are lost, drawn: how many, and what that takes."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Floats

#: Of losses that come sooner than a run recovers: beyond, it hardly ever ends.
_MOST: Final = 3.0
#: Beyond so many the number is what is expected.
_MOST_LOSSES: Final = 50


def interrupted_s(
    work: Floats, before: Floats | float, rate: Floats, every: Floats, restart: Floats, seed: int | None
) -> Floats:
    """(S, m) seconds by lost machines.

    While what was lost is done again, and while another machine is waited for, more may be lost: then that
    begins again. What is lost before the work begins has done none.

    >>> x = np.ones((1, 1))
    >>> [round(interrupted_s(100 * x, 0.0, x / 100, s * x, 10 * x, None).item()) for s in (1, 20, 100)]
    [11, 23, 104]

    Args:
        work: (S, m) seconds to do.
        before: (S, m) seconds for which the machines are there until then.
        rate: (S, m) losses per second.
        every: (S, m) seconds between checkpoints.
        restart: (S, m) seconds from a loss until the work goes on.
        seed: of the draws; None: what is expected.
    """
    since = 0.5 if seed is None else np.random.default_rng((seed, 21)).uniform(size=(len(work), 1))
    at_work = rate * work * _begun_again(rate * every)
    early = rate * before
    expected = at_work + early
    mine = at_work / np.maximum(expected, 1e-12)
    each = mine * every * since + restart * _begun_again(rate * restart) - (1 - mine) * before / 2
    count = expected if seed is None else count_losses(expected, seed)
    return np.asarray(count * np.maximum(each, 0.0))


def _begun_again(losses: Floats) -> Floats:
    """How many times as long something takes that each of so many expected losses begins again."""
    losses = np.clip(losses, 1e-9, _MOST)
    return np.asarray(np.expm1(losses) / losses)


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
