"""The pure parts of `benchmarks/volumes/peers_line.py`: windows that open, bandwidth that is shared."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

LINE = Path(__file__).resolve().parents[3] / "benchmarks/volumes/peers_line.py"
LATENCY_S = 0.05


class Clock:
    """What the line takes for `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def made() -> tuple[ModuleType, Clock]:
    spec = importlib.util.spec_from_file_location("peers_line_alone", LINE)
    assert spec is not None
    assert spec.loader is not None
    module, clock = importlib.util.module_from_spec(spec), Clock()
    spec.loader.exec_module(module)
    module.time = clock
    return module, clock


def sent(window: object, size_bytes: int) -> None:
    while size_bytes:
        part = min(window.room_bytes(), size_bytes)
        window.note(part)
        size_bytes -= part


def test_a_new_connection_needs_round_trips_until_its_window_is_open() -> None:
    module, clock = made()
    window = module.Window(LATENCY_S, 6 << 20)
    began = clock.now
    sent(window, 100_000)  # 14,600 + 29,200 + 56,200 of 58,400
    assert clock.now - began == pytest.approx(2 * LATENCY_S)


def test_a_window_stays_open_while_its_connection_is_idle() -> None:
    module, clock = made()
    window = module.Window(LATENCY_S, 6 << 20)
    sent(window, 100_000)
    clock.now += 60
    began = clock.now
    sent(window, 58_400)
    assert clock.now == began


def test_an_open_window_is_what_one_connection_brings() -> None:
    module, clock = made()
    window = module.Window(LATENCY_S, 1 << 20)
    sent(window, 16 << 20)
    began = clock.now
    sent(window, 64 << 20)
    assert (64 << 20) / (clock.now - began) == pytest.approx((1 << 20) / LATENCY_S, rel=0.05)


@given(st.lists(st.integers(1, 4 << 20), min_size=1, max_size=30), st.floats(0, 0.2))
def test_no_round_trip_has_more_than_the_limit(sizes: list[int], pause_s: float) -> None:
    module, clock = made()
    window, limit = module.Window(LATENCY_S, 1 << 20), 1 << 20
    left: list[tuple[float, int]] = []
    for size in sizes:
        while size:
            part = min(window.room_bytes(), size)
            assert part > 0
            window.note(part)
            left.append((clock.now, part))
            size -= part
        clock.now += pause_s
    for begin, _ in left:
        # A round trip that begins anywhere may meet the end of one and the beginning of the next.
        assert sum(part for at, part in left if begin <= at < begin + LATENCY_S) <= 2 * limit


def test_without_latency_there_is_no_window() -> None:
    module, clock = made()
    window = module.Window(0.0, 6 << 20)
    began = clock.now
    sent(window, 64 << 20)
    assert clock.now == began


def test_the_bandwidth_is_that_of_all_together() -> None:
    module, clock = made()
    bandwidth = module.Bandwidth(200e6)
    began = clock.now
    for _ in range(400):
        bandwidth.take(500_000)
    assert clock.now - began == pytest.approx(1.0)
