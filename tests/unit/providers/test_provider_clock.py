"""How far a provider's clock is ahead, from the dates of its answers."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from trainmaster.transport.http_calls import ProviderClock

NOW = 1_767_323_045.0


class Bench:
    """A clock of ours, and a provider whose clock differs."""

    def __init__(self, ahead_s: float) -> None:
        self.now, self.ahead_s = NOW, ahead_s
        self.clock = ProviderClock(lambda: self.now)

    def ask(self, there_s: float = 0.0, back_s: float = 0.0) -> None:
        asked_at = self.now
        self.now += there_s
        date = formatdate(int(self.now + self.ahead_s), usegmt=True)
        self.now += back_s
        self.clock.heard(date, asked_at)


@pytest.mark.parametrize("ahead_s", [-1.9, -0.3, 0.0, 0.9, 1.9])
def test_clocks_that_differ_by_less_than_a_date_can_tell_are_the_same(ahead_s: float) -> None:
    bench = Bench(ahead_s)
    for step in range(50):
        bench.now = NOW + step * 7.3
        bench.ask(0.2, 0.1)
        assert bench.clock.ahead_s == 0


@pytest.mark.parametrize("ahead_s", [-3600.0, -20.0, 20.0, 3600.0, 86_400 * 365.0])
def test_a_difference_is_found_at_the_first_answer_and_stays_as_it_is(ahead_s: float) -> None:
    bench = Bench(ahead_s)
    assert bench.clock.now() == NOW
    bench.ask(0.4, 0.2)
    found_s = bench.clock.ahead_s
    assert found_s == pytest.approx(ahead_s, abs=1.0)
    for step in range(50):
        bench.now = NOW + step * 7.3
        bench.ask(0.2, 0.1)
        assert bench.clock.ahead_s == found_s, "no time that was told moves"
    assert bench.clock.now() == pytest.approx(bench.now + ahead_s, abs=1.0)


@pytest.mark.parametrize(("there_s", "back_s"), [(300.0, 0.0), (0.0, 300.0), (28_800.0, 0.0)])
@pytest.mark.parametrize("ahead_s", [0.0, 3600.0])
def test_an_answer_that_took_long_tells_nothing_new(ahead_s: float, there_s: float, back_s: float) -> None:
    """A slow line, or a machine that slept meanwhile."""
    bench = Bench(ahead_s)
    bench.ask()
    before = bench.clock.ahead_s
    bench.ask(there_s, back_s)
    assert bench.clock.ahead_s == before


def test_a_clock_that_is_set_right_is_followed() -> None:
    bench = Bench(3600.0)
    bench.ask()
    bench.ahead_s = 0.0
    bench.ask()
    assert bench.clock.ahead_s == 0


@pytest.mark.parametrize("date", ["", "soon", "Fri, 99 Foo 2026 03:04:05 GMT"])
def test_what_is_no_date_tells_nothing(date: str) -> None:
    bench = Bench(3600.0)
    bench.ask()
    before = bench.clock.ahead_s
    bench.clock.heard(date, bench.now)
    assert bench.clock.ahead_s == before
