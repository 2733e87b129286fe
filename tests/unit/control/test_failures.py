"""Everything that acts on time, with all that may go wrong: see `trainmaster.testing.failures`."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from trainmaster.testing.failures import found_after, simulate
from trainmaster.testing.sabotages import SABOTAGES

SCHEDULES = 5000
PART = 250
#: A mistake that was put back is found after so many schedules at most.
MOST = 300


@pytest.mark.timeout(900)
def test_no_schedule_breaks_an_invariant() -> None:
    parts = [range(first, first + PART) for first in range(0, SCHEDULES, PART)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        reports = list(pool.map(simulate, parts))
    shown = [
        f"seed {seed}: {words}" for report in reports for seed, words in list(report.failures.items())[:5]
    ]
    assert not shown, "replay with `python -m trainmaster.testing.failures --seed N --verbose`"
    assert sum(report.schedules for report in reports) == SCHEDULES


@pytest.mark.parametrize("name", SABOTAGES)
def test_mistakes_that_are_put_back_are_found(name: str) -> None:
    assert found_after(name, MOST), SABOTAGES[name].words
