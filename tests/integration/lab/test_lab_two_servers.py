"""Two servers with homes of their own: one is lost with its home, the other goes on with what it drove."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from renter import Renter, with_engine
from server_of_lab import LabServer

pytestmark = [pytest.mark.ray, pytest.mark.s3, pytest.mark.timeout(900)]

STEPS = 120
#: Takes longer than it takes the other server to come; what comes later finds that it has ended.
SCRIPT = f"""
import json, os, time
for step in range(1, {STEPS + 1}):
    print("step", step, flush=True)
    with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
        file.write(json.dumps({{"step": step, "loss": 1 / step}}) + "\\n")
    time.sleep(0.5)
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.txt", "w") as file:
    file.write("weights of attempt " + os.environ["TRAINMASTER_ATTEMPT"])
"""
RECIPE = """
name: moved
experiments:
  train: {command: python3 train.py, hardware: {instance: m4.xlarge}}
"""


@pytest.fixture
def servers(lab_servers: Any) -> tuple[LabServer, LabServer]:
    return lab_servers("a"), lab_servers("b")


def test_a_server_is_lost_with_its_home_and_another_one_goes_on(
    lab: Any, renter: Renter, servers: tuple[LabServer, LabServer]
) -> None:
    a, b = servers
    before = lab.alive()
    made = renter.call("token", "create", "ci", "--scopes", "read,run", "--json", **a.env)
    a.token = b.token = json.loads(made.stdout)["token"]
    lost, process = a.start(), b.start()
    run = a.send(SCRIPT, {"recipe": with_engine(RECIPE), "provider": "lab", "max_usd": 50})[1]["run"]

    def log() -> str:
        return b.read(f"/runs/{run}/logs").decode()

    process.until(lambda: "step 5\n" in log(), "the other server shows what is written")
    assert "bound_to" not in b.json(f"/runs/{run}")
    driver = b.json(f"/runs/{run}")["driver"]["pid"]
    lost.kill()
    os.kill(driver, signal.SIGKILL)
    shutil.rmtree(a.home)

    process.until(lambda: b.json(f"/runs/{run}")["state"] == "DONE", "the run has ended")
    found = b.json(f"/runs/{run}")
    events = b.json(f"/runs/{run}/events")["events"]
    told = [(row["kind"], row["attempt"], row["after"], row["reason"], row["message"]) for row in events]
    assert found["reason"] == "SUCCEEDED", told
    assert max(row["attempt"] or 0 for row in events) == 1, told
    assert log() == "".join(f"step {step}\n" for step in range(1, STEPS + 1))
    (curve,) = b.json(f"/runs/{run}/metrics?keys=loss&points=1000")["metrics"]
    assert curve["steps"] == list(range(1, STEPS + 1))
    assert b.read(f"/models/{run}/train/0/files/model.txt") == b"weights of attempt 1"
    process.until(lambda: lab.alive() == before, "no machine is left")
