"""Machines live as long as their driver does, whatever the cloud's API says meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("boto3", reason="boto3 is not installed")

from renter import Renter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

LEASE_S = 20


@pytest.fixture
def throttling(renter: Renter) -> Iterator[Renter]:
    yield renter
    renter.lab.do("fault", clear=True)


@pytest.mark.crossings  # decided as in `test_cluster_leases.py`, where a provider is away for hours
def test_an_api_that_throttles_for_longer_than_a_lease_ends_no_machine(throttling: Renter) -> None:
    """Nor when the driver is killed meanwhile, and another one goes on."""
    renter, env = throttling, {"TRAINMASTER_NODE_LEASE": f"{LEASE_S}s"}
    before = renter.lab.alive()
    renting = renter.run(renter.gang(steps=300, pause=0.3), **env)  # longer than three leases
    run = renting.run
    renting.until_said(r"attempt 1 starts at 0")
    renter.lab.call("fault", "DescribeInstances", "RequestLimitExceeded", "--count", 0)
    begun = time.monotonic()
    renting.until_said(r"train: lab has not answered since .* renewed over SSH.*RequestLimitExceeded")
    renting.kill()
    again = renter.start("resume", run, "--json", **env)
    again.until_said(r"lab has not answered since")
    again.until(lambda: time.monotonic() - begun > 3 * LEASE_S, "three leases")
    renter.lab.call("fault", "none")
    again.until_said("train: lab answers again")
    assert again.end()["reason"] == "SUCCEEDED"
    assert renter.attempts(run) == ["SUCCEEDED"], "the gang that the first driver had started"
    assert renter.lab.alive() == before
