"""Seeded random schedules of faults: whatever happens, the run ends well and nothing is left or told twice.

``TRAINMASTER_SCHEDULES`` says how many, ``TRAINMASTER_SCHEDULE`` which; `benchmarks/schedules.py` runs 50.
Part of `make crossings`: `test_lab_runs.py` has each of the faults by itself.
"""

from __future__ import annotations

import json
import os
import random
import time

import pytest
from any_recipe import JOB, check_models, recipe

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import ENGINE, Renter, Renting

pytestmark = [pytest.mark.crossings, pytest.mark.ray, pytest.mark.timeout(900)]

ONE = os.environ.get("TRAINMASTER_SCHEDULE")
SEEDS = [int(ONE)] if ONE else range(int(os.environ.get("TRAINMASTER_SCHEDULES", "1")))
STEPS = 120


class Schedule:
    """A run, and the faults that it suffers."""

    def __init__(self, renter: Renter, renting: Renting, dice: random.Random) -> None:
        self.renter = renter
        self.renting = renting
        self.run = renting.run
        self.dice = dice
        self.done: list[str] = []

    def somebody(self) -> str | None:
        machines = sorted(self.renter.machines(self.run).items())
        return self.dice.choice(machines)[1] if machines else None

    def lab(self, *arguments: str) -> None:
        """It may be gone already, or be none that can be taken back."""
        self.renter.call("lab", *arguments, code=None)

    def suffer(self) -> None:
        """One fault."""
        fault = self.dice.choice(("terminate", "interrupt", "freeze", "cut", "blink", "killed", "none"))
        machine = self.somebody()
        if machine is None or fault == "none":
            return
        self.done.append(f"{fault} {machine}")
        match fault:
            case "terminate":
                self.lab("terminate", machine)
            case "interrupt":
                self.lab("interrupt", machine, "--notice", "15")
            case "freeze" | "cut":
                self.lab(fault, machine)
            case "blink":
                self.lab("cut", machine)
                time.sleep(2)
                self.lab("heal", machine)
            case "killed":
                self.renting.kill()
                self.renting = self.renter.start("resume", self.run, "--json")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule(renter: Renter, seed: int) -> None:
    dice = random.Random(seed)
    more = ", spot: true" if dice.random() < 0.5 else ""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=STEPS, later=0.15, more=more, every=2))
    schedule = Schedule(renter, renting, dice)
    renting.until_said(r"attempt 1 starts at 0")
    for _ in range(dice.randint(1, 3)):
        time.sleep(dice.uniform(2, 15))
        if schedule.renting.process.poll() is not None:
            break
        schedule.suffer()
    try:
        found = schedule.renting.end(timeout_s=400)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {schedule.done}") from error
    assert found["reason"] == "SUCCEEDED", (schedule.done, schedule.renting.text)
    attempts = renter.attempts(schedule.run)
    assert attempts[-1] == "SUCCEEDED"
    assert set(attempts[:-1]) <= {"NODE_LOST", "PREEMPTED"}, schedule.done
    assert len(attempts) <= 1 + len(schedule.done), "a fault costs one restart at most"
    starts = renter.starts(schedule.run)
    assert [number for number, _ in starts] == sorted({number for number, _ in starts}), (
        "none is started twice"
    )
    assert renter.lab.alive() == before, "nothing is left"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_of_any_recipe(renter: Renter, seed: int) -> None:
    dice = random.Random(seed)
    content = {**recipe(dice), "name": "steps", "engine": ENGINE}
    for each in content["experiments"].values():
        each |= {"hardware": {"instance": "m4.xlarge", "spot": dice.random() < 0.5}, "grace": "5s"}
        each["command"] = each["command"].replace("python ", "python3 ")
    (renter.work / "job.py").write_text(JOB)
    file = renter.work / "recipe.yaml"
    file.write_text(json.dumps(content, ensure_ascii=False))
    before = renter.lab.alive()
    renting = renter.run(file)
    schedule = Schedule(renter, renting, dice)
    for _ in range(dice.randint(1, 3)):
        time.sleep(dice.uniform(2, 15))
        if schedule.renting.process.poll() is not None:
            break
        schedule.suffer()
    found = schedule.renting.end(code=None)
    for _ in range(3):  # experiments of which tasks have failed have no more retries
        if found["reason"] == "SUCCEEDED":
            break
        assert found["reason"] == "USER_ERROR", (seed, schedule.done, schedule.renting.text)
        schedule.renting = renter.start("resume", schedule.run, "--json")
        found = schedule.renting.end(code=None)
    check_models(content, found)
    assert renter.lab.alive() == before, "nothing is left"
