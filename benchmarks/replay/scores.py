"""How good predictions with intervals were."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Z90 = 0.1  # one minus the interval's level


@dataclass
class Scores:
    """Collects predictions of one method on one split."""

    truth: list[float] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, truth, median, low=None, high=None) -> None:
        """Some rows; intervals are optional."""
        truth = np.atleast_1d(truth)
        self.truth += truth.tolist()
        self.median += np.atleast_1d(median).tolist()
        self.low += (np.full(len(truth), np.nan) if low is None else np.atleast_1d(low)).tolist()
        self.high += (np.full(len(truth), np.nan) if high is None else np.atleast_1d(high)).tolist()

    def summary(self) -> dict[str, float]:
        """MAPE, median and coverage in %, median p95/p50, interval score (log seconds; lower is better)."""
        truth, median, low, high = (np.array(v) for v in (self.truth, self.median, self.low, self.high))
        error = 100 * np.abs(median / truth - 1)
        out = {
            "rows": len(truth),
            "mape": error.mean(),
            "median": float(np.median(error)),
            "p90": np.quantile(error, 0.9),
        }
        if np.isfinite(low).all():
            y, a, b = np.log(truth), np.log(low), np.log(high)
            penalty = 2 / Z90 * (np.maximum(a - y, 0) + np.maximum(y - b, 0))
            out |= {
                "coverage": 100 * np.mean((y >= a) & (y <= b)),
                "above": 100 * np.mean(y > b),
                "p95/p50": float(np.exp(np.median(b - np.log(median)))),
                "interval_score": float(np.mean(b - a + penalty)),
            }
        return {key: round(float(value), 4) for key, value in out.items()}
