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


def from_start_s(
    work: Floats, done: Floats | float, rate: Floats, restart: Floats, seed: int | None
) -> Floats:
    """(S, m) seconds by lost machines where each loss costs all that was done since the start.

    It begins again until no machine is lost for as long as all of it takes.

    >>> x = np.ones((1, 1))
    >>> round(from_start_s(100 * x, 0.0, x / 100, 10 * x, None).item())  # (e - 1) * (100 + 10) - 100
    89

    Args:
        work: (S, m) seconds to do.
        done: (S, m) seconds of work that are done.
        rate: (S, m) losses per second.
        restart: (S, m) seconds from a loss until it begins again.
        seed: of the draws; None: what is expected.
    """
    whole, rate = work + done, np.maximum(rate, 1e-300)
    if seed is None:
        tries = np.expm1(np.minimum(rate * whole, _MOST_LOSSES))
        return np.asarray(np.maximum(tries * (1 / rate + restart) - whole, 0.0))
    gaps = np.random.default_rng((seed, 20)).exponential(size=(len(work), _MOST_LOSSES))
    lost = np.zeros_like(whole + rate)
    is_lost = np.ones_like(lost, dtype=bool)
    for i in range(_MOST_LOSSES):
        since = gaps[:, i : i + 1] / rate
        is_lost = is_lost & (since < (whole if i else work))
        if not is_lost.any():
            break
        lost = lost + np.where(is_lost, since + restart + (0.0 if i else done), 0.0)
    return np.asarray(lost)


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
