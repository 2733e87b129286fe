"""A run is driven by its first machine: the home may be away, the driver killed, its machine lost."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("cryptography", reason="cryptography is not installed")

from renter import ENGINE, Renter, Renting, drivers
from spread_tasks import spread

from trainmaster.service.quotes.history import DEVICE_FILE, histories
from trainmaster.service.service import Service
from trainmaster.spec import read_recipe
from trainmaster.testing.waits import until

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

#: Longer than a driver's of its run.
LEASE_S = 40
RECIPE = """
name: steps
experiments:
  train:
    command:
      - 'until [ -e /var/tmp/go ] || [ "$TRAINMASTER_ATTEMPT" -gt 1 ]; do sleep 0.2; done'
      - python3 steps.py {steps} 0.2 0.02
    hardware: {{instance: m4.2xlarge}}
    checkpoint: {{every: 5s}}
"""

ASKS = """
name: steps
experiments:
  train:
    command: echo trained > "$TRAINMASTER_OUTPUT_DIR/model"
    hardware: {instance: m4.2xlarge}
  deploy:
    after: train
    approval: required
    command: echo deployed
    hardware: {instance: m4.2xlarge}
"""


def moved(renter: Renter, steps: int, engine: str = ENGINE) -> tuple[Renting, str, int]:
    """A run that its first machine drives, however long that takes: its steps begin after that."""
    renting = renter.run(renter.recipe(RECIPE.format(steps=steps), engine), "--on-cluster")
    run = renting.run
    renting.until_said("drives it from now on")
    (driver,) = drivers(run)
    return renting, run, driver


def go(driver: int) -> None:
    """Let the steps begin on the machine of a driver."""
    Path(f"/proc/{driver}/root/var/tmp/go").touch()


def test_the_home_is_away_the_driver_is_killed_and_the_record_comes_back(
    lab: Any, renter: Renter, store: Any
) -> None:
    before = lab.alive()
    device = lab.home / DEVICE_FILE
    device.write_text("not like the machine that drives it")
    renting, run, driver = moved(renter, 40)
    renting.kill()
    go(driver)
    os.kill(driver, signal.SIGKILL)
    again = renter.start("resume", run, "--json")
    again.until_said("driven by another process")
    ended = again.end()
    assert ended["reason"] == "SUCCEEDED", again.text
    assert renter.attempts(run) == ["SUCCEEDED"]
    assert renter.starts(run) == [(1, 0)]
    assert "done at 40" in renter.call("logs", run).stdout
    until(lambda: not renter.machines(run), "its machine is known to be over")
    until(lambda: lab.alive() == before, "its machine is gone")
    home = Service.from_environment(renter.env)
    (known,) = histories(home.database, home.home, read_recipe(renter.work / "recipe.yaml"))["train"].same
    device.unlink()
    assert known.offer == "lab:m4.2xlarge", "what it has measured is known to the next quote at home"


def test_its_machine_is_lost_and_the_home_goes_on(lab: Any, renter: Renter, store: Any) -> None:
    before = lab.alive()
    renting, run, driver = moved(renter, 400, "ray")
    go(driver)
    renting.until(lambda: "step=" in renter.call("status", run).stdout, "what the machine reports")
    (machine,) = lab.alive() - before
    lab.do("terminate", id=machine)
    renting.until_said("it goes on, driven from here in the background")
    ended = renting.end()
    assert ended["reason"] == "SUCCEEDED", renting.text
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    until(lambda: lab.alive() == before, "its machines are gone")


#: The same, with two machines for what is over, and another one for what asks.
ELSEWHERE = ASKS.replace(
    "m4.2xlarge}\n  deploy",
    "m4.2xlarge}\n    distributed: {strategy: allreduce, workers: 2}\n    framework: plain\n  deploy",
).replace("deployed\n    hardware: {instance: m4.2xlarge}", "deployed\n    hardware: {instance: m4.large}")


@pytest.mark.crossings
@pytest.mark.parametrize("recipe", [ASKS, ELSEWHERE], ids=["there", "elsewhere"])
def test_the_machine_that_is_to_drive_stays_while_a_person_is_asked(
    lab: Any, renter: Renter, store: Any, recipe: str
) -> None:
    """Training is over before a driver is ready there."""
    before = lab.alive()
    renting = renter.run(renter.recipe(recipe), "--on-cluster")
    renting.until_said("deploy: waits for a person's approval")
    assert "drives it from now on" not in renting.text, "else nothing is shown here"
    renting.until_said("drives it from now on; this one may")
    until(lambda: len(lab.alive() - before) == 1, "only the driver's machine is there")
    renter.call("approve", renting.run)
    ended = renting.end()
    assert ended["reason"] == "SUCCEEDED", renting.text
    assert "deployed" in renter.call("logs", renting.run).stdout
    assert "cannot drive" not in renting.text
    assert renting.text.count("is given back: it is not needed now") == (recipe == ELSEWHERE)
    until(lambda: lab.alive() == before, "its machine is gone")


@pytest.mark.crossings
def test_the_home_is_cut_off_for_longer_than_every_lease_and_ends_the_run_afterwards(
    lab: Any, renter: Renter, store: Any
) -> None:
    """Who cancels it while the store says nothing hears that."""
    before = lab.alive()
    renter.env["TRAINMASTER_NODE_LEASE"] = f"{LEASE_S}s"
    renting, run, driver = moved(renter, 3000)
    renting.kill()
    cut_off_until = time.monotonic() + 1.5 * LEASE_S
    go(driver)
    until(lambda: time.monotonic() > cut_off_until, "every lease that this home held is over", 2 * LEASE_S)
    assert drivers(run) == [driver]
    found = json.loads(renter.call("status", run, "--json").stdout)
    assert (found["state"], found["driver"]["state"]) == ("RUNNING", "working")
    assert renter.attempts(run) == [None]
    os.kill(renter.store_pid, signal.SIGSTOP)
    try:
        refused = renter.call("cancel", run, code=1)
    finally:
        os.kill(renter.store_pid, signal.SIGCONT)
    assert "nobody knows whether its driver" in refused.stderr
    assert f"`trainmaster cancel {run}` once more" in " ".join(refused.stderr.split())
    renter.call("cancel", run)
    assert json.loads(renter.call("status", run, "--json").stdout)["reason"] == "CANCELLED"
    until(lambda: lab.alive() == before, "its machine is gone")


@pytest.mark.crossings
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("engine", ["ssh", "ray"])
def test_a_search_and_a_sweep_fill_both_machines(lab: Any, renter: Renter, engine: str) -> None:
    """The driver takes no place of theirs."""
    before = lab.alive()
    spread(renter, "lab", "m4.large", 4, "--on-cluster", "--set", f"engine={engine}")
    until(lambda: lab.alive() == before, "its machines are gone")
