"""The real Infrastructure Manager in front of the lab: its EC2 connector rents there.

What the lab has at the end is the judge: nothing stays that nobody ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

from trainmaster.testing.private_im import NoImError, PrivateIm, installed

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

#: IM, its cloud and the run share this machine with other tests.
LONG_S = 500.0
PRICES = """\
provider,region,instance_type,vcpus,memory_gib,price_usd_per_hour,as_of
im,ec2,m4.xlarge,4,16,0.2,2026-11-01
"""


@pytest.fixture(scope="module")
def manager(lab: Any, lab_cache: Path) -> Iterator[PrivateIm]:
    """One for all tests of this file."""
    try:
        python = installed(lab_cache)
    except NoImError as error:
        pytest.skip(str(error))
    with PrivateIm(python, lab.access["endpoint_url"], [("m4.xlarge", 4, 16384, 0.2)]) as running:
        yield running


@pytest.fixture
def settings(manager: PrivateIm, lab: Any, tmp_path: Path) -> dict[str, str]:
    """The environment of a user of it."""
    access = lab.access
    (tmp_path / "prices.csv").write_text(PRICES)
    credentials = tmp_path / "im.auth"
    credentials.touch(0o600)
    credentials.write_text(
        "type = InfrastructureManager; username = me; password = of-mine\n"
        f"id = ec2; type = EC2; username = {access['access_key_id']}; "
        f"password = {access['secret_access_key']}\n"
    )
    file = tmp_path / "im.yaml"
    file.write_text(
        f"url: {manager.url}\nprices: prices.csv\nclouds:\n"
        f"  ec2: {{image: 'aws://{access['region']}/{access['image_id']}', disk: 10GiB, user: tm}}\n"
    )
    return {"TRAINMASTER_IM": os.fspath(file)}


def test_a_machine_is_lost_while_infrastructure_manager_is_away(
    renter: Renter, settings: dict[str, str], manager: PrivateIm
) -> None:
    """The gang waits for it, and goes on with a machine that is added to the same infrastructure."""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=400, pause=0.6), provider="im", **settings)
    run = renting.run
    renting.until(lambda: renter.checkpoints(run), "a checkpoint", LONG_S)
    machines = renter.lab.alive() - before
    assert len(machines) == 2
    manager.stop()
    renter.lab.end(min(machines))
    manager.start()
    found = renting.end(timeout_s=LONG_S)
    assert (found["reason"], found["cost_usd"] > 0) == ("SUCCEEDED", True), renting.text
    assert renter.attempts(run) == ["NODE_LOST", "SUCCEEDED"]
    assert renter.starts(run)[-1][1] >= 10, renting.text
    assert renter.lab.alive() == before, "nothing is left"


def test_its_driver_is_killed_while_machines_are_made(renter: Renter, settings: dict[str, str]) -> None:
    """No machine has a switch yet; the next driver finds them, and gives back all of them."""
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=10), provider="im", **settings)
    run = renting.run
    renting.until(lambda: renter.lab.alive() - before, "a machine", LONG_S)
    renting.kill()
    found = renter.start("resume", run, "--json", **settings).end(timeout_s=LONG_S)
    assert found["reason"] == "SUCCEEDED"
    assert renter.lab.alive() == before, "nothing is left"
