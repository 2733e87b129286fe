"""Machines that are one cluster without Ray: none of them takes the others along, and cuts are waited out."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

pytestmark = pytest.mark.timeout(900)


def test_a_gang_over_ssh_outlives_a_cut_its_driver_and_its_first_machine(renter: Renter) -> None:
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=600, engine="ssh"))
    run = renting.run
    renting.until_said(r"attempt 1 starts at 0")
    place = renter.lab.home / "store" / "checkpoints" / run / "train" / "0"
    renting.until(lambda: any(place.glob("*/manifest.json")), "a checkpoint")
    renter.lab.call("cut", renter.machines(run)["worker-1"])
    time.sleep(10)  # Ray would have given it up
    renter.lab.call("heal", renter.machines(run)["worker-1"])
    renting.kill()
    again = renter.start("resume", run, "--json")
    again.until_said(r"goes on from step|train/0: step")
    assert len(renter.attempts(run)) == 1, again.text
    renter.lab.call("terminate", renter.machines(run)["worker-0"])
    assert again.end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[1][1] >= 10, "it went on from its checkpoint"
    assert renter.lab.alive() == before
