"""Places and ticks of values on an axis."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainmaster.web.axes import FigureAxis

POSITIVE = st.floats(1e-6, 1e9)


@given(st.lists(st.just(0.0) | POSITIVE, min_size=1, max_size=9))
def test_every_value_and_tick_lies_within_and_in_order(values):
    axis = FigureAxis(values, 10.0, 110.0)
    ticks = axis.ticks
    for value in (*values, *ticks):
        assert 10.0 <= axis.at(value) <= 110.0
    assert ticks == sorted(ticks)
    assert [axis.at(value) for value in sorted(values)] == sorted(axis.at(value) for value in values)


@given(st.lists(POSITIVE, min_size=2, max_size=9))
def test_there_is_something_to_read(values):
    assert 1 <= len(FigureAxis(values, 0.0, 100.0).ticks) <= 8


@given(st.floats(1e-6, 1e3), st.floats(31.0, 1e9))
def test_a_logarithmic_axis_has_three_to_six_ticks_of_1_2_and_5(low, factor):
    ticks = FigureAxis([low, factor * low], 0.0, 100.0).ticks
    assert 3 <= len(ticks) <= 6
    assert {f"{tick:e}"[0] for tick in ticks} <= {"1", "2", "5"}
