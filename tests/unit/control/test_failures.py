"""Everything that acts on time, with all that may go wrong: see `trainmaster.testing.failures`."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from trainmaster.testing.failures import simulate
from trainmaster.testing.sabotages import SABOTAGES, found_after

#: Mistakes that are put back are all found by fewer (`MOST`); `TRAINMASTER_EXAMPLES` has more, as everywhere.
SCHEDULES = 4 * int(os.environ.get("TRAINMASTER_EXAMPLES", "100"))
PART = 100
#: A mistake that was put back is found after so many schedules at most.
MOST = 300
#: Those that few schedules find, and the first that does: where it still does, those before it are left out.
FOUND_BY = {
    "sleep-is-billed": 295,
    "what-was-fetched-is-forgotten": 187,
    "leases-longer-than-the-money": 142,
    "stated-times-are-not-translated": 49,
    "no-highest-price": 49,
    "machines-are-not-asked": 47,
    "failures-before-losses": 47,
    "checkpoints-are-not-waited-for": 31,
    "patience-of-a-quarter": 30,
    "adopting-is-silent": 25,
    "credentials-are-fatal": 25,
    "intervals-by-the-wall-clock": 12,
    "leases-need-the-provider": 12,
    "manifests-are-believed": 9,
    "machines-are-judged-by-stated-times": 5,
    "only-outages-are-waited-for": 2,
    "reap-whatever-is-leased": 2,
    "collections-take-what-is-pushed-again": 1,
    "names-are-not-compared": 1,
    "owners-without-namespace": 1,
}
#: Schedules that have failed once, beyond those that are gone through anyway.
FAILED_ONCE = (
    411, 6710, 6717, 14025, 14150, 22210, 27591, 34123, 36054, 37877, 38607, 42845, 43603, 55402, 77970,
    81241, 81448, 85604, 91248, 92404, 95777, 96342, 98510, 610311, 610312, 616594, 624632, 625100, 708720,
    800037,
)  # fmt: skip


@pytest.mark.simulation
@pytest.mark.timeout(900)
def test_no_schedule_breaks_an_invariant() -> None:
    parts = [range(first, min(first + PART, SCHEDULES)) for first in range(0, SCHEDULES, PART)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        reports = list(pool.map(simulate, parts))
    shown = [
        f"seed {seed}: {words}" for report in reports for seed, words in list(report.failures.items())[:5]
    ]
    assert not shown, "replay with `python -m trainmaster.testing.failures --seed N --verbose`"
    assert sum(report.schedules for report in reports) == SCHEDULES


def test_schedules_that_have_failed_once_do_so_no_more() -> None:
    failures = {}
    for seed in FAILED_ONCE:
        failures |= simulate(range(seed, seed + 1)).failures
    assert not failures, "replay with `python -m trainmaster.testing.failures --seed N --verbose`"


@pytest.mark.simulation
@pytest.mark.parametrize("name", SABOTAGES)
def test_mistakes_that_are_put_back_are_found(name: str) -> None:
    known = FOUND_BY.get(name, 0)
    assert found_after(name, known + 1, known) or found_after(name, MOST), SABOTAGES[name].words
