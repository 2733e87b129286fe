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


def _linear(points):
    """Columns of the logarithmic forms."""
    n = np.array([p.workers for p in points], float)
    nodes = np.array([p.nodes or p.workers for p in points], float)
    batch = np.array([p.local_batch or 1 for p in points], float)
    servers = np.array([p.parameter_servers or 1 for p in points], float)
    return np.column_stack([np.ones(len(n)), *np.log([n, nodes, batch, servers])])


def _bayes(train, times, test, kernel, prior, noise):
    """Typical, low, high of a linear model of the logarithms with a Gaussian process on top."""
    a, b = _linear(train), _linear(test)
    middle = a.mean(0) * np.array([0, 1, 1, 1, 1])
    a, b = a - middle, b - middle
    asynchronous = train[0].sync is Strategy.PS_ASYNC
    y = np.log(times * np.array([p.workers for p in train]) if asynchronous else times)
    mean = np.array([0, 0, 0, 0.7, 0])
    cov = a @ (prior[:, None] * a.T) + kernel(a, a) + noise**2 * np.eye(len(a))
    cross = a @ (prior[:, None] * b.T) + kernel(a, b)
    gain = np.linalg.solve(cov, cross)
    var = (b * prior * b).sum(1) + np.diag(kernel(b, b)) - (cross * gain).sum(0) + noise**2
    typical = b @ mean + (y - a @ mean) @ gain
    if asynchronous:
        typical -= np.log([p.workers for p in test])
    half = 1.645 * np.sqrt(np.maximum(var, 1e-9))
    return np.exp(typical), np.exp(typical - half), np.exp(typical + half)


def log_linear_gp(train, times, test):
    """Log time linear in the logarithms, and a Gaussian process (exponential kernel) for the rest."""
    rates = np.array([0, 0.25, 0.4, 0.2, 0.2]) / np.log(2)

    def kernel(a, b):
        return 0.1**2 * np.exp(-(np.abs(a[:, None] - b[None]) * rates).sum(-1))

    return _bayes(train, times, test, kernel, np.array([100, 0.15**2, 0.15**2, 0.3**2, 0.3**2]), 0.03)


def power_law(train, times, test):
    """Time is a power of workers, nodes, batch and servers, with ridge."""
    return _bayes(
        train,
        times,
        test,
        lambda a, b: np.zeros((len(a), len(b))),
        np.array([100, 0.15**2, 0.15**2, 0.3**2, 0.3**2]),
        0.06,
    )


def amdahl(train, times, test):
    """A serial part, and one that is divided among the workers, of the time per sample; non-negative."""

    def design(points):
        n = np.array([p.workers for p in points], float)
        batch = np.array([p.local_batch or 1 for p in points], float)
        columns = np.column_stack([batch, n * batch])
        return columns / n[:, None] if train[0].sync is Strategy.PS_ASYNC else columns

    weights, _ = nnls(design(train) / times[:, None], np.ones(len(times)))
    return np.maximum(design(test) @ weights, times.min() * 1e-2)


#: What a model with physics must beat: typical, low, high.
SIMPLE = {
    "log-linear + GP": log_linear_gp,
    "power law, ridge": power_law,
    "Ernest": lambda *case: with_interval(ernest, *case),
    "Amdahl": lambda *case: with_interval(amdahl, *case),
}
