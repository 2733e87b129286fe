"""Whether a measurement can change what is decided. Pure."""

from __future__ import annotations

from statistics import NormalDist
from typing import Final

import numpy as np

from trainmaster.advisor.model.shapes import Bools, Floats
from trainmaster.advisor.quote.choosing import ALIKE, QuoteLimits
from trainmaster.advisor.quote.quantiles import SURE
from trainmaster.dataclass import dataclass

#: What is measured to decide has at least this chance to change the decision.
LEAST_CHANCE: Final = 0.05
#: The outcomes of a measurement that are looked at: so many, equally likely.
_OUTCOMES: Final = 39
_Z: Final = np.array([NormalDist().inv_cdf((i + 0.5) / _OUTCOMES) for i in range(_OUTCOMES)])
_SURE_Z: Final = NormalDist().inv_cdf(SURE)
_ROUNDED: Final = 1e-9


def chance_to_change(
    seen: Floats,
    noise: float,
    time_s: Floats,
    cost_usd: Floats,
    limits: QuoteLimits,
    needed_usd: Floats | None = None,
) -> float:
    """How probably what is seen changes the choice of a cluster, or whether the limits are kept.

    Each outcome of the measurement moves what is expected of each cluster by their regression on it (log).
    The decision stays where the chosen one is no worse, against the best, than it is now (`ALIKE`).

    >>> worlds = np.linspace(-1, 1, 101)
    >>> alone = np.exp(worlds)[:, None]
    >>> chance_to_change(worlds, 0.1, alone, alone, QuoteLimits())
    0.0
    >>> both = np.exp(np.column_stack([worlds, 0 * worlds + 0.1]))
    >>> chance_to_change(worlds, 0.1, both, both, QuoteLimits()) > 0.3
    True

    Args:
        seen: (S,) log of what is measured, in each world.
        noise: of the measurement (log).
        time_s: (draws, m) seconds of the clusters in the same worlds, again and again; the chosen one first.
        cost_usd: (draws, m) dollars of them.
        limits: of the run.
        needed_usd: (draws, m) what the run must be allowed for them; None: no more than they cost.
    """
    signal = np.tile(seen, len(time_s) // len(seen))
    spread = float(np.hypot(signal.std(), noise))
    if spread <= 0:
        return 0.0
    needed_usd = cost_usd if needed_usd is None else needed_usd
    time, cost, need = (
        _after(np.log(np.maximum(each, 1e-9)), signal, spread) for each in (time_s, cost_usd, needed_usd)
    )
    now = _keeps(time.sure_now, need.sure_now, limits)
    keeps = _keeps(time.sure, need.sure, limits)
    value = limits.objective(np.exp(time.expected), np.exp(cost.expected))
    value_now = limits.objective(np.exp(time.now), np.exp(cost.now))
    worse = value[:, 0] > _least(value, keeps) * max(value_now[0] / _least(value_now, now), 1.0) * ALIKE
    return float(np.mean((keeps[:, 0] != now[0]) | (keeps[:, 0] & worse)))


@dataclass(frozen=True, slots=True)
class _After:
    """Logs of m clusters, after each outcome of a measurement and now.

    Attributes:
        expected, sure: (outcomes, m). now, sure_now: (m,).
    """

    expected: Floats
    sure: Floats
    now: Floats
    sure_now: Floats


def _after(logs: Floats, signal: Floats, spread: float) -> _After:
    """By linear regression on what is measured."""
    now, doubt = logs.mean(axis=0), logs.std(axis=0)
    moved = (signal - signal.mean()) @ (logs - now) / len(logs) / spread
    expected = now + _Z[:, None] * moved
    left = np.sqrt(np.maximum(doubt**2 - moved**2, 0.0))
    return _After(expected, expected + _SURE_Z * left, now, now + _SURE_Z * doubt)


def _keeps(sure_s: Floats, sure_usd: Floats, limits: QuoteLimits) -> Bools:
    """Which keep the limits, by logs of seconds and dollars that hold with 90 %."""
    kept = (np.exp(sure_s) <= limits.deadline_s) & (np.exp(sure_usd) <= limits.budget_usd + _ROUNDED)
    return np.asarray(kept, dtype=bool)


def _least(value: Floats, keeps: Bools) -> Floats:
    """(...,) the best of those that keep the limits; infinite where none does."""
    return np.asarray(np.where(keeps, value, np.inf).min(axis=-1), dtype=float)
