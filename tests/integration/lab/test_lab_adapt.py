"""`adapt: true`: a machine whose processors are taken from it is replaced, whoever drives the run by then."""

from __future__ import annotations

import json
import shutil
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
