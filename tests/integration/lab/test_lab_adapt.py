"""`adapt: true`: a slow machine is replaced, and a gang gets more workers, whoever drives the run by then."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
from renter import Renter

from trainmaster.lab.cgroups import CgroupTree, HostCgroup

pytestmark = [pytest.mark.crossings, pytest.mark.timeout(900)]

RING = Path(__file__).parent / "gangs" / "ring.py"
RECIPE = """
name: steps
objective: fastest
experiments:
  train:
    distributed: {strategy: allreduce, workers: 2}
    framework: torch
    hardware: {instance: m4.xlarge}
    checkpoint: {every: 5s}
    grace: 2s
    steps: 900
    adapt: true
    command: python3 ring.py {{steps}} 16
"""
#: Before that there is nothing to hold against what comes later.
SEEN_STEPS = 120


@pytest.mark.parametrize("killed", ["", "asked", "there"])
def test_a_slow_machine_is_replaced_and_the_gang_goes_on_from_its_checkpoint(renter: Renter, killed: str):
    shutil.copy(RING, renter.work)
    running = renter.run(renter.recipe(RECIPE))
    run = running.run
    attempt = renter.lab.home / "runs" / run / "tasks" / "train" / "0" / "1"
    steps = attempt / "worker-0.metrics.jsonl"
    running.until(lambda: steps.exists() and steps.read_text().count("\n") > SEEN_STEPS, "its first steps")
    slow = json.loads((attempt / "places.json").read_text())["worker-1"]
    mark = next(CgroupTree().roots["cpu"].glob(f"tmlab-*/{slow}")).parent.name
    HostCgroup(CgroupTree(), mark, slow).limit_cpu(0.06)
    running.until_said(rf"another machine is asked for in place of node-. \({slow}\)")
    if killed == "there":
        running.until(lambda: len(renter.lab.alive()) >= 3, "a third machine")
    if killed:
        running.kill()
        running = renter.start("resume", run, "--json")
    running.until_said(rf"it goes on without node-. \({slow}\), from its newest checkpoint")
    running.until_said(r"train/0: goes on from step \d+")
    running.until(lambda: slow not in renter.machines(run).values(), "that it is given back")
    summary = running.end()
    assert summary["reason"] == "SUCCEEDED"
    told = [each["words"] for each in summary["experiments"]["train"]["adapted"]]
    assert sum("worker-1 waits" in each and "another machine" in each for each in told) == 1, told
    assert sum("it goes on without" in each for each in told) == 1, told
    assert renter.attempts(run) == ["PREEMPTED", "SUCCEEDED"]


#: All compute a share of it; it cannot be measured at home, so that it begins with the fewest workers.
GROWS = f"""
name: steps
objective: fastest
experiments:
  train:
    distributed: {{strategy: allreduce, workers: 1..3}}
    framework: torch
    hardware: {{instance: m4.large}}
    batch: {{global: 48}}
    checkpoint: {{every: 5s}}
    grace: 2s
    steps: 600
    adapt: true
    command: |
      test "$(hostname)" != {socket.gethostname()}
      python3 ring.py {{{{steps}}}} 16 0.4
"""


def test_a_gang_goes_on_with_more_workers_though_its_driver_is_killed_twice(renter: Renter):
    shutil.copy(RING, renter.work)
    running = renter.run(renter.recipe(GROWS))
    run = running.run
    running.until_said(r"is to go on with [23] workers instead of 1 worker, on [12] machines? more")
    running.kill()
    running = renter.start("resume", run, "--json")
    running.until_said(r"it goes on with [23] workers from its newest checkpoint")
    running.kill()
    running = renter.start("resume", run, "--json")
    running.until_said(r"train/0: goes on from step \d+")
    running.until(lambda: len(set(renter.machines(run).values())) > 1, "its machines")
    summary = running.end()
    assert summary["reason"] == "SUCCEEDED"
    told = [each["words"] for each in summary["experiments"]["train"]["adapted"]]
    assert any(re.search("goes on with [23] workers", each) for each in told), told
    reasons = renter.attempts(run)
    assert set(reasons[:-1]) == {"PREEMPTED"}
    assert reasons[-1] == "SUCCEEDED"
    assert len(reasons) <= 3, "it is changed twice at most"
    places = renter.lab.home / "runs" / run / "tasks" / "train" / "0" / "2" / "places.json"
    assert len(set(json.loads(places.read_text()).values())) > 1
