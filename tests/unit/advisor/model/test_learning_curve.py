"""When a metric reaches a value, by its first reports."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainmaster.advisor.model.learning_curve import FAR, forecast_curve

AT = np.arange(1, 21) * 10.0


def noisy(values, sd=0.02):
    return values * np.exp(sd * np.random.default_rng(1).standard_normal(len(values)))


@pytest.mark.parametrize(
    ("curve", "aim", "true"),
    [
        (lambda s: 2.0 * (s / 10) ** -0.5, 0.3, 444.0),
        (lambda s: 0.5 + 2.0 * np.exp(-s / 150), 0.6, 449.0),
        (lambda s: 1.5 / (1 + (s / 60) ** 1.2), 0.15, 374.0),
    ],
)
def test_falling_curves_of_three_forms(curve, aim, true):
    found = forecast_curve(AT, noisy(curve(AT)), aim, more_is_better=False)
    assert found.quantile(0.05) <= true <= found.quantile(0.95)
    assert found.quantile(0.5) == pytest.approx(true, rel=0.4)
    assert found.chance > 0.8


@pytest.mark.parametrize("power", [1.6, 2.0])
def test_a_loss_that_falls_ever_faster_is_not_taken_for_one_that_slows_down(power):
    """A network of a low rate: a quarter of the curve is its slow beginning."""
    at = np.arange(1, 16)
    loss = 2.3 * np.exp(-((at / 40) ** power)) * (1 + 0.003 * np.sin(7 * at))
    found = forecast_curve(at, loss, 1.0, more_is_better=False)
    true = 40 * math.log(2.3) ** (1 / power)
    assert found.quantile(0.05) <= true <= found.quantile(0.95)
    assert found.quantile(0.5) < 2 * true


def test_what_rises_is_what_falls_to_its_best():
    accuracy = 1 - 0.6 * (AT / 10) ** -0.5
    ours = forecast_curve(AT, accuracy, 0.9, more_is_better=True)
    percent = forecast_curve(AT, 100 * accuracy, 90.0, more_is_better=True)
    assert ours.quantile(0.5) == pytest.approx(360, rel=0.25)
    assert percent.quantile(0.5) == pytest.approx(ours.quantile(0.5), rel=0.1)
    reward = forecast_curve(AT, 500 * accuracy - 300, 150.0, more_is_better=True)
    assert math.isfinite(reward.quantile(0.5))


def test_never_by_this_curve():
    flat = noisy(0.3 + np.exp(-AT / 15), sd=0.004)
    found = forecast_curve(AT, flat, 0.05, more_is_better=False)
    assert found.chance < 0.3
    assert found.quantile(0.5) == math.inf
    best = forecast_curve(AT, 1 - 0.5 * (AT / 10) ** -0.5, 1.0, more_is_better=True)
    assert best.chance == 0.0, "an accuracy of 1 is the best there can be"


def test_a_known_length_is_a_bound():
    values = noisy(2.0 * (AT / 10) ** -0.5)
    free = forecast_curve(AT, values, 0.3, more_is_better=False)
    bound = forecast_curve(AT, values, 0.3, more_is_better=False, most=250)
    assert free.quantile(0.5) > 250
    assert bound.quantile(0.5) == math.inf
    assert bound.fan[-1][0] <= 250
    assert free.fan[-1][0] <= FAR * AT[-1]


def test_what_is_reached_is_reached():
    found = forecast_curve(AT, 2.0 * (AT / 10) ** -0.5, 1.0, more_is_better=False)
    assert found.quantile(0.05) == found.quantile(0.95) == 40.0


def test_the_fan_is_of_the_metric_and_opens():
    found = forecast_curve(AT, noisy(2.0 * (AT / 10) ** -0.5), 0.3, more_is_better=False)
    widths = [high - low for _, low, _, high in found.fan]
    assert all(low <= middle <= high for _, low, middle, high in found.fan)
    assert found.fan[0][0] > AT[-1]
    assert widths[-1] > widths[0]


def test_too_little_says_nothing_and_what_is_no_number_is_passed_over():
    assert forecast_curve([1, 2, 3], [3, 2, 1.5], 1.0, more_is_better=False) is None
    values = 2.0 * (AT / 10) ** -0.5
    gaps = values.copy()
    gaps[3] = math.nan
    assert forecast_curve(AT, gaps, 0.3, more_is_better=False) is not None


def test_the_same_curve_gives_the_same_digits_however_long_it_is():
    at = np.arange(1, 3001.0)
    values = noisy(2.0 * at**-0.3)
    one, other = (forecast_curve(at, values, 0.15, more_is_better=False) for _ in range(2))
    assert (one.steps == other.steps).all()
    assert one.quantile(0.5) == pytest.approx(5620, rel=0.4)


@pytest.mark.parametrize("values", [[0.5] * 20, [0.0] * 20, [1e-12] * 20, [-3.0, *[-4.0] * 19], [1e9] * 20])
def test_strange_curves_are_answered(values):
    for more in (True, False):
        found = forecast_curve(AT, values, -5.0 if not more else 2e9, more_is_better=more)
        assert 0.0 <= found.chance <= 1.0
        assert np.isfinite(found.fan).all()
