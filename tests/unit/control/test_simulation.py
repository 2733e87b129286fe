"""A thousand schedules of faults: see `trainmaster.testing.simulation`."""

from __future__ import annotations

import pytest

from trainmaster.spec.states import TRANSITIONS, EndReason
from trainmaster.testing.simulation import Simulation, main, simulate

SCHEDULES = 1000

#: What no decision leads to in this version.
NOT_REACHED = {
    # a finished attempt is kept, not thrown away
    "SAVING>STOPPING",
    # a turn takes a task from PLANNED to ACQUIRING before anything else can be wanted of it
    "PLANNED>STOPPING",
}


@pytest.fixture(scope="module")
def report():
    return simulate(range(SCHEDULES))


def test_no_schedule_breaks_an_invariant(report):
    shown = [f"seed {seed}: {failure}" for seed, failure in list(report.failures.items())[:5]]
    assert not shown, "replay with `python -m trainmaster.testing.simulation --seed N --verbose`"
    assert report.schedules == SCHEDULES


def test_every_transition_is_reached(report):
    table = {f"{before}>{after}" for before, afters in TRANSITIONS.items() for after in afters}
    assert table - set(report.seen) == NOT_REACHED


def test_every_end_reason_is_given(report):
    given = {reason for reason in EndReason if report.seen[f"DONE/{reason}"] or report.seen[f"rest/{reason}"]}
    assert set(EndReason) == given


def test_stages_that_nodes_made_fail_begin_anew(report):
    assert report.seen["STAGING/again"] > 20


def test_a_seed_replays_line_by_line(capsys):
    seen = []
    for _ in range(2):
        main(["--seed", "7", "--verbose"])
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]
    assert len(seen[0].splitlines()) > 20


def test_a_failing_seed_is_named(capsys, monkeypatch):
    def broken(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Simulation, "run", broken)
    assert main(["--seed", "41", "--schedules", "2"]) == 1
    out = capsys.readouterr().out
    assert "seed 41: RuntimeError: a bug" in out
    assert "2 schedules, 2 failures" in out


@pytest.mark.parametrize(
    "seed",
    [
        # The supervisor died between two submits, and what it had not known was taken for news.
        *(50578, 84120, 99730),
        # A stage that had failed was counted twice in a turn, as something else moved.
        *(183, 344),
    ],
)
def test_seeds_that_once_failed(seed):
    Simulation(seed).run()
