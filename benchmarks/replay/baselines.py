"""What others would predict, with intervals from their own residuals (split conformal, leave one out)."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls
from sklearn.ensemble import RandomForestRegressor

from trainmaster.spec import Strategy


def _features(points):
    return np.array(
        [
            [
                np.log(p.workers),
                np.log(p.nodes or p.workers),
                np.log(p.local_batch or 1),
                (p.latency_ms or 0) / 20,
                np.log(p.parameter_servers or 1),
            ]
            for p in points
        ]
    )


def nearest(train, times, test):
    """The time of the nearest measured shape."""
    a, b = _features(train), _features(test)
    pick = np.abs(b[:, None] - a[None]).sum(-1).argmin(1)
    return times[pick]


def ernest(train, times, test):
    """Ernest (Venkataraman et al., NSDI 2016): 1, batch, log n, n with non-negative weights."""

    def design(points):
        n = np.array([p.workers for p in points], float)
        batch = np.array([p.local_batch or 1 for p in points], float)
        columns = [np.ones(len(n)), batch, np.log(n), n]
        if any(p.latency_ms for p in train):
            latency = np.array([p.latency_ms or 0 for p in points], float)
            columns += [latency * (n > 1), latency * np.log(n)]
        if train[0].sync is not Strategy.ALLREDUCE:
            servers = np.array([p.parameter_servers or 1 for p in points], float)
            columns += [n / servers]
        if train[0].sync is Strategy.PS_ASYNC:
            columns = [c / n for c in columns]
        return np.column_stack(columns)

    weights, _ = nnls(design(train) / times[:, None], np.ones(len(times)))
    return np.maximum(design(test) @ weights, times.min() * 1e-2)


def forest(train, times, test):
    """A random forest on the logarithms."""
    model = RandomForestRegressor(25, random_state=0, n_jobs=1).fit(_features(train), np.log(times))
    return np.exp(model.predict(_features(test)))


BASELINES = {"nearest": nearest, "ernest": ernest, "forest": forest}


def with_interval(method, train, times, test):
    """Median, low, high: the 90 % quantile of the method's own leave-one-out errors, at most 8 of them."""
    median = method(train, times, test)
    if len(train) < 3:
        return median, median / 1.5, median * 1.5
    picks = np.linspace(0, len(train) - 1, min(8, len(train))).astype(int)
    errors = []
    for i in picks:
        rest = [j for j in range(len(train)) if j != i]
        predicted = method([train[j] for j in rest], times[rest], [train[i]])[0]
        errors.append(abs(np.log(predicted / times[i])))
    half = np.quantile(errors, 0.9)
    return median, median * np.exp(-half), median * np.exp(half)
