"""A machine is lost at any moment while a run is handed over to its first machine: little work is lost."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from renter import STEPS, Renter, Renting

from trainmaster.testing.waits import until

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

EVERY_S = 3.0
#: Of 0.15 s; they are saved each 3 s, by the script each 1.5 s. The rest is for a machine that is busy.
MOST_STEPS_LOST = 100
RECIPE = f"""
name: steps
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 2}}
    framework: plain
    hardware: {{instance: m4.2xlarge}}
    checkpoint: {{every: {EVERY_S:g}s}}
    grace: 5s
    command: python3 steps.py 100000 0.15 0.05
"""
#: In the first attempt it says when each step was made.
TIMED = STEPS.replace("    step += 1\n", "    step += 1\n    print('at', time.time(), step, flush=True)\n")


def notes(renter: Renter, run: str) -> list[str]:
    """What was said of a run, in its order."""
    with sqlite3.connect(renter.lab.home / "trainmaster.db") as connection:
        query = "SELECT message FROM event WHERE run_id = ? AND kind = 'note' ORDER BY id"
        return [row[0] for row in connection.execute(query, [run])]


def when_it_runs(renter: Renter, renting: Renting, run: str) -> None:
    """It has been saved once; most often it is not handed over yet."""
    renting.until(lambda: renter.saved_at(run), "its first checkpoint")


def when_it_moves(renter: Renter, renting: Renting, run: str) -> None:
    """The home has stopped this very moment."""
    when_it_runs(renter, renting, run)
    renting.until_said("drives it from now on; this one may")


def when_it_has_moved(renter: Renter, renting: Renting, run: str) -> None:
    """The machine has begun to drive, and has seen little."""
    when_it_moves(renter, renting, run)
    renting.until(lambda: any("its first machine, drives" in note for note in notes(renter, run)), "a note")
    time.sleep(EVERY_S)


SEATS, WHEN = ("worker-0", "worker-1"), (when_it_runs, when_it_moves, when_it_has_moved)


#: `make test` has a machine that is lost before that, which the home drives (`test_lab_runs.py`), and
#: afterwards, when its cluster drives (`test_lab_on_cluster.py`).
@pytest.mark.crossings
@pytest.mark.parametrize(("seat", "when"), list(itertools.product(SEATS, WHEN)))
def test_a_machine_is_lost_while_a_run_is_handed_over(
    renter: Renter, store: Any, when: Callable[[Renter, Renting, str], None], seat: str
) -> None:
    lab: Any = renter.lab
    before = lab.alive()
    (renter.work / "steps.py").write_text(TIMED)
    renting = renter.run(renter.recipe(RECIPE), "--on-cluster", "--send-keys")
    run = renting.run
    when(renter, renting, run)
    machines = renter.machines(run)
    lost = machines[sorted(machines)[int(seat[-1])]]
    lost_at, saved = time.time(), renter.saved_at(run)
    lab.do("terminate", id=lost)
    other = "worker-0" if seat == "worker-1" else "worker-1"
    again = until(lambda: [at for at in renter.starts(run, other) if at[0] > 1], "its next attempt", 240.0)
    log = renter.call("logs", run, "--member", other).stdout
    steps = [
        int(step)
        for at, step in re.findall(r"at (\d+\.\d+) (\d+)$", log, re.MULTILINE)
        if float(at) < lost_at
    ]
    said = notes(renter, run)
    steps_lost = max(steps, default=0) - again[0][1]
    ages_s = [round(lost_at - at, 1) for at in saved]
    print(when.__name__, seat, f"{steps_lost} steps lost", again, ages_s, *said, sep="\n  ")
    assert again[0][1] > 0, "it has begun anew"
    assert steps_lost < MOST_STEPS_LOST
    drivers = [note for note in said if "drives it" in note]
    assert "until its first machine can" in drivers[0]
    renter.call("cancel", run)
    assert json.loads(renter.call("status", run, "--json").stdout)["reason"] == "CANCELLED"
    until(lambda: lab.alive() == before, "its machines are gone")
