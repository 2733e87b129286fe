"""`StepRate`: how fast a task is, by the lines that it has shown over time."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.executors.telemetry.metrics import LEAST_S, StepRate


def test_rate_needs_lines_that_came_over_time():
    rate = StepRate()
    assert (rate.steps_per_s, rate.examples_per_s, rate.eta_s(10)) == (None, None, None)
    rate.observe(5.0, 10)
    rate.observe(5.0, 20)
    rate.observe(5.001, 93)
    assert (rate.steps_per_s, rate.eta_s(1000)) == (None, None)
    rate.observe(5.5, 94)
    assert rate.steps_per_s == pytest.approx(1 / 0.499)
    assert rate.examples_per_s is None


def test_what_is_read_at_once_is_not_how_fast_it_is():
    """A log of a minute comes in pieces at once, then two steps a second as they are made."""
    rate = StepRate()
    for piece in range(40):
        rate.observe(100 + piece / 100, 500 * piece)
        assert rate.steps_per_s is None
    for second in range(1, 60):
        rate.observe(100.39 + second, 19_500 + 2 * second)
        assert rate.steps_per_s == pytest.approx(2.0)


def test_rate_is_of_the_recent_window():
    rate = StepRate(window_s=10)
    for second in range(100):
        rate.observe(second, second * (1 if second < 50 else 3) - (100 if second >= 50 else 0))
    assert rate.steps_per_s == pytest.approx(3.0)


def test_a_restart_begins_anew():
    rate = StepRate()
    for second in range(10):
        rate.observe(second, 10 * second)
    rate.observe(20, 50)
    assert rate.steps_per_s is None
    rate.observe(21, 55)
    assert rate.steps_per_s == pytest.approx(5.0)
    rate.observe(3, 60)
    assert rate.steps_per_s is None, "the clock went back"


def test_time_left():
    rate = StepRate()
    rate.observe(0, 0)
    rate.observe(10, 20)
    assert rate.eta_s(120) == pytest.approx(50.0)
    assert rate.eta_s(120, now_s=15) == pytest.approx(45.0)
    assert rate.eta_s(120, now_s=100) == 0.0
    assert rate.eta_s(10) == 0.0
    rate = StepRate()
    rate.observe(0, 5)
    rate.observe(10, 5)
    assert rate.steps_per_s == 0.0
    assert rate.eta_s(10) is None


def test_examples_alone_have_a_rate():
    rate = StepRate()
    rate.observe(0, None, 0)
    rate.observe(10, None, 640)
    assert (rate.steps_per_s, rate.examples_per_s) == (None, 64.0)
    assert rate.eta_s(100) is None
    assert rate.examples_eta_s(6400) == pytest.approx(90.0)
    rate.observe(11, None, 0)
    assert rate.examples_per_s is None, "a restart"
    rate.observe(12, 10, 64)
    rate.observe(13, 20, 128)
    assert rate.steps_per_s == pytest.approx(10.0)


def test_nonsense_is_ignored():
    rate = StepRate()
    rate.observe(0, 0)
    rate.observe(1, math.nan)
    rate.observe(math.inf, 5)
    rate.observe(2, 4, math.nan)
    rate.observe(2, 6)
    assert rate.steps_per_s == pytest.approx(3.0)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 5)), min_size=2, max_size=2000))
def test_few_points_and_the_right_rate(deltas):
    rate, time, step = StepRate(window_s=30, points=16), 0.0, 0
    history = []
    for wait, steps in deltas:
        time, step = time + wait, step + steps
        rate.observe(time, step)
        history.append((time, step))
    assert len(rate._seen) <= 20
    while len(history) > 1 and history[1][0] - deltas[0][0] < LEAST_S:
        del history[0]
    if history[-1][0] > history[0][0]:
        slopes = rate.steps_per_s
        assert slopes is None or slopes >= 0
        if history[-1][0] < 30 and slopes is not None:
            whole = (history[-1][1] - history[0][1]) / (history[-1][0] - history[0][0])
            assert slopes == pytest.approx(whole)
