"""A run whose driver was killed, and what has happened to its machines until the next one comes."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter, Renting

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def killed(renter: Renter, renting: Renting) -> str:
    """Its id; its driver was killed after a checkpoint."""
    run = renting.run
    renting.until_said(r"attempt 1 starts at 0")
    place = renter.lab.home / "store" / "checkpoints" / run / "train" / "0"
    renting.until(lambda: any(place.glob("*/manifest.json")), "a checkpoint")
    renting.kill()
    return run


@pytest.mark.crossings  # so is that of `test_lab_engine_ssh.py`, beside a lost driver
def test_the_first_machine_was_lost_meanwhile(renter: Renter) -> None:
    """What it left on the others is ended before another cluster is formed there."""
    before = renter.lab.alive()
    run = killed(renter, renter.run(renter.gang(steps=200, every=4, engine="ray")))
    renter.lab.call("terminate", renter.machines(run)["worker-0"])
    time.sleep(2)
    again = renter.start("resume", run, "--json")
    assert again.end()["reason"] == "SUCCEEDED"
    assert " is lost: " in again.text, "it was a node, though this driver has never seen it as one"
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[1][1] >= 10, "it went on from its checkpoint"
    assert renter.lab.alive() == before
    assert not (renter.lab.home / "clusters" / f"{run}.train").exists(), "its keys are gone with it"


@pytest.mark.crossings  # to wait is what `test_lab_leases.py` does, and to be interrupted is as elsewhere
def test_who_cannot_wait_until_it_is_found_is_let_go(renter: Renter) -> None:
    """There is nobody who could be asked what became of the gang, and Ctrl-C ends the wait."""
    before = renter.lab.alive()
    run = killed(renter, renter.run(renter.gang(steps=4000, every=2)))
    renter.lab.call("cut", renter.machines(run)["worker-0"])
    again = renter.start("resume", run, TRAINMASTER_NODE_PATIENCE="600s")
    time.sleep(8)
    again.interrupt()
    again.end(None)
    assert renter.lab.alive() == before
